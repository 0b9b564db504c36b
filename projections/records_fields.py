"""Scalars of trace records: what each field's value must be, with the issue codes of the reference.

The validators are plain functions because two rules are out of pydantic's reach: text may hold lone surrogates, and
lengths count UTF-16 units (spec: titan 1 and 6). Each carries its JSON Schema, patterns in ECMAScript.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from projections import ids
from projections.text import MAX_SAFE_INTEGER, TIME_PATTERN, TIME_SOURCE, utf16_length

CORRELATIONS_MAX = 32
CORRELATION_LENGTH_MAX = 512

ISSUE_CODES = frozenset({"invalid_type", "invalid_format", "too_small", "too_big", "invalid_key", "custom"})
"""Codes that the validators of this module raise."""


def _issue(code: str) -> PydanticCustomError:
    return PydanticCustomError(code, code)


def _check_text(value: Any) -> str:
    if type(value) is not str:
        raise _issue("invalid_type")
    return value


def _check_text1(value: Any) -> str:
    if type(value) is not str:
        raise _issue("invalid_type")
    if not value:
        raise _issue("too_small")
    return value


def _check_correlation_value(value: Any) -> str:
    text = _check_text1(value)
    if utf16_length(text) > CORRELATION_LENGTH_MAX:
        raise _issue("too_big")
    return text


def _check_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _issue("invalid_type")
    return value


def _check_amount(value: Any) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):
        raise _issue("invalid_type")
    if value < 0:
        raise _issue("too_small")
    return value  # type: ignore[no-any-return]  # narrowed by the set above


def _format_check(pattern: re.Pattern[str], code: str = "invalid_format") -> Callable[[Any], str]:
    fits = pattern.fullmatch

    def check(value: Any) -> str:
        if type(value) is not str:
            raise _issue("invalid_type")
        if fits(value) is None:
            raise _issue(code)
        return value

    return check


def _integer_check(minimum: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        # JSON has one kind of number: 1.0 and 1e2 are integers, and are integers from here on.
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise _issue("invalid_type")
        if value > MAX_SAFE_INTEGER:
            raise _issue("too_big")
        if value < minimum:
            raise _issue("too_small")
        return value

    return check


def _check_correlations(value: dict[str, str]) -> dict[str, str]:
    if len(value) > CORRELATIONS_MAX:
        raise _issue("custom")
    # The keys are ASCII by their grammar, so this is their UTF-16 order too.
    return dict(sorted(value.items()))


def _matching(source: str) -> dict[str, str]:
    return {"type": "string", "pattern": source}


Text = Annotated[str, PlainValidator(_check_text), WithJsonSchema({"type": "string"})]
Text1 = Annotated[str, PlainValidator(_check_text1), WithJsonSchema({"type": "string", "minLength": 1})]
Flag = Annotated[bool, PlainValidator(_check_bool), WithJsonSchema({"type": "boolean"})]
Amount = Annotated[float, PlainValidator(_check_amount), WithJsonSchema({"type": "number", "minimum": 0})]
Count = Annotated[
    int,
    PlainValidator(_integer_check(0)),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}),
]
Positive = Annotated[
    int,
    PlainValidator(_integer_check(1)),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_SAFE_INTEGER}),
]
Time = Annotated[str, PlainValidator(_format_check(TIME_PATTERN)), WithJsonSchema(_matching(TIME_SOURCE))]
Sha256 = Annotated[str, PlainValidator(_format_check(ids.SHA256_PATTERN)), WithJsonSchema(_matching(ids.SHA256_SOURCE))]
CommitSha = Annotated[
    str, PlainValidator(_format_check(ids.COMMIT_SHA_PATTERN)), WithJsonSchema(_matching(ids.COMMIT_SHA_SOURCE))
]
Repo = Annotated[str, PlainValidator(_format_check(ids.REPO_PATTERN)), WithJsonSchema(_matching(ids.REPO_SOURCE))]
Actor = Annotated[str, PlainValidator(_format_check(ids.ACTOR_PATTERN)), WithJsonSchema(_matching(ids.ACTOR_SOURCE))]
RunId = Annotated[str, PlainValidator(_format_check(ids.RUN_ID_PATTERN)), WithJsonSchema(_matching(ids.RUN_ID_SOURCE))]
AttemptId = Annotated[
    str, PlainValidator(_format_check(ids.ATTEMPT_ID_PATTERN)), WithJsonSchema(_matching(ids.ATTEMPT_ID_SOURCE))
]
GateId = Annotated[
    str, PlainValidator(_format_check(ids.GATE_ID_PATTERN)), WithJsonSchema(_matching(ids.GATE_ID_SOURCE))
]
ConversationRef = Annotated[
    str,
    PlainValidator(_format_check(ids.CONVERSATION_REF_PATTERN)),
    WithJsonSchema(_matching(ids.CONVERSATION_REF_SOURCE)),
]
TurnRef = Annotated[
    str, PlainValidator(_format_check(ids.TURN_REF_PATTERN)), WithJsonSchema(_matching(ids.TURN_REF_SOURCE))
]
CallId = Annotated[
    str, PlainValidator(_format_check(ids.CALL_ID_PATTERN)), WithJsonSchema(_matching(ids.CALL_ID_SOURCE))
]
CommitId = Annotated[
    str, PlainValidator(_format_check(ids.COMMIT_ID_PATTERN)), WithJsonSchema(_matching(ids.COMMIT_ID_SOURCE))
]
PullRequestId = Annotated[
    str, PlainValidator(_format_check(ids.PR_ID_PATTERN)), WithJsonSchema(_matching(ids.PR_ID_SOURCE))
]
FileId = Annotated[
    str, PlainValidator(_format_check(ids.FILE_ID_PATTERN)), WithJsonSchema(_matching(ids.FILE_ID_SOURCE))
]
BranchId = Annotated[
    str, PlainValidator(_format_check(ids.BRANCH_ID_PATTERN)), WithJsonSchema(_matching(ids.BRANCH_ID_SOURCE))
]
CostId = Annotated[
    str, PlainValidator(_format_check(ids.COST_ID_PATTERN)), WithJsonSchema(_matching(ids.COST_ID_SOURCE))
]
CorrelationKey = Annotated[
    str,
    PlainValidator(_format_check(ids.CORRELATION_KEY_PATTERN, "invalid_key")),
    WithJsonSchema(_matching(ids.CORRELATION_KEY_SOURCE)),
]
CorrelationValue = Annotated[
    str,
    PlainValidator(_check_correlation_value),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": CORRELATION_LENGTH_MAX}),
]
Correlations = Annotated[
    dict[CorrelationKey, CorrelationValue],
    AfterValidator(_check_correlations),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": CORRELATIONS_MAX,
            "propertyNames": _matching(ids.CORRELATION_KEY_SOURCE),
            "additionalProperties": {"type": "string", "minLength": 1, "maxLength": CORRELATION_LENGTH_MAX},
        }
    ),
]
