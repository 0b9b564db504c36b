"""The published JSON Schemas: current, valid, true of every example, and never looser than what reads the messages."""

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from projections.errors import ProjectionError
from projections.sources import project_message
from worker.cli import run
from worker.commands.schema import file_name, schema_text
from worker.contracts.sources import CONTRACTS, json_schemas

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "fixtures" / "runs"
PUBLISHED = ROOT / "deploy" / "schemas"
SCHEMAS = json_schemas()
# What may come in the stead of a value: other types, and texts that are no id, time or digest.
WRONG: tuple[Any, ...] = (None, True, -1, 1.5, 2**60, "", " ", "x y", [], [1], {}, {"a": 1})


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS[name])


def rows(name: str) -> list[Any]:
    lines = [line for path in sorted(RUNS.glob(f"*/{name}.jsonl")) for line in path.read_bytes().splitlines()]
    return [json.loads(line) for line in lines]


ERASURES: list[Any] = [{"run": "run-7"}, {"conversation": "conversation:claude-code:host:abc"}]


def messages(source: str) -> list[Any]:
    """Give the example messages of a source but deletions, and rows as a table holds them."""
    found = ERASURES if source == "erasures" else rows(source)
    return [row for row in found if row.keys() != {"key", "value"} and row.get("op") != "d" and "created_at" not in row]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_copy_is_current(name: str) -> None:
    # trace-projector schema --to deploy/schemas
    assert (PUBLISHED / file_name(name)).read_text(encoding="utf-8") == schema_text(SCHEMAS[name])


def test_there_is_no_copy_of_a_schema_that_is_gone() -> None:
    assert {path.name for path in PUBLISHED.iterdir()} == {file_name(name) for name in SCHEMAS}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_of_its_dialect(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_every_golden_record_fits() -> None:
    records = rows("trace")
    assert len(records) > 100
    for record in records:
        assert list(validator("titan.trace/v1").iter_errors(record)) == [], record["id"]


@pytest.mark.parametrize("source", CONTRACTS)
def test_every_example_message_fits(source: str) -> None:
    found = messages(source)
    assert found
    for message in found:
        errors = [error.message for error in validator(source).iter_errors(message)]
        assert errors == [], message


def as_event(row: Any) -> Any:
    """Put a row into a CloudEvent."""
    return {"specversion": "1.0", "id": "e-1", "source": "/ledger", "type": "row", "data": row}


@pytest.mark.parametrize("source", CONTRACTS)
def test_every_example_message_fits_as_the_data_of_a_cloud_event(source: str) -> None:
    for message in shapes(source):
        assert list(validator(source).iter_errors(as_event(message))) == []
        assert is_projected(source, as_event(message))


@pytest.mark.parametrize("source", CONTRACTS)
def test_a_schema_takes_no_event_that_is_not_projected(source: str) -> None:
    message = shapes(source)[0]
    event = as_event(message)
    # A row that has all attributes of an event beside its own fields is an event, and one without data.
    attributes = {name: value for name, value in event.items() if name != "data"}
    spoilt = [
        {**attributes, **message, **dict.fromkeys(("source", "type", "id"), "x")},
        attributes,
        {**event, "specversion": "0.3"},
        {**event, "data": json.dumps(message)},
        {**event, "data": event},
        {**event, "data_base64": "e30="},
    ]
    for one in spoilt:
        assert not validator(source).is_valid(one)
        assert not is_projected(source, one)


def variants(message: Any) -> Iterator[tuple[str, Any]]:
    """Give a message with each of its fields missing or wrong, two levels deep."""
    within = [(name, inner) for name, value in message.items() if isinstance(value, dict) for inner in value]
    for path in [(name,) for name in message] + within:
        if path == ("transition", "executionId"):
            # That it is the record's as well is beyond a schema.
            continue
        for wrong in ("missing", *WRONG):
            changed = copy.deepcopy(message)
            place = changed
            for name in path[:-1]:
                place = place[name]
            if wrong == "missing":
                del place[path[-1]]
            else:
                place[path[-1]] = wrong
            # What a native line says is its format's own, and no schema's.
            if path[-1] not in ("line", "lineB64") or not isinstance(wrong, str) or wrong == "missing":
                yield f"{'.'.join(path)} = {wrong!r}", changed


def is_projected(source: str, message: Any) -> bool:
    try:
        project_message(source, None, json.dumps(message).encode(), 0, 0)
    except ProjectionError:
        return False
    return True


def shapes(source: str) -> list[Any]:
    """Give one example message of each set of fields."""
    return list({tuple(sorted(message)): message for message in messages(source)}.values())


@pytest.mark.parametrize("source", CONTRACTS)
def test_what_a_schema_takes_is_projected(source: str) -> None:
    refused = taken = 0
    for message in (*shapes(source), as_event(shapes(source)[0])):
        for name, changed in variants(message):
            if validator(source).is_valid(changed):
                taken += 1
                assert is_projected(source, changed), name
            else:
                refused += 1
    # Both happen, so something was compared.
    assert taken
    assert refused


def test_the_command_prints_a_schema_and_the_names_there_are(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    assert capfd.readouterr().out.split() == list(SCHEMAS)
    assert run(["schema", "transcripts"]) == 0
    assert json.loads(capfd.readouterr().out) == SCHEMAS["transcripts"]
    assert run(["schema", "nonsense"]) == 2
    assert "there is no schema nonsense; there are titan.trace/v1, workflow-runs" in capfd.readouterr().err


def test_the_command_writes_all_of_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "--to", str(tmp_path / "new")]) == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in PUBLISHED.iterdir()}
    assert run(["schema", "erasures", "--to", str(tmp_path)]) == 2
    assert "give a NAME or --to" in capfd.readouterr().err
