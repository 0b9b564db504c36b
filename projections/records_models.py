"""The six kinds of ``titan.trace/v1`` records, as pydantic reads them and as the rest of the code types them.

The models are TypedDicts: a record is a plain dict everywhere, and ``NotRequired`` says what JSON Schema and the
reference say, that a field may be absent and still never null. Fields stand in the order of a record's bytes
(spec: titan 6; decisions, "Bytes of a trace record"). Unknown keys are refused; the loose parse lifts that per call.
"""

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from projections.records_fields import (
    Actor,
    Amount,
    AttemptId,
    BranchId,
    CallId,
    CommitId,
    CommitSha,
    ConversationRef,
    Correlations,
    CostId,
    Count,
    FileId,
    Flag,
    GateId,
    Positive,
    PullRequestId,
    Repo,
    RunId,
    Sha256,
    Text,
    Text1,
    Time,
    TurnRef,
)

SCHEMA: Final = "titan.trace/v1"

Schema = Literal["titan.trace/v1"]
RecordKind = Literal["run", "attempt", "call", "gate", "artifact", "cost"]
RunStatus = Literal["running", "paused", "cancelling", "recovery_required", "completed", "failed", "cancelled"]
StepKind = Literal["dispatch", "seed", "assisted", "authorize"]
Phase = Literal[
    "prepared",
    "dispatching",
    "running",
    "cancel_requested",
    "recovery_required",
    "succeeded",
    "failed",
    "cancelled",
    "cancellation_unknown",
    "ended",
]
Outcome = Literal["succeeded", "failed", "cancelled", "cancellation_unknown", "recovery_required"]
RecoveryKind = Literal["legacy_unrecoverable", "not_found", "ownership_lost", "unknown"]
GateStatus = Literal["pending", "resolved", "cancelled", "expired"]
Verdict = Literal["allow", "deny", "revise"]
Checks = Literal["passing", "failing", "pending"]

_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
class Span(TypedDict):
    """Where in a transcript source a record comes from: one line, by byte offset and length without its newline."""

    sourceId: Text1
    byteOffset: Count
    byteLength: Count
    contentHash: Sha256


@with_config(_STRICT)
class RunRecord(TypedDict):
    """One workflow run."""

    schema: Schema
    kind: Literal["run"]
    id: RunId
    runId: Text1
    at: Time
    workflowName: Text1
    status: RunStatus
    completedAt: NotRequired[Time | None]
    error: NotRequired[Text | None]
    correlations: NotRequired[Correlations]
    paramsSha256: NotRequired[Sha256]


@with_config(_STRICT)
class AttemptUsage(TypedDict):
    """What an attempt spent, in USD and tokens."""

    costUsd: Amount
    inputTokens: NotRequired[Count]
    outputTokens: NotRequired[Count]


@with_config(_STRICT)
class AttemptRecovery(TypedDict):
    """Why an attempt could not be followed, and when that was seen."""

    kind: RecoveryKind
    observedAt: Time


@with_config(_STRICT)
class AttemptRecord(TypedDict):
    """One attempt at one iteration of one step."""

    schema: Schema
    kind: Literal["attempt"]
    id: AttemptId
    runId: Text1
    at: Time
    stepId: Text1
    iteration: Count
    attempt: Count
    stepKind: StepKind
    executionId: NotRequired[Text1]
    phase: NotRequired[Phase]
    outcome: NotRequired[Outcome]
    retryable: NotRequired[Flag]
    error: NotRequired[Text]
    signal: NotRequired[Text | None]
    runnerRef: NotRequired[Text1]
    agentId: NotRequired[Text | None]
    conversation: NotRequired[ConversationRef]
    model: NotRequired[Text1]
    completedAt: NotRequired[Time]
    usage: NotRequired[AttemptUsage]
    recovery: NotRequired[AttemptRecovery]
    promptSha256: NotRequired[Sha256]
    outputSha256: NotRequired[Sha256]


@with_config(_STRICT)
class CallRecord(TypedDict):
    """One model response or tool call of a transcript."""

    schema: Schema
    kind: Literal["call"]
    id: CallId
    runId: Text1
    attemptId: NotRequired[AttemptId]
    at: Time
    callKind: Literal["model", "tool"]
    name: Text1
    namespace: NotRequired[Text | None]
    conversation: ConversationRef
    turn: NotRequired[TurnRef]
    isError: NotRequired[Flag | None]
    span: Span


@with_config(_STRICT)
class PolicyRule(TypedDict):
    """The row of a rule table that decided."""

    table: Text1
    rowId: Text1
    version: Count


