"""The contract of the transcripts topic as models: one native line, or one observation, of one conversation."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from projections.formats import FORMATS
from projections.records_fields import Amount, Count, Sha256, Text1, Time

Native = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\S"})]
"""An id of the source, kept as it is; anything but blank."""

Harness = Annotated[str, WithJsonSchema({"enum": sorted(name for name, one in FORMATS.items() if one.read_line)})]
Base64 = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "contentEncoding": "base64",
            "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
        }
    ),
]


class Conversation(TypedDict):
    """Which conversation an execution or an observation is of."""

    harness: Native
    namespace: Native
    nativeId: Native


class TranscriptSource(TypedDict):
    """Which conversation a line is of, and in which format; ``format`` is the harness's name unless it is given."""

    harness: Harness
    namespace: Native
    nativeId: Native
    sourceId: Native
    format: NotRequired[Harness]


class TranscriptLine(TypedDict):
    """One native line as text; its bytes are the text's UTF-8."""

    source: TranscriptSource
    byteOffset: Count
    line: str
    ordinal: NotRequired[Count]


class TranscriptBytes(TypedDict):
    """One native line as base64, where it is not valid UTF-8."""

    source: TranscriptSource
    byteOffset: Count
    lineB64: Base64
    ordinal: NotRequired[Count]


class ObservationId(TypedDict):
    """Where an observation stands in its source."""

    sourceId: Native
    byteOffset: Count
    subrecordIndex: Count


class ObservedLine(TypedDict):
    """The line that an observation was read from."""

    sourceId: Text1
    byteOffset: Count
    byteLength: Count
    contentHash: Sha256


class Evidence(TypedDict):
    """What an observation rests on."""

    line: ObservedLine


class ObservedItem(TypedDict):
    """A call, a turn or a response, by its own id."""

    nativeId: Native


class Observation(TypedDict):
    """What a reader has decoded of a line."""

    id: ObservationId
    conversation: Conversation
    timestamp: NotRequired[Time | None]
    turn: NotRequired[ObservedItem | None]


class CallObservation(Observation):
    """A tool was called."""

    kind: Literal["tool_call"]
    call: ObservedItem
    name: Text1
    namespace: NotRequired[str | None]
    evidence: Evidence


class ResultObservation(Observation):
    """A tool's result is known."""

    kind: Literal["tool_result"]
    call: ObservedItem
    isError: NotRequired[bool | None]
    evidence: NotRequired[Evidence | None]


class ObservedCost(TypedDict):
    """Money of a measurement, in USD."""

    usd: Amount
    kind: Literal["estimate", "reported"]


class ObservedUsage(TypedDict):
    """What every measurement has; tokens that are not known are null or absent."""

    model: NotRequired[str | None]
    tokens: dict[str, Count | None]
    cost: NotRequired[ObservedCost | None]
    source: Text1


class ObservedDelta(ObservedUsage):
    """What one response used."""

    kind: Literal["delta"]
    responseId: Native


class ObservedSnapshot(ObservedUsage):
    """A counter's reading."""

    kind: Literal["snapshot"]
    scope: Literal["turn", "conversation"]
    scopeId: Native
    epoch: Native
    sequence: Count


class UsageObservation(Observation):
    """Tokens or money were measured."""

    kind: Literal["usage"]
    response: NotRequired[ObservedItem | None]
    measurement: ObservedDelta | ObservedSnapshot
    evidence: NotRequired[Evidence | None]


OtherKind = Annotated[
    str, WithJsonSchema({"type": "string", "minLength": 1, "not": {"enum": ["tool_call", "tool_result", "usage"]}})
]


class OtherObservation(Observation):
    """Anything else, which means nothing to a trace."""

    kind: OtherKind
    evidence: NotRequired[Evidence | None]


class TranscriptObservation(TypedDict):
    """One observation; what stands beside it is not needed."""

    observation: CallObservation | ResultObservation | UsageObservation | OtherObservation
    source: NotRequired[dict[str, Any] | None]
