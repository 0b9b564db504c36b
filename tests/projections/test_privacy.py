"""Redaction: every field has a class, and what has none never leaves."""

import copy
import hashlib
import hmac
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.privacy import TRACE_FIELD_PRIVACY, Policy, redact, redact_id, redact_trace_record
from projections.records import RECORD_MODELS, parse_trace_record

KEY = "a key of thirty-two bytes or more"
MARK = "planted-7f3a"
SAMPLE_RUN = Path(__file__).parents[2] / "fixtures" / "conformance" / "titan" / "doc_run.jsonl"
RECORDS: list[dict[str, Any]] = [json.loads(line)["record"] for line in SAMPLE_RUN.read_text().splitlines()]


def leaves(model: Any, path: str = "") -> Iterator[str]:
    """Paths of the leaf fields that a model allows, in the notation of the privacy table."""
    members = [member for member in (model, *get_args(model)) if hasattr(member, "__required_keys__")]
    if get_origin(model) is dict:
        yield f"{path}.*"
    elif get_origin(model) is list:
        yield from leaves(get_args(model)[0], f"{path}[]")
    elif members:
        for member in members:
            for name, hint in get_type_hints(member).items():
                yield from leaves(hint, f"{path}.{name}" if path else name)
    else:
        yield path


@pytest.mark.parametrize("scope", RECORD_MODELS)
def test_every_leaf_of_a_model_has_a_class_and_every_class_a_leaf(scope: str) -> None:
    assert set(leaves(RECORD_MODELS[scope])) == set(TRACE_FIELD_PRIVACY[scope])


def test_the_walk_over_the_models_sees_maps_lists_unions_and_constants() -> None:
    assert "correlations.*" in set(leaves(RECORD_MODELS["run"]))
    assert "lines[].lineStart" in set(leaves(RECORD_MODELS["artifact.file"]))
    assert {"measurement.responseId", "measurement.epoch"} <= set(leaves(RECORD_MODELS["cost"]))
    assert set(leaves(Literal["a"], "x")) == {"x"}


def planted(scope: str) -> dict[str, Any]:
    """A record of a scope in which every leaf holds a mark that names its path."""
    record: dict[str, Any] = {}
    for path in TRACE_FIELD_PRIVACY[scope]:
        holder = record
        *parents, leaf = path.split(".")
        for name in parents:
            holder = holder.setdefault(name[:-2], [{}])[0] if name.endswith("[]") else holder.setdefault(name, {})
        holder["relay.run" if leaf == "*" else leaf] = f"{MARK} {path};"
    kind, _, artifact_kind = scope.partition(".")
    record["kind"] = kind
    if artifact_kind:
        record["artifactKind"] = artifact_kind
    return record


@pytest.mark.parametrize("scope", TRACE_FIELD_PRIVACY)
def test_a_mark_in_every_field_leaves_only_from_the_fields_that_may(scope: str) -> None:
    text = json.dumps(redact(planted(scope), Policy(KEY)))
    left = {path for path in TRACE_FIELD_PRIVACY[scope] if f"{MARK} {path};" in text}
    kept = {"export", "actor", "mcp-local"}  # the mark names no agent, and the call is no tool call
    expected = {path for path, field_class in TRACE_FIELD_PRIVACY[scope].items() if field_class in kept}
    assert left == expected - {"kind", "artifactKind"}


@pytest.mark.parametrize("scope", [scope for scope in TRACE_FIELD_PRIVACY if scope.startswith("artifact.")])
def test_a_public_repository_opens_the_public_fields_and_no_others(scope: str) -> None:
    record = planted(scope)
    text = json.dumps(redact(record, Policy(KEY, [record["repo"]])))
    left = {path for path in TRACE_FIELD_PRIVACY[scope] if f"{MARK} {path};" in text}
    expected = {path for path, field_class in TRACE_FIELD_PRIVACY[scope].items() if field_class in {"export", "public"}}
    assert left == expected - {"kind", "artifactKind"}


SECRETS = st.recursive(
    st.just(MARK) | st.just(1) | st.none(),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(st.just(MARK), children, max_size=1),
    max_leaves=4,
)


def holders(value: Any) -> list[Any]:
    """Every object and list inside a record, itself included."""
    found = [value] if isinstance(value, dict | list) else []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found += holders(item)
    return found


