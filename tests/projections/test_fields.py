"""Rows are read alike with the names of record fields and with those of table columns."""

from typing import Any

import pytest

from projections.fields import Row


@pytest.mark.parametrize(
    ("field", "column"),
    [("createdAt", "created_at"), ("lineB64", "line_b64"), ("paramsSha256", "params_sha256"), ("id", "id")],
)
def test_a_field_is_found_under_its_own_name_and_that_of_its_column(field: str, column: str) -> None:
    for name in (field, column):
        row = Row({name: "told"})
        assert row.has(field)
        assert row.raw(field) == row.text(field) == "told"


@pytest.mark.parametrize("own", ["own", None])
def test_a_field_goes_before_its_column_even_when_it_is_null(own: str | None) -> None:
    for row in ({"runId": own, "run_id": "column"}, {"run_id": "column", "runId": own}):
        assert Row(row).raw("runId") == own


@pytest.mark.parametrize("name", ["run__id", "run_Id", "_run_id", "run_id_", "RUN_ID", "Run_id"])
def test_no_other_spelling_is_a_column(name: str) -> None:
    assert not Row({name: "told"}).has("runId")


def test_a_row_shows_what_it_was_given() -> None:
    given: dict[str, Any] = {"run_id": "r1", "titan.trace.gates": []}
    assert Row(given).value is given
