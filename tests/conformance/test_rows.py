"""The loader of rows must not let a run pass that checked nothing."""

from pathlib import Path

import pytest

from tests.conformance.rows import Row, assert_rows, differs, load_rows, same_json


def test_a_missing_file_of_rows_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no file of rows"):
        load_rows(tmp_path, "titan/ids.jsonl")


def test_an_empty_file_of_rows_fails(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n")
    with pytest.raises(AssertionError, match="no row in"):
        load_rows(tmp_path, "rows.jsonl")


def test_all_rows_that_fail_are_listed_by_name_even_when_one_crashes() -> None:
    rows: list[Row] = [{"name": "right", "value": 1}, {"name": "wrong", "value": 2}, {"name": "crashes"}]
    with pytest.raises(AssertionError, match=r"2 rows fail:\nwrong: gave 2, expected 1\ncrashes: raised KeyError"):
        assert_rows(rows, lambda row: differs(row["value"], 1))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        ([False], [0], False),
        ({"a": None}, {}, False),
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1}, True),
        ([1, 2], [2, 1], False),
    ],
)
def test_json_values_are_compared_by_value_and_never_a_boolean_with_a_number(
    first: object, second: object, same: bool
) -> None:
    assert same_json(first, second) is same
