"""What of a trace record may leave: ``redact`` applies the class of every leaf field.

Rules for editing: what has no class never leaves: an unknown field, an object or list where a leaf is due, and a leaf
where an object is due are dropped whole, names and lengths included (spec: titan 7; decisions, "Redaction").
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from projections.canonical import digest_of_json
from projections.errors import ProjectionError
from projections.ids import CORRELATION_KEY_PATTERN
from projections.privacy_classes import (
    CLASS_TABLE_DIGESTS,
    PROFILE_CLASSES,
    TRACE_FIELD_PRIVACY,
    FieldClass,
    Profile,
)
from projections.records import Record, Scope, scope_of
from projections.text import js_text, utf8_of

__all__ = [
    "DIGEST_PREFIX",
    "LOCAL_MARK",
    "TRACE_FIELD_PRIVACY",
    "FieldClass",
    "Policy",
    "Profile",
    "redact",
    "redact_id",
    "redact_trace_record",
]

LOCAL_MARK: Final = "[local]"
"""Stands for each value of a map whose keys may leave and whose values may not."""

DIGEST_PREFIX: Final = "hmac-sha256:"
"""What a digested value begins with; 64 hexadecimal digits follow."""

# No storable text holds a NUL, so no value of a record can have the digest of this label.
_KEY_ID_LABEL: Final = b"trace-projector\x00key id"
_DIGEST_CACHE_ENTRIES: Final = 16_384


class Policy:
    """How one export redacts: its digest key, the repositories whose artifacts it may name, and its profile.

    Takes the key as text (its UTF-8 counts) or bytes and repositories as records spell them. Only a keyed hash state
    is kept of the key, and nothing shows it. Equal values get equal digests within exports that share a key.

    Raises ``empty_key``.
    """

    __slots__ = ("_digest", "fingerprint", "key_id", "plans", "profile", "public_repos")

    def __init__(self, key: str | bytes, public_repos: Collection[str] = (), profile: Profile = "normal") -> None:
        keyed = hmac.new(_key_bytes(key), digestmod=hashlib.sha256)
        self._digest: Callable[[str], str] = lru_cache(maxsize=_DIGEST_CACHE_ENTRIES)(_digester(keyed))
        self.public_repos = frozenset(public_repos)
        self.profile: Profile = profile
        self.plans: Mapping[Scope, Plans] = _PLANS[profile]
        self.key_id = _hmac_hex(keyed, _KEY_ID_LABEL)[:16]
        """Names the key in manifests without telling it: a digest under a label of its own."""
        self.fingerprint = digest_of_json(
            {
                "keyId": self.key_id,
                "publicRepos": sorted(self.public_repos),
                "classes": CLASS_TABLE_DIGESTS[profile],
            }
        )
        """Digest of everything that decides what this policy lets out; a sink stores it and compares."""

    def __repr__(self) -> str:
        return f"Policy(key_id={self.key_id!r}, public_repos={len(self.public_repos)}, profile={self.profile!r})"

    def digest(self, value: str | float | bool | None) -> str | None:  # noqa: FBT001 - a JSON scalar, not a switch
        """Keyed digest of a scalar's ECMAScript text, ``hmac-sha256:<hex>``; null stays null.

        So the number 17 and the text "17" share a digest. A lone surrogate counts as U+FFFD.
        """
        if value is None:
            return None
        return self._digest(js_text(value))


def _key_bytes(key: Any) -> bytes:
    if isinstance(key, str):
        key = utf8_of(key)
    if not isinstance(key, bytes) or not key:
        raise ProjectionError("empty_key")
    return key


def _digester(keyed: hmac.HMAC) -> Callable[[str], str]:
    def digest(text: str) -> str:
        return DIGEST_PREFIX + _hmac_hex(keyed, utf8_of(text))

    return digest


def _hmac_hex(keyed: hmac.HMAC, data: bytes) -> str:
    state = keyed.copy()
    state.update(data)
    return state.hexdigest()


Step: TypeAlias = Callable[[Any, Policy], Any]
"""Redacts one value of a known path; ``_DROP`` when nothing of it may leave."""

Plan: TypeAlias = Mapping[str, Step]
"""Steps of an object's keys; a key without one is dropped."""

_DROP: Final = object()

# Not ``dict | list``, which would be made anew for every value of every record.
_CONTAINERS: Final = (dict, list)


class Plans(NamedTuple):
    """What to do with a scope's records: when the ``public`` and ``mcp-local`` fields may leave, and when not."""

    open: Plan
    closed: Plan


def redact(record: Record, policy: Policy) -> Record:
    """What of a record may leave, as a new dict in the record's key order.

    Raises ``unknown_kind`` for anything that is no record of a known kind: its fields have no classes.
    """
    scope = scope_of(record)
    if scope is None:
        raise ProjectionError("unknown_kind")
    plans = policy.plans[scope]
    return _redact_object(record, plans.open if _is_open(scope, record, policy) else plans.closed, policy)


def redact_trace_record(record: Record, public_repos: Collection[str], key: str | bytes) -> Record:
    """Redact one record under a policy made for it alone; see ``redact``. Raises ``empty_key`` or ``unknown_kind``."""
    return redact(record, Policy(key, public_repos))


def redact_id(kind: str, record_id: str, repo: str | None, policy: Policy) -> str:
    """A record's id as ``redact`` lets it leave, from what a deletion knows: its kind and, for artifacts, its repo.

    Raises ``unknown_kind``.
    """
    field_class = _ID_CLASSES.get(kind)
    if field_class is None:
        raise ProjectionError("unknown_kind")
    if field_class == "export" or (field_class == "public" and repo in policy.public_repos):
        return record_id
    return str(policy.digest(record_id))


