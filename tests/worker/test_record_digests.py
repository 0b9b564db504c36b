"""Digests of records: equal sets have equal ones, and every difference is found and named."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from worker.record_digests import (
    Difference,
    Leaf,
    Leaves,
    describe,
    differing_fields,
    differing_keys,
    digest_of,
    root_digest,
    run_digests,
)
from worker.sink import RecordKey

Bodies = dict[RecordKey, dict[str, Any]]

bodies_of = st.dictionaries(
    st.tuples(st.sampled_from(["run", "call"]), st.sampled_from("abcdef")),
    st.fixed_dictionaries({"runId": st.sampled_from(["r1", "r2"]), "value": st.integers(0, 2)}),
)


def leaves(bodies: Bodies) -> Leaves:
    return {
        key: Leaf(body["runId"], digest_of(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)))
        for key, body in bodies.items()
    }


@given(bodies_of, bodies_of)
def test_digests_find_just_the_records_that_differ(one: Bodies, other: Bodies) -> None:
    keys = differing_keys(leaves(one), leaves(other))
    assert set(keys) == {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    assert len(keys) == len(set(keys))
    equal = root_digest(run_digests(leaves(one))) == root_digest(run_digests(leaves(other)))
    assert equal is (one == other)


@given(bodies_of, st.randoms())
def test_the_order_in_which_records_come_does_not_matter(bodies: Bodies, random: Any) -> None:
    rows = list(bodies.items())
    random.shuffle(rows)
    assert run_digests(leaves(dict(rows))) == run_digests(leaves(bodies))


def test_parts_cannot_be_shifted_from_one_into_the_next() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")
    assert digest_of(b"ab") != digest_of(b"ab", b"")


def test_fields_are_named_by_dotted_paths_and_lists_as_a_whole() -> None:
    one = {"a": 1, "b": {"c": [1, 2], "d": None}, "e": "x"}
    other = {"a": 1.0, "b": {"c": [1, 3], "f": None}, "e": "x"}
    assert list(differing_fields(one, other)) == ["a", "b.c", "b.d", "b.f"]
    assert list(differing_fields(one, one)) == []
    assert list(differing_fields(True, 1)) == ["(all)"]


def test_each_difference_says_where_or_in_what() -> None:
    keys: list[RecordKey] = [("run", "a"), ("run", "b"), ("run", "c"), ("run", "d")]
    one: Bodies = {keys[0]: {"runId": "r", "x": 1}, keys[1]: {"runId": "r"}, keys[3]: {"runId": "r"}}
    other: Bodies = {keys[0]: {"runId": "r", "x": 2}, keys[2]: {"runId": "s"}, keys[3]: {"runId": "r"}}
    assert list(describe(keys, one, other)) == [
        Difference("r", "run", "a", None, ("x",)),
        Difference("r", "run", "b", 0),
        Difference("s", "run", "c", 1),
        Difference("r", "run", "d", None, ("(bytes)",)),
    ]
