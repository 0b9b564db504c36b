"""The typed columns stand for the fields of records, one each."""

import json

from projections.privacy import TRACE_FIELD_PRIVACY
from projections.records import RECORD_KINDS
from worker.stores.columns import COLUMNS, storable_copy

# Every row has them by another name: the table, the key, and nothing (all records have one schema).
WITHOUT_COLUMN = {"schema", "kind", "id"}


def test_every_field_of_every_kind_has_exactly_one_column() -> None:
    assert COLUMNS.keys() == set(RECORD_KINDS)
    for kind, columns in COLUMNS.items():
        scopes = [fields for scope, fields in TRACE_FIELD_PRIVACY.items() if scope.partition(".")[0] == kind]
        # A map and a list are one column of JSON each.
        paths = {path.partition(".*")[0].partition("[]")[0] for fields in scopes for path in fields}
        assert sorted(".".join(column.path) for column in columns) == sorted(paths - WITHOUT_COLUMN)
        assert len({column.name for column in columns}) == len(columns)


def test_a_storable_copy_is_made_only_of_what_a_database_refuses() -> None:
    for text, expected in {
        "plain ü 😀": None,
        "\x01 \\u0001": None,
        "a\x00b": "a\ufffd0000b",
        "cut \ud83d": "cut \ufffdd83d",
        "mark \ufffd": "mark \ufffdfffd",
    }.items():
        record = {"kind": "run", "error": text}
        copy = storable_copy(record, json.dumps(record, ensure_ascii=text.isascii() or "\ud83d" in text).encode())
        assert (copy if copy is None else json.loads(copy)["error"]) == expected
