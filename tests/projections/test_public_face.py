"""What the core offers by name: all of it is there, said what it is, typed, and cheap to import."""

import ast
import itertools
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import projections

CORE = Path(projections.__file__).parent


@cache
def documented_constants() -> set[str]:
    """Find the constants of the core that a docstring follows."""
    found: set[str] = set()
    for path in CORE.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, following in itertools.pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            is_said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            found |= {target.id for target in targets if isinstance(target, ast.Name) and is_said}
    return found


@pytest.mark.parametrize("name", projections.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(projections, name)
    if isinstance(value, type) or callable(value):
        said = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
        # A named tuple or a dataclass without a docstring gets a signature for one.
        assert said
        assert not said.startswith(f"{name}(")
    else:
        assert name in documented_constants()


def test_names_are_listed_once_and_in_order() -> None:
    names = projections.__all__
    # As ruff sorts them: constants, classes, functions.
    assert names == sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert set(names) <= set(dir(projections))


def test_a_name_is_the_same_here_and_in_its_module_for_type_checkers_too() -> None:
    """The imports that only a type checker reads name what is loaded when the program runs."""
    tree = ast.parse((CORE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is None
    }
    assert {name: f"projections.{module}" for name, module in projections._MODULE_OF.items()} == typed
    assert typed.keys() == set(projections.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'projections' has no attribute 'nonsense'"):
        _ = projections.nonsense
    with pytest.raises(ImportError):
        exec("from projections import nonsense")  # noqa: S102


def test_importing_the_package_loads_nothing_of_it_before_it_is_used() -> None:
    program = (
        "import sys; import projections; from projections import attempt_id\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in ('projections', 'pydantic', 'orjson')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=CORE.parent, capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(loaded) == {"projections", "projections.errors", "projections.ids", "projections.text"}


def test_a_trace_can_be_made_with_public_names_alone() -> None:
    from projections import Fold, parse_trace_record, project_message  # noqa: PLC0415  (as a user would)

    row = b'{"id":"r1","revision":1,"workflowName":"w","status":"running","startedAt":"2026-01-01T00:00:00Z"}'
    facts = project_message("workflow-runs", b"r1", row, 0, 0).facts
    (change,) = Fold(generation=1).apply(list(enumerate(facts))).changes
    assert change.record is not None
    record = projections.decode_json(change.record)
    assert parse_trace_record(record) == record
    assert (record["kind"], record["status"]) == ("run", "running")
