"""The privacy report says what redaction does: held to ``redact`` itself, field by field."""

from typing import Any

import pytest

from projections.privacy import Policy, redact
from projections.privacy_classes import PROFILE_CLASSES, TRACE_FIELD_PRIVACY, Profile
from projections.privacy_report import FieldRow, Outlet, privacy_difference, privacy_report

KEY = "a key of thirty-two bytes or more"
MARK = "policy:mark"
PROFILES: list[Profile] = ["normal", "strict"]


def record_with(scope: str, path: str) -> dict[str, Any]:
    """A record of a scope that has one field, with a mark in it."""
    kind, _, artifact_kind = scope.partition(".")
    record: dict[str, Any] = {"kind": kind, **({"artifactKind": artifact_kind} if artifact_kind else {})}
    holder = record
    *parents, leaf = path.split(".")
    for name in parents:
        holder = holder.setdefault(name[:-2], [{}])[0] if name.endswith("[]") else holder.setdefault(name, {})
    holder["relay.run" if leaf == "*" else leaf] = MARK
    return record


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def observed(row: FieldRow, policy: Policy) -> str:
    """What ``redact`` makes of a mark in the field."""
    found = leaves(redact(record_with(row.scope, row.path), policy))
    if MARK in found:
        return "as is"
    return "digested" if any(policy.digest(MARK) in (leaf, f"hmac-sha256:{leaf}") for leaf in found) else "dropped"


@pytest.mark.parametrize("profile", PROFILES)
def test_the_report_says_of_every_field_what_redaction_does(profile: Profile) -> None:
    rows = privacy_report(Outlet(profile, has_public_repos=False))
    assert [(row.scope, row.path) for row in rows] == [
        (s, p) for s, fields in TRACE_FIELD_PRIVACY.items() for p in fields
    ]
    policy = Policy(KEY, (), profile)
    for row in rows:
        if row.path in {"kind", "artifactKind"}:
            assert row.effect == "as is"
        elif row.effect == "depends":
            assert row.field_class in {"mcp-local", "actor", "actor-digest"}
            assert row.rule
        else:
            assert (row.path, observed(row, policy)) == (row.path, row.effect)
        assert row.field_class == PROFILE_CLASSES[profile][row.scope][row.path]


def test_public_fields_depend_on_the_repository_only_where_there_are_public_ones() -> None:
    none, some = (privacy_report(Outlet("normal", has_public_repos=flag)) for flag in (False, True))
    public = [index for index, row in enumerate(none) if row.field_class == "public"]
    assert len(public) > 10
    assert {(none[index].effect, none[index].rule) for index in public} == {("digested", "no public_repos")}
    assert {some[index].effect for index in public} == {"depends"}
    assert [row for index, row in enumerate(none) if index not in public] == [
        row for index, row in enumerate(some) if index not in public
    ]


def test_the_difference_of_the_profiles_is_what_the_strict_one_changes() -> None:
    changed = privacy_difference(Outlet("normal", has_public_repos=True), Outlet("strict", has_public_repos=True))
    assert {(one.scope, one.path) for one in changed} == {
        ("run", "paramsSha256"),
        ("artifact.commit", "branch"),
        ("artifact.commit", "reverts"),
        ("artifact.file", "commit"),
        ("attempt", "signal"),
        ("attempt", "promptSha256"),
        ("attempt", "outputSha256"),
        ("gate", "decidedBy"),
        ("gate", "promptSha256"),
        ("gate", "payloadSha256"),
        ("artifact.pr", "state"),
    }
    assert privacy_difference(Outlet("strict", has_public_repos=True), Outlet("strict", has_public_repos=True)) == []


def test_without_redaction_everything_leaves_and_nothing_has_a_class() -> None:
    rows = privacy_report(Outlet(None, has_public_repos=False))
    assert {(row.effect, row.field_class, row.rule) for row in rows} == {("as is", None, "")}
    assert len(rows) == sum(map(len, TRACE_FIELD_PRIVACY.values()))