@given(st.sampled_from(RECORDS), st.data())
def test_what_has_no_class_never_leaves_wherever_it_is_planted(record: dict[str, Any], data: st.DataObject) -> None:
    changed = copy.deepcopy(record)
    for _ in range(data.draw(st.integers(1, 3))):
        holder = data.draw(st.sampled_from(holders(changed)))
        secret = data.draw(SECRETS)
        if isinstance(holder, list):
            holder.append(secret)
        else:
            holder[data.draw(st.sampled_from([MARK, "note", "*", "[]", ""]))] = secret
    policy = Policy(KEY, ["acme/docs"])
    redacted = redact(changed, policy)
    assert MARK not in json.dumps(redacted)
    assert "note" not in json.dumps(redacted)
    assert redacted == redact(record, policy)


@given(st.sampled_from(RECORDS), st.data())
def test_an_object_or_list_where_a_leaf_is_due_never_leaves(record: dict[str, Any], data: st.DataObject) -> None:
    leaf = data.draw(st.sampled_from([key for key, item in record.items() if not isinstance(item, dict | list)]))
    value = data.draw(st.sampled_from([{MARK: MARK}, [MARK], {}, [], [[MARK]]]))
    if leaf in {"kind", "artifactKind"}:
        with pytest.raises(ProjectionError, match="unknown_kind"):
            redact({**record, leaf: value}, Policy(KEY))
        return
    redacted = redact({**record, leaf: value}, Policy(KEY))
    assert leaf not in redacted
    assert MARK not in json.dumps(redacted)


@pytest.mark.parametrize("value", [MARK, 1, None, [MARK], [[MARK]]])
@pytest.mark.parametrize(("field", "kind"), [("span", "call"), ("measurement", "cost"), ("correlations", "run")])
def test_a_leaf_or_list_where_an_object_is_due_never_leaves(field: str, kind: str, value: Any) -> None:
    record = next(record for record in RECORDS if record["kind"] == kind)
    assert field not in redact({**record, field: value}, Policy(KEY))


@pytest.mark.parametrize("value", [MARK, 1, None, {"lineStart": MARK}])
def test_anything_but_a_list_of_objects_in_a_list_field_is_dropped(value: Any) -> None:
    record = next(record for record in RECORDS if record.get("artifactKind") == "file")
    assert "lines" not in redact({**record, "lines": value}, Policy(KEY))
    assert redact({**record, "lines": [value]}, Policy(KEY))["lines"] == (
        [{"lineStart": Policy(KEY).digest(MARK)}] if isinstance(value, dict) else []
    )


def test_correlation_values_are_marked_and_keys_outside_the_grammar_dropped() -> None:
    record = {"kind": "run", "correlations": {"relay.run": MARK, "a.b": {MARK: 1}, MARK: 1, "Relay.run": 2, "a.b\n": 3}}
    assert redact(record, Policy(KEY))["correlations"] == {"relay.run": "[local]", "a.b": "[local]"}


def expected_digest(text: str) -> str:
    return "hmac-sha256:" + hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("value", "text"),
    [(12, "12"), (12.0, "12"), (True, "true"), (False, "false"), (1e21, "1e+21"), ("", ""), ("é", "é")],
)
def test_numbers_and_booleans_in_digest_fields_are_digested_as_their_text(value: Any, text: str) -> None:
    attempt = {"kind": "attempt", "agentId": value, "runnerRef": text}
    redacted = redact(attempt, Policy(KEY))
    assert redacted["agentId"] == redacted["runnerRef"] == expected_digest(text)


def test_the_number_17_and_the_text_17_share_one_digest_and_1_and_true_do_not() -> None:
    policy = Policy(KEY)
    assert policy.digest(17) == policy.digest("17") == policy.digest(17.0)
    assert len({policy.digest(1), policy.digest(value=True), policy.digest("True")}) == 3


def test_null_stays_null_in_a_digest_field() -> None:
    assert redact({"kind": "attempt", "agentId": None}, Policy(KEY)) == {"kind": "attempt", "agentId": None}


@pytest.mark.parametrize("key", ["", b"", None, 5, [], bytearray(b"k")])
def test_an_empty_key_is_refused(key: Any) -> None:
    with pytest.raises(ProjectionError, match="empty_key"):
        Policy(key)
    with pytest.raises(ProjectionError, match="empty_key"):
        redact_trace_record(RECORDS[0], [], key)


def test_a_key_of_text_and_its_bytes_are_one_key_and_a_space_is_a_key() -> None:
    assert Policy("clé").digest("x") == Policy("clé".encode()).digest("x")
    assert Policy(" ").digest("x") != Policy("  ").digest("x")


def test_a_policy_never_shows_its_key() -> None:
    policy = Policy(KEY, ["acme/docs"])
    assert KEY not in repr(policy) + str(policy) + policy.key_id + policy.fingerprint
    assert not hasattr(policy, "__dict__")
    assert all(KEY not in repr(getattr(policy, name)) for name in Policy.__slots__)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(policy)


