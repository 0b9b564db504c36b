"""Conformance rows: read a file of them, run a check over each, and list the names of those that fail."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def load_rows(vectors: Path, name: str) -> list[Row]:
    """Rows of ``<vectors>/<name>``, for instance ``titan/ids.jsonl``; a missing or empty file is a failure."""
    path = vectors / name
    assert path.is_file(), f"no file of rows at {path}"
    # The standard library reads lone-surrogate escapes, and rows are not to be read by the parser under test.
    rows = [json.loads(line) for line in path.read_bytes().decode("utf-8").split("\n") if line.strip()]
    assert rows, f"no row in {path}"
    return rows


def assert_rows(rows: Iterable[Row], check: Callable[[Row], str | None]) -> None:
    """Run a check over every row; it returns what is wrong, or None. One failure lists all rows that fail."""
    failures = []
    for row in rows:
        try:
            wrong = check(row)
        except Exception as error:  # noqa: BLE001 - one row that crashes must not hide the others
            wrong = f"raised {type(error).__name__}: {error}"
        if wrong is not None:
            failures.append(f"{row['name']}: {wrong}")
    assert not failures, f"{len(failures)} rows fail:\n" + "\n".join(failures)


def differs(actual: Any, expected: Any) -> str | None:
    """What to say when two JSON values are not the same, else None."""
    return None if same_json(actual, expected) else f"gave {actual!r}, expected {expected!r}"


def same_json(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal: numbers by value, booleans never as numbers, keys in any order."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_json(item, second[key]) for key, item in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same_json, first, second))
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)