def _is_open(scope: Scope, record: Record, policy: Policy) -> bool:
    """Whether a record's ``public`` or ``mcp-local`` fields may leave; no scope has both."""
    if scope == "call":
        return not _is_mcp_call(record)
    repo = record.get("repo")
    return isinstance(repo, str) and repo in policy.public_repos


def _is_mcp_call(record: Record) -> bool:
    if record.get("callKind") != "tool":
        return False
    name, namespace = record.get("name"), record.get("namespace")
    # ECMAScript's truth: an empty list or object counts as a namespace.
    has_namespace = isinstance(namespace, _CONTAINERS) or bool(namespace)
    return has_namespace or (isinstance(name, str) and name.startswith("mcp__"))


def _redact_object(value: Record, plan: Plan, policy: Policy) -> Record:
    out: Record = {}
    for key, item in value.items():
        step = plan.get(key)
        if step is None:
            continue
        if step is _keep and type(item) is str:  # most fields of most records: not worth a call
            out[key] = item
            continue
        kept = step(item, policy)
        if kept is not _DROP:
            out[key] = kept
    return out


def _keep(value: Any, _policy: Policy) -> Any:
    return _DROP if isinstance(value, _CONTAINERS) else value


def _digest(value: Any, policy: Policy) -> Any:
    if type(value) is str:
        return policy._digest(value)  # noqa: SLF001  (most values are texts, and most texts come again soon)
    return _DROP if isinstance(value, _CONTAINERS) else policy.digest(value)


def _digest_agent(value: Any, policy: Policy) -> Any:
    if isinstance(value, str) and value.startswith("agent:"):
        return policy.digest(value)
    return _keep(value, policy)


def _digest_sha(value: Any, policy: Policy) -> Any:
    digested = _digest(value, policy)
    return digested.removeprefix(DIGEST_PREFIX) if isinstance(digested, str) else digested


def _digest_actor(value: Any, policy: Policy) -> Any:
    if not isinstance(value, str):
        return _digest(value, policy)
    kind, _, _who = value.partition(":")
    if kind == "policy":
        return value
    # The digest is that of the whole text, as everywhere else, so that actors join.
    return f"{kind}:{policy.digest(value)}" if kind in ("human", "agent") else policy.digest(value)


def _mark_values(value: Any, _policy: Policy) -> Any:
    if not isinstance(value, dict):
        return _DROP
    return {key: LOCAL_MARK for key in value if CORRELATION_KEY_PATTERN.fullmatch(key)}


def _public_reference(value: Any, policy: Policy) -> Any:
    """Keep what a public repository's artifact refers to, unless it names another repository that is not public."""
    if not isinstance(value, str):
        return _keep(value, policy)
    named = _REFERENCE.match(value)
    names = policy.public_repos
    is_public = named is not None and (named["commit"] in names or named["branch"] in names)
    # A branch without a repository is one of the artifact's own.
    is_own = named is None and value.startswith("branch:")
    return value if is_public or is_own else policy.digest(value)


def _object_step(plan: Plan) -> Step:
    def step(value: Any, policy: Policy) -> Any:
        return _redact_object(value, plan, policy) if isinstance(value, dict) else _DROP

    return step


def _list_step(plan: Plan) -> Step:
    def step(value: Any, policy: Policy) -> Any:
        if not isinstance(value, list):
            return _DROP
        kept = [_redact_object(item, plan, policy) for item in value if isinstance(item, dict)]
        return [item for item in kept if item]  # one of which nothing is known is dropped, like any unknown object

    return step


# A commit's id, or a branch's: what names a repository inside another one's artifact.
_REFERENCE: Final = re.compile(r"commit:(?P<commit>[^@]*)@|branch:(?P<branch>[^/]*/[^/]*)/")

_PUBLIC: Final = frozenset({"public", "public-reference"})
_OTHER_STEPS: Final[Mapping[FieldClass, Step]] = {
    "actor": _digest_agent,
    "sha-digest": _digest_sha,
    "actor-digest": _digest_actor,
    "public-reference": _public_reference,
}


def _leaf_step(field_class: FieldClass, *, is_open: bool) -> Step | None:
    if field_class == "digest" or (field_class in _PUBLIC and not is_open):
        return _digest
    if field_class in _OTHER_STEPS:
        return _OTHER_STEPS[field_class]
    if field_class == "local" or (field_class == "mcp-local" and not is_open):
        return None
    return _keep


def _plan(classes: Mapping[str, FieldClass], *, is_open: bool) -> Plan:
    """Compile the classes of one object: its leaves, then each nested object, list or map from its own leaves."""
    plan: dict[str, Step] = {}
    nested: dict[str, dict[str, FieldClass]] = {}
    for path, field_class in classes.items():
        head, dot, rest = path.partition(".")
        if dot:
            nested.setdefault(head, {})[rest] = field_class
            continue
        step = _leaf_step(field_class, is_open=is_open)
        if step is not None:
            plan[head] = step
    for head, inner in nested.items():
        if inner == {"*": "local"}:
            plan[head] = _mark_values
        elif head.endswith("[]"):
            plan[head.removesuffix("[]")] = _list_step(_plan(inner, is_open=is_open))
        else:
            plan[head] = _object_step(_plan(inner, is_open=is_open))
    return plan


_PLANS: Final[dict[Profile, dict[Scope, Plans]]] = {
    profile: {
        scope: Plans(_plan(classes, is_open=True), _plan(classes, is_open=False)) for scope, classes in table.items()
    }
    for profile, table in PROFILE_CLASSES.items()
}
_ID_CLASSES: Final[dict[str, FieldClass]] = {
    scope.partition(".")[0]: classes["id"] for scope, classes in TRACE_FIELD_PRIVACY.items()
}
