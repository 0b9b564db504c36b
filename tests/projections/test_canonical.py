"""Canonical and compact bytes, and digests."""

import hashlib
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from projections.canonical import canonical_json, digest_of_json, digest_of_text, encode_record, sha256_hex
from projections.decode import decode_json
from projections.errors import ProjectionError

SAFE = 2**53 - 1
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(-1e3, 1e3).map(lambda number: round(number, 6))
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), children, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_canonical_json_is_that_of_the_rfc8785_package(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_written_as_the_rfc8785_package_writes_it(number: float) -> None:
    assert canonical_json([number]) == rfc8785.dumps([number])


@given(VALUES)
def test_canonical_json_is_a_fixed_point(value: Any) -> None:
    once = canonical_json(value)
    assert canonical_json(decode_json(once)) == once


def test_keys_are_in_utf16_order() -> None:
    assert canonical_json({"\uff5e": 1, "😀": 2, "a": 3}) == '{"a":3,"😀":2,"\uff5e":1}'.encode()


def test_an_integer_beyond_the_safe_range_becomes_the_nearest_double() -> None:
    assert canonical_json([SAFE, 2**53 + 1, -(2**64), 10**21]) == (
        b"[9007199254740991,9007199254740992,-18446744073709552000,1e+21]"
    )


def test_lone_surrogates_are_written_as_escapes() -> None:
    assert canonical_json({"\udfff": ["a\ud800"]}) == b'{"\\udfff":["a\\ud800"]}'
    assert canonical_json(["a\ud800"]) == b'["a\\ud800"]'


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}])
def test_numbers_that_json_lacks_are_refused(value: Any) -> None:
    with pytest.raises(ProjectionError, match="number_out_of_range"):
        canonical_json(value)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {1, 2}}, [b"x"], object()])
def test_values_that_json_lacks_are_refused(value: Any) -> None:
    with pytest.raises(ProjectionError, match="not_json"):
        canonical_json(value)


def test_digests_are_sha256_of_the_documented_bytes() -> None:
    assert sha256_hex(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest_of_json({"b": 1.0, "a": "é"}) == hashlib.sha256('{"a":"é","b":1}'.encode()).hexdigest()
    assert digest_of_text("é") == hashlib.sha256("é".encode()).hexdigest()
    assert digest_of_text(17) == digest_of_text("17") == digest_of_text(17.0)
    assert digest_of_text(value=True) == digest_of_text("true")
    assert digest_of_text("a\ud800") == digest_of_text("a\ufffd")


def test_a_record_is_written_in_its_key_order_with_integers_for_integral_numbers() -> None:
    record = {"z": 1.0, "a": {"usd": 0.25, "n": -0.0}, "l": [2.0, 2.5, "é"], "big": 1e300, "t": True, "u": None}
    assert (
        encode_record(record).decode()
        == '{"z":1,"a":{"usd":0.25,"n":0},"l":[2,2.5,"é"],"big":1e+300,"t":true,"u":null}'
    )
    assert record["z"] == 1.0
    assert type(record["z"]) is float, "the record itself is left alone"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_record_with_a_number_that_json_lacks_is_refused(value: float) -> None:
    with pytest.raises(ProjectionError, match="number_out_of_range"):
        encode_record({"usage": {"costUsd": value}})


@pytest.mark.parametrize("value", ["\ud800", 2**64, {1: 1}, {1, 2}])
def test_a_record_that_no_store_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(ProjectionError, match="not_storable"):
        encode_record({"error": value})


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), VALUES, max_size=5))
def test_a_record_reads_back_as_it_was_written(record: dict[str, Any]) -> None:
    assert decode_json(encode_record(record)) == record
    assert list(decode_json(encode_record(record))) == list(record)
