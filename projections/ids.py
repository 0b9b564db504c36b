"""Ids of trace records: pure functions of source ids, and the grammar of each.

An id encodes each of its components, so two different sources never share one; human gates, commits, pull requests
and files keep their parts as the source wrote them, and their grammar keeps them apart (spec: titan 2).

Every ``…_SOURCE`` is an ECMAScript pattern, for JSON Schema and for reading; every ``…_PATTERN`` is its Python form
and is used with ``fullmatch`` only.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from projections.errors import ProjectionError
from projections.text import MAX_SAFE_INTEGER, SAFE_COMPONENT, ecma_pattern, encode_component, is_blank

ItemKind = Literal["turn", "call", "item", "response"]

_C = r"[^:\s]+"
_R = r"[^/\s#@:]+/[^/\s#@:]+"
_H40 = "[0-9a-f]{40}"
_ATTEMPT = rf"workflow:{_C}:{_C}:\d+:\d+"

SHA256_SOURCE = "^[0-9a-f]{64}$"
COMMIT_SHA_SOURCE = f"^{_H40}$"
REPO_SOURCE = f"^{_R}$"
RUN_ID_SOURCE = r"^\S+$"
ATTEMPT_ID_SOURCE = f"^{_ATTEMPT}$"
HUMAN_GATE_ID_SOURCE = r"^[^/\s]+/\S+$"
POLICY_GATE_ID_SOURCE = f"^{_ATTEMPT}#policy:{_C}:{_C}$"
GATE_ID_SOURCE = r"^\S+$"
CONVERSATION_REF_SOURCE = f"^conversation:{_C}:{_C}:{_C}$"
TURN_REF_SOURCE = f"^turn:{_C}:{_C}:{_C}:{_C}$"
CALL_ID_SOURCE = f"^(?:call|response):{_C}:{_C}:{_C}:{_C}$"
COMMIT_ID_SOURCE = f"^commit:{_R}@{_H40}$"
PR_ID_SOURCE = rf"^pr:{_R}#[1-9]\d*$"
FILE_ID_SOURCE = rf"^file:{_R}/\S.*@{_H40}$"
BRANCH_ID_SOURCE = r"^branch:\S+$"
COST_ID_SOURCE = r"^cost:(?:response|conversation):\S+$"
CORRELATION_KEY_SOURCE = r"^[a-z][a-z0-9-]{0,31}\.[a-z][a-z0-9_.-]{0,63}$"
ACTOR_SOURCE = r"^(?:human|policy|agent):\S+$"

SHA256_PATTERN = ecma_pattern(SHA256_SOURCE)
COMMIT_SHA_PATTERN = ecma_pattern(COMMIT_SHA_SOURCE)
REPO_PATTERN = ecma_pattern(REPO_SOURCE)
RUN_ID_PATTERN = ecma_pattern(RUN_ID_SOURCE)
ATTEMPT_ID_PATTERN = ecma_pattern(ATTEMPT_ID_SOURCE)
HUMAN_GATE_ID_PATTERN = ecma_pattern(HUMAN_GATE_ID_SOURCE)
POLICY_GATE_ID_PATTERN = ecma_pattern(POLICY_GATE_ID_SOURCE)
GATE_ID_PATTERN = ecma_pattern(GATE_ID_SOURCE)
CONVERSATION_REF_PATTERN = ecma_pattern(CONVERSATION_REF_SOURCE)
TURN_REF_PATTERN = ecma_pattern(TURN_REF_SOURCE)
CALL_ID_PATTERN = ecma_pattern(CALL_ID_SOURCE)
COMMIT_ID_PATTERN = ecma_pattern(COMMIT_ID_SOURCE)
PR_ID_PATTERN = ecma_pattern(PR_ID_SOURCE)
FILE_ID_PATTERN = ecma_pattern(FILE_ID_SOURCE)
BRANCH_ID_PATTERN = ecma_pattern(BRANCH_ID_SOURCE)
COST_ID_PATTERN = ecma_pattern(COST_ID_SOURCE)
CORRELATION_KEY_PATTERN = ecma_pattern(CORRELATION_KEY_SOURCE)
"""A correlation key, ``<prefix>.<name>``; to be used with ``fullmatch``."""

ACTOR_PATTERN = ecma_pattern(ACTOR_SOURCE)

_REPO_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*://[^/]+/|[^/@:]+@[^/:]+:)/*(?P<path>[^?#]+)", re.IGNORECASE)
_GATE_ITERATION = re.compile(r"(?P<step>.+):(?P<iteration>0|[1-9][0-9]{0,15})", re.DOTALL)


class ConversationIdentity(NamedTuple):
    """Scope of a native id: the harness that wrote it and the namespace (corpus, host, account) it is unique in."""

    harness: str
    namespace: str
    native_id: str


class AttemptParts(NamedTuple):
    """The decoded parts of an attempt id."""

    run: str
    step: str
    iteration: int
    attempt: int


Identity = ConversationIdentity | Mapping[str, Any]
"""A conversation's identity, as a tuple or as the sources' object with ``harness``, ``namespace``, ``nativeId``."""


def conversation_ref(identity: Identity) -> str:
    """Id of a conversation: ``conversation:<harness>:<namespace>:<native id>``.

    Raises ``blank_component`` or ``lone_surrogate``.
    """
    return f"conversation:{_scope(identity)}"


def conversation_item_ref(identity: Identity, kind: ItemKind, native_id: str) -> str:
    """Id of a turn, call, item or response of a conversation: ``<kind>:<harness>:<namespace>:<native id>:<item>``.

    Raises ``blank_component`` or ``lone_surrogate``.
    """
    return f"{kind}:{_scope(identity)}:{_component(native_id)}"


def response_claim(identity: ConversationIdentity, message_id: str, evidence: str) -> str:
    """Name of a response that several conversations of one harness and namespace may hold.

    Raises ``blank_component`` or ``lone_surrogate``.
    """
    scope = _namespace_of(identity.harness, identity.namespace)
    return f"response:{scope}:{_component(message_id)}:{_component(evidence)}"


@lru_cache(maxsize=4_096)
def split_conversation_ref(ref: str) -> ConversationIdentity | None:
    """Decoded identity of a conversation ref; None for a text outside the grammar."""
    if CONVERSATION_REF_PATTERN.fullmatch(ref) is None:
        return None
    parts = [_decode_component(part) for part in ref.split(":")[1:]]
    harness, namespace, native_id = parts
    if harness is None or namespace is None or native_id is None:
        return None
    return ConversationIdentity(harness, namespace, native_id)


def cost_id(identity: Identity, measurement: Mapping[str, Any]) -> str:
    """Id of a usage measurement: of its response for a delta, of its scope and epoch for a snapshot.

    The sequence stays out, so that a later snapshot replaces an earlier one. Raises ``blank_component`` or
    ``lone_surrogate``.
    """
    if measurement.get("kind") == "delta":
        return f"cost:{conversation_item_ref(identity, 'response', measurement.get('responseId', ''))}"
    parts = ":".join(_component(measurement.get(field)) for field in ("scope", "scopeId", "epoch"))
    return f"cost:{conversation_ref(identity)}:{parts}"


def attempt_id(run: str, step: str, iteration: int, attempt: int) -> str:
    """Id of an attempt, which is also the request key of its execution: ``workflow:<run>:<step>:<n>:<n>``.

    A blank run or step is not refused here; the id then fails ``ATTEMPT_ID_PATTERN``. Raises ``lone_surrogate``.
    """
    return f"workflow:{encode_component(run)}:{encode_component(step)}:{iteration}:{attempt}"


# Every row of an execution names its attempt again.
@lru_cache(maxsize=4_096)
def split_attempt_id(attempt_id: str) -> AttemptParts | None:
    """Decoded parts of an attempt id; None for a text outside the grammar or beyond what a record can hold."""
    if ATTEMPT_ID_PATTERN.fullmatch(attempt_id) is None:
        return None
    _, run, step, iteration, attempt = attempt_id.split(":")
    decoded_run, decoded_step = _decode_component(run), _decode_component(step)
    numbers = (_safe_integer(iteration), _safe_integer(attempt))
    if decoded_run is None or decoded_step is None or numbers[0] is None or numbers[1] is None:
        return None
    return AttemptParts(decoded_run, decoded_step, numbers[0], numbers[1])


def gate_id_for(run: str, step_key: str) -> str:
    """Id of a human gate: ``<run>/<step>`` or, for a later iteration, ``<run>/<step>:<n>``; nothing is encoded."""
    return f"{run}/{step_key}"


def memo_key(step_kind: str, step: str, iteration: int) -> str:
    """Key of a step's result in ``stepResults``: a dispatch always has its iteration, others from the second on."""
    return step if step_kind != "dispatch" and iteration == 0 else f"{step}:{iteration}"


