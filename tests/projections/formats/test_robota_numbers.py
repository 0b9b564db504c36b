"""Numbers as ECMAScript doubles."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.formats.robota_numbers import SAFE_INTEGER_MAX, add, is_metric, is_safe_count, plain

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.parametrize("value", [0, 1, 0.5, 1e21, -0.0, 2**70])
def test_a_metric_is_any_finite_number_from_zero(value: Any) -> None:
    assert is_metric(value)


@pytest.mark.parametrize("value", [-1, -0.1, True, False, "1", None, float("nan"), float("inf"), 10**400, [1]])
def test_anything_else_is_no_metric(value: Any) -> None:
    assert not is_metric(value)


@pytest.mark.parametrize(
    ("value", "safe"),
    [(0, True), (1.0, True), (SAFE_INTEGER_MAX, True), (SAFE_INTEGER_MAX + 1, False), (0.5, False), (-1, False)],
)
def test_a_safe_count_is_a_whole_number_that_a_double_holds_exactly(value: Any, safe: bool) -> None:
    assert is_safe_count(value) is safe


@given(st.lists(FINITE))
def test_sums_are_plain_double_additions_from_left_to_right(values: list[float]) -> None:
    expected = 0.0
    for value in values:
        expected += value
    total: float = 0
    for value in values:
        total = add(total, value)
    assert total == expected


def test_integers_beyond_two_to_the_53_are_the_nearest_double() -> None:
    assert plain(2**53 + 1) == 2**53
    assert add(SAFE_INTEGER_MAX, 2) == 2**53
    assert isinstance(plain(3.0), int)
