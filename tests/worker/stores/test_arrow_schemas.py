"""The Arrow schemas say a type for every column, whatever a batch holds, and tables keep what records say."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.worker.sinks.destinations import DOC_RUN, run_record, upsert
from worker.sink import Pricing
from worker.stores.arrow_schemas import (
    DELETIONS_SCHEMA,
    file_schema,
    file_table,
    table_of,
    table_schema,
    with_typed_columns,
)
from worker.stores.columns import COLUMNS, PRICING_COLUMNS

TYPES = {
    "text": pa.string(),
    "count": pa.int64(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
COST = next(record for record in DOC_RUN if record["kind"] == "cost")


@pytest.mark.parametrize("kind", list(COLUMNS))
def test_every_column_of_a_kind_has_its_type_in_the_order_of_the_table_of_columns(kind: str) -> None:
    typed = [(column.name, TYPES[column.type]) for column in COLUMNS[kind]]
    beside = [(name, pa.string()) for name in PRICING_COLUMNS] if kind == "cost" else []
    key = [("id", pa.string()), ("_generation", pa.int64()), ("_offset", pa.int64()), ("record", pa.string())]
    assert [(field.name, field.type) for field in table_schema(kind)] == [*key, *typed, *beside]
    assert [(field.name, field.type) for field in file_schema(kind)] == [key[0], key[3], *typed]


def test_key_version_and_record_are_never_null_and_everything_else_may_be() -> None:
    for kind in COLUMNS:
        required = {field.name for field in table_schema(kind) if not field.nullable}
        assert required == {"id", "_generation", "_offset", "record"}
    assert not any(field.nullable for field in DELETIONS_SCHEMA)


@pytest.mark.parametrize("kind", list(COLUMNS))
def test_a_batch_without_rows_or_without_values_has_the_same_schema(kind: str) -> None:
    bare = {"kind": kind, "id": "x"}
    assert table_of(kind, []).schema.equals(table_schema(kind))
    table = table_of(kind, [upsert(bare, 1)])
    assert table.schema.equals(table_schema(kind))
    assert all(table[column.name].null_count == 1 for column in COLUMNS[kind])


def test_all_null_first_and_values_later_are_one_data_set(tmp_path: Any) -> None:
    unpriced = {**COST, "id": "a", "attemptId": None, "measurement": {**COST["measurement"], "cost": None}}
    priced = {**COST, "id": "b", "attemptId": "s/1/1"}
    priced["measurement"] = {**COST["measurement"], "cost": {"usd": 0.5, "kind": "reported"}}
    del unpriced["attemptId"]
    for name, record in (("1", unpriced), ("2", priced)):
        pq.write_table(table_of("cost", [upsert(record, 1)]), tmp_path / f"{name}.parquet")
    rows = pq.read_table(tmp_path).sort_by("id").select(["id", "attempt_id", "cost_usd"]).to_pylist()
    assert rows == [
        {"id": "a", "attempt_id": None, "cost_usd": None},
        {"id": "b", "attempt_id": "s/1/1", "cost_usd": 0.5},
    ]


@pytest.mark.parametrize(
    ("count", "stored"), [(2**53 - 1, 2**53 - 1), (2**53, 2**53), (2**53 + 1, 2**53 + 1), (2**65, None), (1.0, None)]
)
def test_counts_are_whole_and_never_rounded(count: Any, stored: int | None) -> None:
    measurement = {**COST["measurement"], "tokens": {"input": count}}
    table = table_of("cost", [upsert({**COST, "measurement": measurement}, 1)])
    assert table["input_tokens"].to_pylist() == [stored]


@pytest.mark.parametrize("amount", [0.1, 1e-300, 123456789.123456789, 5])
def test_money_is_the_double_that_the_record_has(amount: float) -> None:
    measurement = {**COST["measurement"], "cost": {"usd": amount, "kind": "reported"}}
    table = table_of("cost", [upsert({**COST, "measurement": measurement}, 1)])
    assert table["cost_usd"].to_pylist() == [float(amount)]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-09-28T10:00:00.123456789Z", datetime(2026, 9, 28, 10, 0, 0, 123456, tzinfo=UTC)),
        ("2026-09-28T10:00:00+02:00", datetime(2026, 9, 28, 8, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("0000-01-01T00:00:00Z", None),
    ],
)
def test_times_are_instants_in_utc_to_the_microsecond(at: str, expected: datetime | None) -> None:
    table = table_of("run", [upsert(run_record("r", at=at), 1)])
    assert table["started_at"].to_pylist() == [expected]


def test_what_an_amount_rests_on_stands_beside_it() -> None:
    table = table_of("cost", [upsert(COST, 1)._replace(pricing=Pricing("estimate", None, "7")), upsert(COST, 2)])
    assert table["price_table_version"].to_pylist() == ["7", None]


@pytest.mark.parametrize("kind", list(COLUMNS))
def test_the_columns_that_an_older_table_lacks_are_read_from_its_records(kind: str) -> None:
    batch = [upsert(record, 1) for record in DOC_RUN if record["kind"] == kind]
    whole = table_of(kind, batch)
    older = whole.drop_columns([COLUMNS[kind][-1].name, COLUMNS[kind][0].name])
    assert with_typed_columns(kind, older).equals(whole)
    assert with_typed_columns(kind, whole).equals(whole)


def test_a_file_of_an_export_has_the_record_and_its_columns() -> None:
    data = upsert(run_record("r\x00"), 1).json
    assert data is not None
    (row,) = file_table("run", [("r\x00", data)]).to_pylist()
    assert row["record"].encode() == data
    assert row["workflow_name"] == "doc-change"
    assert "\x00" not in row["id"]
