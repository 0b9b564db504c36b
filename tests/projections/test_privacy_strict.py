"""The strict profile: what the normal one lets out and can be guessed leaves under digests that still parse."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from projections.errors import TraceParseError
from projections.privacy import DIGEST_PREFIX, Policy, redact, redact_id
from projections.privacy_classes import CLASS_TABLE_DIGESTS, PROFILE_CLASSES, STRICTER, TRACE_FIELD_PRIVACY
from projections.records import RECORD_MODELS, parse_trace_record_loose
from projections.records_fields import Actor, Sha256

KEY = "a key of thirty-two bytes or more"
SAMPLE_RUN = Path(__file__).parents[2] / "fixtures" / "conformance" / "titan" / "doc_run.jsonl"
RECORDS: list[dict[str, Any]] = [json.loads(line)["record"] for line in SAMPLE_RUN.read_text().splitlines()]
STRICT = Policy(KEY, ["acme/docs"], "strict")
NORMAL = Policy(KEY, ["acme/docs"])
SHA = "ab" * 32
MARK = "ZZSECRETZZ"


def typed_leaves(model: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and annotations of the leaf fields of a model."""
    members = [member for member in (model, *get_args(model)) if hasattr(member, "__required_keys__")]
    for member in members:
        for name, hint in get_type_hints(member, include_extras=True).items():
            bare = get_args(hint)[0] if "NotRequired" in str(get_origin(hint)) else hint
            yield from typed_leaves(bare, f"{path}.{name}" if path else name)
    if not members:
        yield path, model


def fields_of_type(wanted: Any) -> set[tuple[str, str]]:
    return {
        (scope, path) for scope, model in RECORD_MODELS.items() for path, hint in typed_leaves(model) if hint == wanted
    }


def test_no_unkeyed_hash_and_no_person_has_a_class_that_lets_it_out() -> None:
    hashes, people = fields_of_type(Sha256), fields_of_type(Actor)
    assert {("run", "paramsSha256"), ("call", "span.contentHash"), ("gate", "payloadSha256")} <= hashes
    assert people == {("gate", "decidedBy")}
    classes = {PROFILE_CLASSES["strict"][scope][path] for scope, path in hashes}
    assert classes == {"sha-digest", "local"}
    assert {PROFILE_CLASSES["strict"][scope][path] for scope, path in people} == {"actor-digest"}


def test_the_strict_profile_lets_out_nothing_that_the_normal_one_keeps_back() -> None:
    for scope, changes in STRICTER.items():
        assert {TRACE_FIELD_PRIVACY[scope][path] for path in changes} <= {"export", "actor", "public"}
    assert len(set(CLASS_TABLE_DIGESTS.values())) == 2
    assert Policy(KEY).fingerprint != Policy(KEY, profile="strict").fingerprint
    assert STRICT.key_id == NORMAL.key_id


def guessable(record: dict[str, Any]) -> dict[str, Any]:
    """The record with something to find in every field that the strict profile treats otherwise."""
    record = copy.deepcopy(record)
    scope = f"artifact.{record['artifactKind']}" if record["kind"] == "artifact" else record["kind"]
    for path in STRICTER.get(scope, {}):
        record[path] = SHA if path.endswith("Sha256") else f"human:{MARK}" if path == "decidedBy" else MARK
    return record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_no_planted_marker_and_no_hash_leaves(record: dict[str, Any]) -> None:
    planted = guessable(record)
    left = json.dumps(redact(planted, STRICT))
    assert MARK not in left
    assert SHA not in left
    if planted != record:
        plain = json.dumps(redact(planted, NORMAL))
        assert MARK in plain or SHA in plain


def issues(record: dict[str, Any]) -> list[Any]:
    try:
        parse_trace_record_loose(record)
    except TraceParseError as error:
        return [(issue["path"], issue["code"]) for issue in error.issues]
    return []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_whatever_parses_under_the_normal_profile_parses_under_the_strict_one(record: dict[str, Any]) -> None:
    planted = guessable(record)
    assert issues(redact(planted, STRICT)) == issues(redact(planted, NORMAL))
    if record["kind"] in {"run", "gate"}:
        assert issues(redact(planted, STRICT)) == []


def test_equal_values_have_equal_digests_so_records_still_join() -> None:
    gate = next(record for record in RECORDS if record["kind"] == "gate")
    attempt = next(record for record in RECORDS if record["kind"] == "attempt")
    one = redact({**gate, "promptSha256": SHA, "decidedBy": "human:ann"}, STRICT)
    same = redact({**gate, "payloadSha256": SHA, "decidedBy": "human:ann"}, STRICT)
    other = redact({**gate, "payloadSha256": "cd" * 32, "decidedBy": "human:bob"}, STRICT)
    assert (
        one["promptSha256"] == same["payloadSha256"] == redact({**attempt, "promptSha256": SHA}, STRICT)["promptSha256"]
    )
    assert one["decidedBy"] == same["decidedBy"] != other["decidedBy"]
    assert DIGEST_PREFIX + one["promptSha256"] == STRICT.digest(SHA)
    assert (
        redact({**gate, "promptSha256": SHA}, Policy(KEY + "2", profile="strict"))["promptSha256"]
        != one["promptSha256"]
    )


@pytest.mark.parametrize(
    ("actor", "left"),
    [
        ("human:ann", f"human:{STRICT.digest('human:ann')}"),
        ("agent:a", f"agent:{STRICT.digest('agent:a')}"),
        ("policy:budget", "policy:budget"),
        ("ann", STRICT.digest("ann")),
        ("Human:ann", STRICT.digest("Human:ann")),
        ("", STRICT.digest("")),
        (17, STRICT.digest("17")),
        (None, None),
    ],
)
def test_an_actor_keeps_what_it_is_and_not_who(actor: Any, left: Any) -> None:
    assert redact({"kind": "gate", "decidedBy": actor}, STRICT)["decidedBy"] == left


@pytest.mark.parametrize("value", [{MARK: MARK}, [MARK], [[MARK]]])
@pytest.mark.parametrize(("kind", "field"), [("gate", "decidedBy"), ("gate", "promptSha256"), ("attempt", "signal")])
def test_an_object_or_list_in_a_stricter_field_is_dropped(kind: str, field: str, value: Any) -> None:
    assert redact({"kind": kind, field: value}, STRICT) == {"kind": kind}


@pytest.mark.parametrize(("value", "text"), [(17, "17"), (True, "true"), ("17", "17")])
def test_numbers_and_booleans_in_stricter_fields_are_digested_as_their_text(value: Any, text: str) -> None:
    digest = str(STRICT.digest(text))
    left = redact({"kind": "attempt", "signal": value, "promptSha256": value}, STRICT)
    assert left == {"kind": "attempt", "signal": digest, "promptSha256": digest.removeprefix(DIGEST_PREFIX)}


def test_null_stays_null_and_ids_are_those_of_the_normal_profile() -> None:
    left = redact({"kind": "artifact", "artifactKind": "pr", "state": None}, STRICT)
    assert left == {"kind": "artifact", "artifactKind": "pr", "state": None}
    for record in RECORDS:
        left_id = redact(record, STRICT)["id"]
        assert left_id == redact(record, NORMAL)["id"]
        assert left_id == redact_id(record["kind"], record["id"], record.get("repo"), STRICT)
