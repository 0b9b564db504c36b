"""The privacy class of every leaf field of a trace record, per profile: what of a record may leave, as tables.

Rules for editing: every leaf of every model in ``records_models`` stands in ``TRACE_FIELD_PRIVACY`` and nothing else
does (a test walks both); a field that holds an unkeyed hash or a person stands in ``STRICTER`` too (another test).
"""

from typing import Final, Literal

from projections.canonical import digest_of_json
from projections.records import Scope

FieldClass = Literal[
    "export", "digest", "public", "local", "mcp-local", "actor", "sha-digest", "actor-digest", "public-reference"
]
"""``export`` leaves as it is; ``digest`` as a keyed digest; ``public`` as it is for a public repository and else as a
digest; ``local`` never; ``mcp-local`` is the name of a tool, which stays here if an MCP server offers the tool;
``actor`` leaves as it is unless it names an agent, which is digested.

Of the strict profile alone: ``sha-digest`` leaves as the 64 hexadecimal digits of its keyed digest, the form that a
hash has; ``actor-digest`` keeps whether a person, an agent or a policy acted, and digests who, except a policy;
``public-reference`` is ``public``, but what names another repository that is not public is digested."""

Profile = Literal["normal", "strict"]
"""``normal`` redacts as the reference does; ``strict`` digests what the reference lets out and can be guessed."""

_ENVELOPE: Final[dict[str, FieldClass]] = {
    "schema": "export",
    "kind": "export",
    "runId": "export",
    "at": "export",
}
_STEP_ENVELOPE: Final[dict[str, FieldClass]] = {**_ENVELOPE, "attemptId": "export"}
_SPAN: Final[dict[str, FieldClass]] = {
    "span.sourceId": "digest",
    "span.byteOffset": "export",
    "span.byteLength": "export",
    "span.contentHash": "local",
}

TRACE_FIELD_PRIVACY: Final[dict[Scope, dict[str, FieldClass]]] = {
    "run": {
        **_ENVELOPE,
        "id": "export",
        "workflowName": "export",
        "status": "export",
        "completedAt": "export",
        "error": "local",
        "correlations.*": "local",
        "paramsSha256": "export",
    },
    "attempt": {
        **_ENVELOPE,
        "id": "export",
        "stepId": "export",
        "iteration": "export",
        "attempt": "export",
        "stepKind": "export",
        "executionId": "digest",
        "phase": "export",
        "outcome": "export",
        "retryable": "export",
        "error": "local",
        "signal": "export",
        "runnerRef": "digest",
        "agentId": "digest",
        "conversation": "digest",
        "model": "export",
        "completedAt": "export",
        "usage.costUsd": "export",
        "usage.inputTokens": "export",
        "usage.outputTokens": "export",
        "recovery.kind": "export",
        "recovery.observedAt": "export",
        "promptSha256": "export",
        "outputSha256": "export",
    },
    "call": {
        **_STEP_ENVELOPE,
        **_SPAN,
        "id": "digest",
        "callKind": "export",
        "name": "mcp-local",
        "namespace": "digest",
        "conversation": "digest",
        "turn": "digest",
        "isError": "export",
    },
    "gate": {
        **_STEP_ENVELOPE,
        "id": "export",
        "gateKind": "export",
        "status": "export",
        "verdict": "export",
        "decidedBy": "actor",
        "policyRule.table": "export",
        "policyRule.rowId": "export",
        "policyRule.version": "export",
        "resolvedAt": "export",
        "expiresAt": "export",
        "reason": "local",
        "promptSha256": "export",
        "payloadSha256": "export",
    },
    "artifact.commit": {
        **_STEP_ENVELOPE,
        **_SPAN,
        "id": "public",
        "artifactKind": "export",
        "repo": "public",
        "sha": "public",
        "branch": "public",
        "reverts": "public",
    },
    "artifact.pr": {
        **_STEP_ENVELOPE,
        **_SPAN,
        "id": "public",
        "artifactKind": "export",
        "repo": "public",
        "number": "public",
        "state": "export",
        "mergedAt": "export",
        "closedAt": "export",
        "reviewRounds": "export",
        "checks": "export",
    },
    "artifact.file": {
        **_STEP_ENVELOPE,
        **_SPAN,
        "id": "public",
        "artifactKind": "export",
        "repo": "public",
        "path": "public",
        "commit": "public",
        "lines[].lineStart": "public",
        "lines[].lineEnd": "public",
    },
    "cost": {
        **_STEP_ENVELOPE,
        **_SPAN,
        "id": "digest",
        "conversation": "digest",
        "measurement.kind": "export",
        "measurement.responseId": "digest",
        "measurement.scope": "export",
        "measurement.scopeId": "digest",
        "measurement.epoch": "digest",
        "measurement.sequence": "export",
        "measurement.model": "export",
        "measurement.tokens.input": "export",
        "measurement.tokens.output": "export",
        "measurement.tokens.cachedInput": "export",
        "measurement.tokens.cacheWriteInput": "export",
        "measurement.tokens.reasoningOutput": "export",
        "measurement.tokens.total": "export",
        "measurement.cost.usd": "export",
        "measurement.cost.kind": "export",
        "measurement.source": "export",
    },
}
"""Class of every leaf field per scope; ``.*`` is any key of a map, ``[]`` any element of a list."""

STRICTER: Final[dict[Scope, dict[str, FieldClass]]] = {
    "run": {"paramsSha256": "sha-digest"},
    "attempt": {"signal": "digest", "promptSha256": "sha-digest", "outputSha256": "sha-digest"},
    "gate": {"decidedBy": "actor-digest", "promptSha256": "sha-digest", "payloadSha256": "sha-digest"},
    "artifact.commit": {"branch": "public-reference", "reverts": "public-reference"},
    "artifact.pr": {"state": "digest"},
    "artifact.file": {"commit": "public-reference"},
}
"""What the strict profile does otherwise: an unkeyed hash of a text that can be guessed tells the text, people are
named by nothing but digests, free text of other systems does not leave as it is, and an artifact of a public repository
names no other one. Where a field has a format, its
digest has it too, so whatever parses under the normal profile parses under this one."""

PROFILE_CLASSES: Final[dict[Profile, dict[Scope, dict[str, FieldClass]]]] = {
    "normal": TRACE_FIELD_PRIVACY,
    "strict": {scope: {**classes, **STRICTER.get(scope, {})} for scope, classes in TRACE_FIELD_PRIVACY.items()},
}
"""The class table of each profile."""

CLASS_TABLE_DIGESTS: Final[dict[Profile, str]] = {
    profile: digest_of_json(classes) for profile, classes in PROFILE_CLASSES.items()
}
"""Names the version of each class table."""
