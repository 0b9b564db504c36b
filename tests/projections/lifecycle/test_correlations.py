"""Correlations: the check gives a copy, and the prefixes that producers keep for themselves are listed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.lifecycle import (
    CORRELATION_KEY_PATTERN,
    RESERVED_CORRELATION_PREFIXES,
    ExecutionTransitionError,
    correlation_key,
    validate_correlations,
)

KEYS = st.from_regex(CORRELATION_KEY_PATTERN, fullmatch=True)
VALUES = st.text(min_size=1, max_size=256).map(lambda text: f"x{text}")


@given(correlations=st.dictionaries(KEYS, VALUES, max_size=32))
def test_good_correlations_are_copied_in_their_order(correlations: dict[str, str]) -> None:
    checked = validate_correlations(correlations)
    assert checked == correlations
    assert list(checked) == list(correlations)
    assert checked is not correlations


@given(correlations=st.dictionaries(KEYS, VALUES, min_size=33, max_size=34))
def test_more_than_32_are_refused_before_any_of_them_is_looked_at(correlations: dict[str, str]) -> None:
    with pytest.raises(ExecutionTransitionError, match="too_many_correlations"):
        validate_correlations({**correlations, "BAD": ""})


@given(key=KEYS)
def test_a_key_is_made_of_its_prefix_and_its_name(key: str) -> None:
    prefix, _, name = key.partition(".")
    assert correlation_key(prefix, name) == key


def test_reserved_prefixes_are_listed_and_not_enforced() -> None:
    assert RESERVED_CORRELATION_PREFIXES == ("broker", "agent-thread")
    for prefix in RESERVED_CORRELATION_PREFIXES:
        assert validate_correlations({f"{prefix}.thread": "t-1"}) == {f"{prefix}.thread": "t-1"}


@pytest.mark.parametrize(("value", "length"), [("é" * 512, 512), ("🧪" * 256, 256)])
def test_lengths_count_utf16_units(value: str, length: int) -> None:
    assert len(value) == length
    assert validate_correlations({"relay.run": value})
    with pytest.raises(ExecutionTransitionError) as caught:
        validate_correlations({"relay.run": f"{value}x"})
    assert (caught.value.reason, caught.value.key, caught.value.field) == (
        "correlation_value_too_long",
        "relay.run",
        None,
    )


def test_the_key_at_fault_is_on_the_error_and_not_in_its_text() -> None:
    with pytest.raises(ExecutionTransitionError) as caught:
        validate_correlations({"Secret Key": "x"})
    assert caught.value.key == "Secret Key"
    assert "Secret" not in str(caught.value)