def test_the_cache_of_digests_is_bounded() -> None:
    info = Policy(KEY)._digest.cache_info()  # type: ignore[attr-defined]
    assert 0 < info.maxsize <= 65_536


def test_the_key_id_is_stable_and_is_no_digest_of_a_value() -> None:
    assert Policy(KEY).key_id == Policy(KEY.encode(), ["acme/docs"]).key_id
    assert Policy(KEY).key_id != Policy(KEY + "x").key_id
    assert len(Policy(KEY).key_id) == 16
    assert Policy(KEY).key_id not in str(Policy(KEY).digest("trace-projector"))


def test_the_fingerprint_changes_with_the_key_and_the_repositories_and_with_nothing_else() -> None:
    assert Policy(KEY, ["a/b", "c/d"]).fingerprint == Policy(KEY, ["c/d", "a/b", "a/b"]).fingerprint
    others = [Policy(KEY), Policy(KEY, ["a/b"]), Policy(KEY + "x", ["a/b", "c/d"])]
    assert Policy(KEY, ["a/b", "c/d"]).fingerprint not in {policy.fingerprint for policy in others}


@pytest.mark.parametrize("repos", [[], ["acme/docs"], ["ACME/DOCS"]])
def test_the_id_of_a_deletion_is_the_id_that_the_record_left_with(repos: list[str]) -> None:
    policy = Policy(KEY, repos)
    for record in RECORDS:
        assert redact_id(record["kind"], record["id"], record.get("repo"), policy) == redact(record, policy)["id"]


def test_the_id_of_an_unknown_kind_has_no_class() -> None:
    with pytest.raises(ProjectionError, match="unknown_kind"):
        redact_id("handoff", "x", None, Policy(KEY))


@pytest.mark.parametrize("value", [{"kind": "handoff"}, {"kind": "unknown", "value": {"a": 1}}, {}, None, [], "x"])
def test_what_is_no_record_is_refused(value: Any) -> None:
    with pytest.raises(ProjectionError, match="unknown_kind"):
        redact(value, Policy(KEY))


def test_redaction_keeps_the_key_order_and_leaves_the_record_alone() -> None:
    for record in RECORDS:
        before = copy.deepcopy(record)
        redacted = redact(record, Policy(KEY))
        assert list(redacted) == [key for key in record if key in redacted]
        assert record == before


def test_a_redacted_record_is_no_secret_twice() -> None:
    policy = Policy(KEY)
    run = next(record for record in RECORDS if record["kind"] == "run")
    assert parse_trace_record(redact(run, policy))
    assert redact(redact(run, policy), policy) == redact(run, policy)


@pytest.mark.parametrize("namespace", ["srv", {}, [], {"a": 1}, 1])
def test_a_tool_with_any_namespace_keeps_its_name_here(namespace: Any) -> None:
    call = {"kind": "call", "callKind": "tool", "name": "Edit", "namespace": namespace}
    assert "name" not in redact(call, Policy(KEY))


@pytest.mark.parametrize("namespace", [None, "", 0, False])
def test_a_tool_without_a_namespace_is_named_unless_the_name_is_an_mcp_one(namespace: Any) -> None:
    call = {"kind": "call", "callKind": "tool", "name": "Edit", "namespace": namespace}
    assert redact(call, Policy(KEY))["name"] == "Edit"
    assert "name" not in redact({**call, "name": "mcp__srv__tool"}, Policy(KEY))


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [
        ("reverts", f"commit:acme/docs@{'b' * 40}", f"commit:acme/secret@{'b' * 40}"),
        ("commit", f"commit:acme/docs@{'b' * 40}", f"commit:acme/secret@{'b' * 40}"),
        ("branch", "branch:acme/docs/main", "branch:acme/secret/main"),
    ],
)
def test_the_strict_profile_lets_no_artifact_of_a_public_repository_name_one_that_is_not(
    name: str, own: str, other: str
) -> None:
    kind = "file" if name == "commit" else "commit"
    head = {"schema": "titan.trace/v1", "kind": "artifact", "artifactKind": kind, "runId": "r", "repo": "acme/docs"}
    policy = Policy(KEY, ["acme/docs"], "strict")
    assert redact({**head, name: own}, policy)[name] == own
    assert redact({**head, name: other}, policy)[name] == policy.digest(other)
    both = Policy(KEY, ["acme/docs", "acme/secret"], "strict")
    assert redact({**head, name: other}, both)[name] == other
    # The reference asks for the record's own repository alone.
    assert redact({**head, name: other}, Policy(KEY, ["acme/docs"]))[name] == other