def policy_gate_id(attempt: str, table: str, row: str) -> str:
    """Id of a policy decision: ``<attempt id>#policy:<table>:<row>``.

    Raises ``attempt_id_invalid``, ``blank_component`` or ``lone_surrogate``.
    """
    if not _matches(ATTEMPT_ID_PATTERN, attempt):
        raise ProjectionError("attempt_id_invalid")
    return f"{attempt}#policy:{_component(table)}:{_component(row)}"


def split_policy_gate_id(gate_id: str) -> tuple[str, str, str] | None:
    """Attempt id, table and row (decoded) of a policy gate id; None for a text outside the grammar."""
    if POLICY_GATE_ID_PATTERN.fullmatch(gate_id) is None:
        return None
    # The grammar allows exactly six colons, and digits stand before the mark, so both cuts are unambiguous.
    head, table, row = gate_id.rsplit(":", 2)
    decoded_table, decoded_row = _decode_component(table), _decode_component(row)
    if decoded_table is None or decoded_row is None:
        return None
    return head.removesuffix("#policy"), decoded_table, decoded_row


def run_of_gate_id(gate_id: str) -> str | None:
    """Run id of a gate: of a policy gate that of its attempt, of a human gate the part before the first ``/``."""
    policy = split_policy_gate_id(gate_id)
    if policy is not None:
        attempt = split_attempt_id(policy[0])
        return None if attempt is None else attempt.run
    return gate_id.partition("/")[0] if HUMAN_GATE_ID_PATTERN.fullmatch(gate_id) else None