@with_config(_STRICT)
class GateRecord(TypedDict):
    """One human gate or one policy decision; its id must fit the grammar of its gate kind."""

    schema: Schema
    kind: Literal["gate"]
    id: GateId
    runId: Text1
    attemptId: NotRequired[AttemptId]
    at: Time
    gateKind: Literal["human", "policy"]
    status: NotRequired[GateStatus]
    verdict: NotRequired[Verdict | None]
    decidedBy: NotRequired[Actor]
    policyRule: NotRequired[PolicyRule]
    resolvedAt: NotRequired[Time]
    expiresAt: NotRequired[Time]
    reason: NotRequired[Text]
    promptSha256: NotRequired[Sha256]
    payloadSha256: NotRequired[Sha256]


@with_config(_STRICT)
class CommitRecord(TypedDict):
    """One commit."""

    schema: Schema
    kind: Literal["artifact"]
    id: CommitId
    runId: Text1
    attemptId: NotRequired[AttemptId]
    at: Time
    artifactKind: Literal["commit"]
    repo: Repo
    sha: CommitSha
    branch: NotRequired[BranchId]
    reverts: NotRequired[CommitId]
    span: NotRequired[Span]


@with_config(_STRICT)
class PullRequestRecord(TypedDict):
    """One pull request."""

    schema: Schema
    kind: Literal["artifact"]
    id: PullRequestId
    runId: Text1
    attemptId: NotRequired[AttemptId]
    at: Time
    artifactKind: Literal["pr"]
    repo: Repo
    number: Positive
    state: NotRequired[Text | None]
    mergedAt: NotRequired[Time | None]
    closedAt: NotRequired[Time | None]
    reviewRounds: NotRequired[Count | None]
    checks: NotRequired[Checks | None]
    span: NotRequired[Span]


@with_config(_STRICT)
class LineRange(TypedDict):
    """Lines of a file, counted from 1; their order is not checked."""

    lineStart: Positive
    lineEnd: Positive


@with_config(_STRICT)
class FileRecord(TypedDict):
    """One version of a file."""

    schema: Schema
    kind: Literal["artifact"]
    id: FileId
    runId: Text1
    attemptId: NotRequired[AttemptId]
    at: Time
    artifactKind: Literal["file"]
    repo: Repo
    path: Text1
    commit: NotRequired[CommitId]
    lines: NotRequired[list[LineRange]]
    span: NotRequired[Span]


@with_config(_STRICT)
class TokenCounts(TypedDict):
    """Tokens of a measurement; null where the source does not say."""

    input: Count | None
    output: Count | None
    cachedInput: Count | None
    cacheWriteInput: Count | None
    reasoningOutput: Count | None
    total: Count | None


@with_config(_STRICT)
class Cost(TypedDict):
    """Money of a measurement, in USD."""

    usd: Amount
    kind: Literal["estimate", "reported"]


@with_config(_STRICT)
class DeltaMeasurement(TypedDict):
    """What one response used."""

    kind: Literal["delta"]
    responseId: Text1
    model: Text | None
    tokens: TokenCounts
    cost: Cost | None
    source: Text1


@with_config(_STRICT)
class SnapshotMeasurement(TypedDict):
    """A counter's reading, ordered by sequence within its reset epoch."""

    kind: Literal["snapshot"]
    scope: Literal["turn", "conversation"]
    scopeId: Text1
    epoch: Text1
    sequence: Count
    model: Text | None
    tokens: TokenCounts
    cost: Cost | None
    source: Text1


@with_config(_STRICT)
class CostRecord(TypedDict):
    """One usage measurement."""

    schema: Schema
    kind: Literal["cost"]
    id: CostId
    runId: Text1
    attemptId: NotRequired[AttemptId]
    at: Time
    conversation: ConversationRef
    measurement: Annotated[DeltaMeasurement | SnapshotMeasurement, Field(discriminator="kind")]
    span: NotRequired[Span]


@with_config(_STRICT)
class Envelope(TypedDict):
    """What every record has, whatever its kind."""

    schema: Schema
    kind: RecordKind
    id: Text1
    runId: Text1
    attemptId: NotRequired[AttemptId]
    at: Time


RECORD_MODELS: Final[dict[str, Any]] = {
    "run": RunRecord,
    "attempt": AttemptRecord,
    "call": CallRecord,
    "gate": GateRecord,
    "artifact.commit": CommitRecord,
    "artifact.pr": PullRequestRecord,
    "artifact.file": FileRecord,
    "cost": CostRecord,
}
"""Model of each scope: a record's kind and, for artifacts, its ``artifactKind``."""
