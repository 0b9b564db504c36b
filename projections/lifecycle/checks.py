"""The checks of single values that every transition is made of: texts, counts, times, identities, leases, terminals.

Each check raises for the first thing that is wrong. The order inside a check is the reference's, because the reason of
the first failure is what its users see.
"""

import math
from typing import Any

from projections.lifecycle.ecmascript import UNDEFINED, JsonObject, is_same, read, safe_integer
from projections.lifecycle.errors import invalid, ownership_lost
from projections.lifecycle.instants import instant_ms
from projections.lifecycle.phases import TERMINAL_EXECUTION_PHASES
from projections.text import is_blank

IDENTITY_FIELDS = ("harness", "namespace", "nativeId")
SURFACE_FIELDS = ("kind", "host", "nativeId", "owned")


def is_nonblank(value: Any) -> bool:
    """Say whether a value is a text in which something is left after trimming."""
    return isinstance(value, str) and not is_blank(value)


def require_nonblank(value: Any, field: str) -> None:
    """Refuse anything but a text that is not blank (``blank``)."""
    if not is_nonblank(value):
        raise invalid("blank", field)


def require_nonblank_if_given(value: Any, field: str) -> None:
    """Refuse a value that is there, null included, and is not a nonblank text (``blank``)."""
    if value is not UNDEFINED:
        require_nonblank(value, field)


def require_positive_integer(value: Any, field: str) -> None:
    """Refuse anything but an integer from 1 to 2**53 - 1 (``not_positive_integer``)."""
    number = safe_integer(value)
    if number is None or number < 1:
        raise invalid("not_positive_integer", field)


def require_nonnegative_integer(value: Any, field: str) -> None:
    """Refuse anything but an integer from 0 to 2**53 - 1 (``not_nonnegative_integer``)."""
    number = safe_integer(value)
    if number is None or number < 0:
        raise invalid("not_nonnegative_integer", field)


def require_time(value: Any, field: str) -> None:
    """Refuse a text that is blank (``blank``) or no ISO 8601 time (``not_a_timestamp``)."""
    require_nonblank(value, field)
    if math.isnan(instant_ms(value)):
        raise invalid("not_a_timestamp", field)


def require_object(value: Any, field: str) -> JsonObject:
    """Give a value that is a JSON object; refuse lists and everything else (``not_an_object``)."""
    if not isinstance(value, dict):
        raise invalid("not_an_object", field)
    return value


def require_identity(value: Any, field: str) -> JsonObject:
    """Give a value that has the shape of a conversation identity."""
    identity = require_object(value, field)
    for name in IDENTITY_FIELDS:
        require_nonblank(read(identity, name), f"{field}.{name}")
    return identity


def require_conversation(value: Any, harness: Any) -> JsonObject:
    """Give a value that is a conversation identity of the execution's own harness."""
    conversation = require_identity(value, "conversation")
    if not is_same(conversation["harness"], harness):
        raise invalid("conversation_harness_mismatch")
    return conversation


def is_same_identity(left: Any, right: JsonObject) -> bool:
    """Compare two conversation identities by their three names; ``right`` has passed ``require_identity``."""
    return all(is_same(read(left, name), read(right, name)) for name in IDENTITY_FIELDS)


def require_surface(value: Any) -> JsonObject:
    """Give a value that is a surface identity: kind, host and native id as nonblank texts, ``owned`` as a boolean."""
    surface = require_object(value, "surface")
    for name in SURFACE_FIELDS[:-1]:
        require_nonblank(read(surface, name), f"surface.{name}")
    if not isinstance(read(surface, "owned"), bool):
        raise invalid("not_boolean", "surface.owned")
    return surface


def is_same_surface(left: Any, right: JsonObject) -> bool:
    """Compare two surface identities by their four fields; ``right`` has passed ``require_surface``."""
    return all(is_same(read(left, name), read(right, name)) for name in SURFACE_FIELDS)


def require_fence(value: Any) -> JsonObject:
    """Give a value that is a fence: supervisor and generation."""
    fence = require_object(value, "owner fence")
    require_nonblank(read(fence, "supervisorId"), "owner.supervisorId")
    require_positive_integer(read(fence, "generation"), "owner.generation")
    return fence


def require_lease(value: Any, occurred_at: str) -> JsonObject:
    """Give a value that is a lease reaching beyond the event (whole milliseconds)."""
    require_object(value, "owner lease")
    lease = require_fence(value)
    until = read(lease, "leaseUntil")
    require_time(until, "owner.leaseUntil")
    if instant_ms(until) <= instant_ms(occurred_at):
        raise ownership_lost("lease_not_beyond_event")
    return lease


def require_terminal(value: Any) -> JsonObject:
    """Give a value that is the terminal of a ``finish``; fields that an outcome does not name are not looked at."""
    outcome = read(value, "outcome") if isinstance(value, dict) else UNDEFINED
    if outcome not in TERMINAL_EXECUTION_PHASES:
        raise invalid("terminal_outcome_unknown")
    terminal: JsonObject = value
    if outcome == "succeeded":
        # Null and false are results; only a missing one is not.
        if "result" not in terminal:
            raise invalid("result_missing")
    elif outcome == "ended":
        _require_ended(terminal)
    else:
        require_nonblank(read(terminal, "reason"), "terminal.reason")
        if outcome == "failed" and not isinstance(read(terminal, "retryable"), bool):
            raise invalid("not_boolean", "terminal.retryable")
        if outcome == "cancellation_unknown":
            require_nonblank(read(terminal, "evidence"), "terminal.evidence")
    return terminal


def _require_ended(terminal: JsonObject) -> None:
    require_nonblank(read(terminal, "evidence"), "terminal.evidence")
    if "exit" in terminal:
        require_process_exit(terminal["exit"])


def require_process_exit(value: Any) -> None:
    """Refuse anything but an exit of a process: both keys are required, each may be null."""
    process_exit = require_object(value, "terminal.exit")
    code, signal = read(process_exit, "code"), read(process_exit, "signal")
    if code is not None and safe_integer(code) is None:
        raise invalid("not_integer_or_null", "terminal.exit.code")
    if signal is not None and not isinstance(signal, str):
        raise invalid("not_string_or_null", "terminal.exit.signal")