def split_gate_id(
    gate_id: str, known_steps: Collection[str], known_iterations: Collection[tuple[str, int]] = ()
) -> tuple[str, int] | None:
    """Step and iteration of a human gate id; None for a text outside the grammar.

    A step id may itself end in ``:2``, so the text alone does not decide: a (step, iteration) that exists does, then
    a known step id, then the last ``:n`` (spec: decisions, "Step and iteration of a gate id").
    """
    if HUMAN_GATE_ID_PATTERN.fullmatch(gate_id) is None:
        return None
    step = gate_id.partition("/")[2]
    match = _GATE_ITERATION.fullmatch(step)
    counted = None if match is None else (match["step"], int(match["iteration"]))
    for candidate in ((step, 0), counted):
        if candidate is not None and candidate in known_iterations:
            return candidate
    if counted is None or step in known_steps:
        return step, 0
    return counted


def commit_ref(repo: str, sha: str) -> str:
    """Id of a commit: ``commit:<owner/name>@<sha>``. Raises ``repo_invalid`` or ``sha_invalid``."""
    return f"commit:{_checked_repo(repo)}@{_checked_sha(sha)}"


def pr_ref(repo: str, number: int) -> str:
    """Id of a pull request: ``pr:<owner/name>#<number>``; as upstream, the parts are not checked."""
    return f"pr:{repo}#{number}"


