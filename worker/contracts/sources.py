"""The contracts of the source topics as models, from which their JSON Schemas are made; the projection is what reads.

A schema asks for what the projection needs and leaves everything else open: unknown fields are ignored and never
carried along. It is stricter than the projection in places, never looser: what it takes is projected. Beside what it
says, the projection takes rows as tables hold them (snake_case, JSON columns as text), envelopes with their schema
beside them, CloudEvents whose data is base64, and deletions.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NotRequired

from pydantic import ConfigDict, TypeAdapter, WithJsonSchema, with_config
from typing_extensions import TypedDict

from projections.ids import HUMAN_GATE_ID_SOURCE, POLICY_GATE_ID_SOURCE
from projections.lifecycle.phases import TRANSITION_KINDS
from projections.records import record_json_schema
from projections.records_fields import ConversationRef, Count, Positive, RunId, Sha256, Text1, Time
from projections.records_models import SCHEMA, GateStatus, Phase, RecoveryKind, RunStatus, StepKind
from projections.sources.cloud_events import REQUIRED_ATTRIBUTES, SPEC_VERSION
from projections.sources.gates import POLICY_VERDICTS
from worker.contracts.transcripts import Conversation, Native, TranscriptBytes, TranscriptLine, TranscriptObservation

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

IterationKey = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^(?:.*:)?[0-9]{1,15}$"})]
HumanGateId = Annotated[str, WithJsonSchema({"type": "string", "pattern": HUMAN_GATE_ID_SOURCE})]
PolicyGateId = Annotated[str, WithJsonSchema({"type": "string", "pattern": POLICY_GATE_ID_SOURCE})]
TransitionKind = Annotated[str, WithJsonSchema({"enum": list(TRANSITION_KINDS)})]
PolicyVerdict = Annotated[str | None, WithJsonSchema({"enum": [*POLICY_VERDICTS, None]})]
PolicyActor = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^(?:human|policy|agent):\S+$"})]


# -------------------------------------------------------------------------------------------------------- workflow-runs


class StepRecovery(TypedDict):
    """Why a step could not be followed, and when that was seen."""

    kind: RecoveryKind
    observedAt: Time


class ActiveStep(TypedDict):
    """A step that is under way; its iteration is a number of its own, or the end of ``iterKey`` (``<step>:<n>``)."""

    stepId: Native
    iteration: NotRequired[Count]
    iterKey: NotRequired[IterationKey]
    attempt: Count
    startedAt: Time
    runnerRef: NotRequired[str | None]
    prompt: NotRequired[Any]
    promptSha256: NotRequired[Sha256 | None]
    recovery: NotRequired[StepRecovery | None]


class StepResult(TypedDict):
    """A step that has ended; ``data`` may hold ``titan.trace.gates`` and ``titan.trace.artifacts``."""

    stepId: Native
    iteration: Count
    operation: NotRequired[StepKind | None]
    agentId: NotRequired[str | None]
    signal: NotRequired[str | None]
    completedAt: Time
    output: NotRequired[Any]
    outputSha256: NotRequired[Sha256 | None]
    prompt: NotRequired[Any]
    promptSha256: NotRequired[Sha256 | None]
    data: NotRequired[dict[str, Any] | None]


class WorkflowRun(TypedDict):
    """A snapshot of a workflow run; of two snapshots the one with the greater revision counts."""

    id: RunId
    revision: Count
    workflowName: Text1
    status: RunStatus
    startedAt: Time
    completedAt: NotRequired[Time | None]
    error: NotRequired[str | None]
    params: NotRequired[dict[str, Any] | None]
    paramsSha256: NotRequired[Sha256 | None]
    activeSteps: NotRequired[dict[str, ActiveStep] | list[ActiveStep] | None]
    stepResults: NotRequired[dict[str, StepResult] | list[StepResult] | None]


# ------------------------------------------------------------------------------------------------------- gate-decisions


# `class` is a word of Python's, so this one cannot be written as a class.
GateResolver = TypedDict("GateResolver", {"class": Text1, "id": Text1})


class GateRule(TypedDict):
    """The row of a rule table that a human gate was opened by; the version's leading number counts."""

    table: Text1
    ruleId: Text1
    version: Text1


class HumanGate(TypedDict):
    """A gate that a person settles; its id is ``<run id>/<step>``."""

    id: HumanGateId
    status: GateStatus
    createdAt: Time
    prompt: NotRequired[Any]
    promptSha256: NotRequired[Sha256 | None]
    payload: NotRequired[dict[str, Any] | None]
    payloadSha256: NotRequired[Sha256 | None]
    reason: NotRequired[str | None]
    resolvedAt: NotRequired[Time | None]
    expiresAt: NotRequired[Time | None]
    resolvedBy: NotRequired[GateResolver | None]
    rule: NotRequired[GateRule | None]


