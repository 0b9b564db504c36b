"""What has to hold of a record for a report to read it, whether it is redacted or not.

A redacted record fits the grammars of ids no more and lacks what never leaves, so the models of ``records_models`` do
not fit it; everything that a report reads is checked here, and nothing else.
"""

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from projections.errors import ProjectionError
from projections.records import parse_trace_envelope
from projections.records_fields import Amount, Count, Flag, Text, Text1, Time

_LOOSE: Final = ConfigDict(extra="allow", strict=True)


@with_config(_LOOSE)
class _Run(TypedDict):
    workflowName: Text1
    status: Text1
    completedAt: NotRequired[Time | None]
    error: NotRequired[Text | None]


@with_config(_LOOSE)
class _Attempt(TypedDict):
    stepId: Text1
    stepKind: Text1
    iteration: Count
    attempt: Count
    completedAt: NotRequired[Time]
    outcome: NotRequired[Text1]
    phase: NotRequired[Text1]
    model: NotRequired[Text1]
    error: NotRequired[Text]


@with_config(_LOOSE)
class _Call(TypedDict):
    callKind: Literal["model", "tool"]
    conversation: Text1
    name: NotRequired[Text]
    isError: NotRequired[Flag | None]


@with_config(_LOOSE)
class _PolicyRule(TypedDict):
    table: Text1
    rowId: Text1


@with_config(_LOOSE)
class _Gate(TypedDict):
    gateKind: Literal["human", "policy"]
    status: NotRequired[Text1]
    verdict: NotRequired[Text1 | None]
    decidedBy: NotRequired[Text1]
    policyRule: NotRequired[_PolicyRule]
    resolvedAt: NotRequired[Time]
    expiresAt: NotRequired[Time]


@with_config(_LOOSE)
class _Tokens(TypedDict):
    input: NotRequired[Count | None]
    output: NotRequired[Count | None]
    cachedInput: NotRequired[Count | None]
    cacheWriteInput: NotRequired[Count | None]
    reasoningOutput: NotRequired[Count | None]
    total: NotRequired[Count | None]


@with_config(_LOOSE)
class _Amount(TypedDict):
    usd: Amount
    kind: Literal["estimate", "reported"]


@with_config(_LOOSE)
class _Delta(TypedDict):
    kind: Literal["delta"]
    responseId: Text1
    model: Text | None
    tokens: _Tokens
    cost: NotRequired[_Amount | None]
    source: Text1


@with_config(_LOOSE)
class _Snapshot(TypedDict):
    kind: Literal["snapshot"]
    scope: Literal["turn", "conversation"]
    scopeId: Text1
    epoch: Text1
    sequence: Count
    model: Text | None
    tokens: _Tokens
    cost: NotRequired[_Amount | None]
    source: Text1


@with_config(_LOOSE)
class _Cost(TypedDict):
    conversation: Text1
    measurement: Annotated[_Delta | _Snapshot, Field(discriminator="kind")]


_SHAPES: Final[dict[str, TypeAdapter[Any]]] = {
    "run": TypeAdapter(_Run),
    "attempt": TypeAdapter(_Attempt),
    "call": TypeAdapter(_Call),
    "gate": TypeAdapter(_Gate),
    "cost": TypeAdapter(_Cost),
}


def is_readable_record(value: Any) -> bool:
    """Whether a value is a trace record of which reports can read what they need."""
    try:
        record = parse_trace_envelope(value)
        if record["kind"] in _SHAPES:
            _SHAPES[record["kind"]].validate_python(record)
    except (ProjectionError, ValidationError):
        return False
    return True