def file_id(repo: str, path: str, sha: str) -> str:
    """Id of one version of a file: ``file:<owner/name>/<path>@<sha>``.

    Raises ``repo_invalid``, ``sha_invalid`` or ``path_invalid`` (empty, white space first, or a line end inside).
    """
    made = f"{file_ref(_checked_repo(repo), path)}@{_checked_sha(sha)}"
    if FILE_ID_PATTERN.fullmatch(made) is None:
        raise ProjectionError("path_invalid")
    return made


def file_ref(repo: str | None, path: str) -> str:
    """Reference of a file without a version: ``file:<owner/name>/<path>``, or ``file:<path>`` without a repository."""
    return f"file:{repo}/{path}" if repo else f"file:{path}"


def branch_ref(repo: str | None, branch: str) -> str:
    """Reference of a branch: ``branch:<owner/name>/<branch>``, or ``branch:<branch>`` without a repository."""
    return f"branch:{repo}/{branch}" if repo else f"branch:{branch}"


def correlation_key(prefix: str, name: str) -> str:
    """Key of a correlation: ``<prefix>.<name>``. Raises ``correlation_key_invalid``."""
    key = f"{prefix}.{name}"
    if CORRELATION_KEY_PATTERN.fullmatch(key) is None:
        raise ProjectionError("correlation_key_invalid")
    return key


def normalize_repo(text: str) -> str:
    """``owner/name`` in lower case, from other case, with a ``.git`` suffix, or from a URL (https, ssh, scp form).

    Raises ``repo_invalid`` (spec: decisions, "Repository names and hashes in ids").
    """
    match = _REPO_URL.fullmatch(text)
    path = text if match is None else match["path"].strip("/")
    owner, _, name = path.lower().removesuffix("/").partition("/")
    return _checked_repo(f"{owner}/{name.removesuffix('.git') or name}")


def normalize_sha(text: str) -> str:
    """A full commit hash in lower case. Raises ``sha_invalid``, for an abbreviated hash too."""
    return _checked_sha(text.lower())


def _scope(identity: Identity) -> str:
    if isinstance(identity, tuple):
        return _scope_of(*identity)
    harness, namespace, native_id = (identity.get(field) for field in ("harness", "namespace", "nativeId"))
    if type(harness) is type(namespace) is type(native_id) is str:
        return _scope_of(harness, namespace, native_id)
    return ":".join(map(_component, (harness, namespace, native_id)))


# Every id of a conversation begins with the same three components.
@lru_cache(maxsize=4_096)
def _scope_of(harness: Any, namespace: Any, native_id: Any) -> str:
    return ":".join(map(_component, (harness, namespace, native_id)))


# Claims on responses of all conversations of a host begin with the same two.
@lru_cache(maxsize=1_024)
def _namespace_of(harness: Any, namespace: Any) -> str:
    return f"{_component(harness)}:{_component(namespace)}"


def _component(text: Any) -> str:
    # Most are UUIDs and plain words, which is checked at once and leaves nothing to ask.
    if isinstance(text, str) and SAFE_COMPONENT.fullmatch(text) is not None:
        return text
    # The text is encoded as it is, white space at its ends included; only the check trims it.
    if not isinstance(text, str) or is_blank(text):
        raise ProjectionError("blank_component")
    return encode_component(text)


def _checked_repo(repo: Any) -> str:
    if not _matches(REPO_PATTERN, repo):
        raise ProjectionError("repo_invalid")
    return str(repo)


def _checked_sha(sha: Any) -> str:
    if not _matches(COMMIT_SHA_PATTERN, sha):
        raise ProjectionError("sha_invalid")
    return str(sha)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _decode_component(text: str) -> str | None:
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None


def _safe_integer(digits: str) -> int | None:
    significant = digits.lstrip("0") or "0"
    # int() refuses thousands of digits, and a record no number beyond 2**53-1.
    return int(significant) if len(significant) <= 16 and int(significant) <= MAX_SAFE_INTEGER else None