class PolicyRuleRow(TypedDict):
    """The row of a rule table that decided."""

    table: Native
    rowId: Native
    version: Count


class PolicyGate(TypedDict):
    """A policy's decision, as a complete gate record or as an evidence record."""

    id: PolicyGateId
    at: NotRequired[Time | None]
    status: NotRequired[GateStatus]
    verdict: NotRequired[PolicyVerdict]
    decidedBy: NotRequired[PolicyActor | None]
    policyRule: NotRequired[PolicyRuleRow | None]
    reason: NotRequired[str | None]
    resolvedAt: NotRequired[Time | None]
    expiresAt: NotRequired[Time | None]


# ------------------------------------------------------------------------------------------------------- ledger-changes


class Execution(TypedDict):
    """Which execution a record is of."""

    executionId: Native
    conversation: NotRequired[Conversation]


class ExecutionRecord(TypedDict):
    """An execution after a change; of two records the one with the greater revision counts."""

    execution: Execution
    harness: Native
    requestKey: Native
    target: dict[str, Any]
    phase: Phase
    revision: Positive
    ownerGeneration: Positive
    preparedAt: Time
    lastObservedAt: Time
    conversation: NotRequired[Conversation]
    promptSha256: NotRequired[Sha256 | None]


class Transition(TypedDict):
    """A change of an execution, by the revision that it was made on."""

    kind: TransitionKind
    executionId: Native
    eventId: Native
    expectedRevision: Count
    occurredAt: Time
    conversation: NotRequired[Conversation]


class LedgerRow(TypedDict):
    """A transition and the record after it, as one row; both are of one execution."""

    transition: Transition
    record: ExecutionRecord


# ------------------------------------------------------------------------------------------------------------- erasures


@with_config(ConfigDict(json_schema_extra={"not": {"required": ["conversation"]}}))
class RunErasure(TypedDict):
    """Makes everything about a run disappear for good, in every generation."""

    run: Native


@with_config(ConfigDict(json_schema_extra={"not": {"required": ["run"]}}))
class ConversationErasure(TypedDict):
    """Makes everything about a conversation disappear for good, in every generation."""

    conversation: ConversationRef


CONTRACTS: Final[Mapping[str, Any]] = {
    "workflow-runs": WorkflowRun,
    "gate-decisions": HumanGate | PolicyGate,
    "ledger-changes": LedgerRow | Transition | ExecutionRecord,
    "transcripts": TranscriptLine | TranscriptBytes | TranscriptObservation,
    "erasures": RunErasure | ConversationErasure,
}
"""The value of a message of each source, by the source's name."""


CHANGED: Final = ("workflow-runs", "gate-decisions", "ledger-changes")
"""Sources whose rows may come in a change-capture envelope."""


def json_schemas() -> dict[str, dict[str, Any]]:
    """Make every published JSON Schema: of trace records, and of each source's messages."""
    return {SCHEMA: record_json_schema(), **{name: _source_schema(name) for name in CONTRACTS}}


def _source_schema(source: str) -> dict[str, Any]:
    message = TypeAdapter(CONTRACTS[source]).json_schema()
    # A contract of one model is that model's own schema; it gets a name, too, so that an envelope can hold it.
    definitions = message.pop("$defs", {})
    row = {"$ref": "#/$defs/Message"}
    change = {
        "title": "Change",
        "description": "A row that was made, changed or read, as Debezium writes it.",
        "type": "object",
        "properties": {"op": {"enum": ["c", "u", "r"]}, "after": row},
        "required": ["op", "after"],
    }
    forms = [row, {"$ref": "#/$defs/Change"}] if source in CHANGED else [row]
    changes = {"Change": change} if source in CHANGED else {}
    attributes = {name: {"type": "string"} for name in REQUIRED_ATTRIBUTES}
    event = {
        "title": "CloudEvent",
        "description": "The same as the data of a CloudEvent in structured mode.",
        "type": "object",
        "properties": {
            **attributes,
            "specversion": {"const": SPEC_VERSION},
            "data": {"anyOf": forms},
            "data_base64": {"type": "null"},
        },
        "required": [*REQUIRED_ATTRIBUTES, "data"],
    }
    is_event = {"type": "object", "properties": attributes, "required": list(REQUIRED_ATTRIBUTES)}
    return {
        "$schema": DIALECT,
        "title": source,
        "anyOf": [*forms, {"$ref": "#/$defs/CloudEvent"}],
        # An object with all attributes of an event is one, whatever other fields it has.
        "if": is_event,
        "then": {"$ref": "#/$defs/CloudEvent"},
        "$defs": {"Message": message, **changes, "CloudEvent": event, **definitions},
    }
