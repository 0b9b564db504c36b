"""What leaves under a policy, field by field: generated from the class tables, so that it says what ``redact`` does."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from projections.privacy_classes import PROFILE_CLASSES, FieldClass, Profile
from projections.records import Scope

Effect = Literal["as is", "digested", "dropped", "depends"]
"""What becomes of a field's value; ``depends`` on the record, by the rule that stands beside it."""


class Outlet(NamedTuple):
    """What a policy lets out, as far as the report tells it; ``profile`` is None where nothing is redacted."""

    profile: Profile | None
    has_public_repos: bool


class FieldRow(NamedTuple):
    """One leaf field: its scope and path, its class (None where nothing is redacted), what becomes of it, and how."""

    scope: Scope
    path: str
    field_class: FieldClass | None
    effect: Effect
    rule: str


class FieldDifference(NamedTuple):
    """One leaf field of which two policies make different things."""

    scope: Scope
    path: str
    before: FieldRow
    after: FieldRow


_EFFECTS: Final[Mapping[FieldClass, tuple[Effect, str]]] = {
    "export": ("as is", ""),
    "digest": ("digested", ""),
    "public": ("depends", "as is for public_repos, else digested"),
    "local": ("dropped", ""),
    "mcp-local": ("depends", "dropped for tools of MCP servers, else as is"),
    "actor": ("depends", "agents digested, else as is"),
    "sha-digest": ("digested", "in the form of a hash"),
    "public-reference": ("depends", "as is for public_repos unless it names another repository, else digested"),
    "actor-digest": ("depends", "policies as is, of people and agents who they are digested"),
}
_NO_PUBLIC_REPOS: Final[tuple[Effect, str]] = ("digested", "no public_repos")
_MAP_VALUES: Final[tuple[Effect, str]] = ("dropped", "keys leave as they are")


def privacy_report(outlet: Outlet) -> list[FieldRow]:
    """Say of every leaf field that a record may have what becomes of it, in the order of the class table."""
    table = PROFILE_CLASSES[outlet.profile or "normal"]
    return [_row(outlet, scope, path, table[scope][path]) for scope in table for path in table[scope]]


def privacy_difference(before: Outlet, after: Outlet) -> list[FieldDifference]:
    """Name the fields of which two policies make different things."""
    pairs = zip(privacy_report(before), privacy_report(after), strict=True)
    return [
        FieldDifference(one.scope, one.path, one, other)
        for one, other in pairs
        if (one.effect, one.rule) != (other.effect, other.rule)
    ]


def _row(outlet: Outlet, scope: Scope, path: str, field_class: FieldClass) -> FieldRow:
    if outlet.profile is None:
        return FieldRow(scope, path, None, "as is", "")
    effect, rule = _EFFECTS[field_class]
    if field_class in ("public", "public-reference") and not outlet.has_public_repos:
        effect, rule = _NO_PUBLIC_REPOS
    elif path.endswith(".*"):
        effect, rule = _MAP_VALUES
    return FieldRow(scope, path, field_class, effect, rule)
