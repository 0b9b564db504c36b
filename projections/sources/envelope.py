"""From a Kafka message to an event: plain value, change-capture envelope, CloudEvent, or tombstone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from projections.decode import JSON_DEPTH_MAX
from projections.errors import ProjectionError
from projections.fields import native_text
from projections.sources.cloud_events import data_of, is_cloud_event, with_operation
from projections.sources.frames import decode_framed, is_framed
from projections.text import is_blank

_CHANGE_OPERATIONS = frozenset({"c", "u", "r", "d"})
_OTHER_OPERATIONS = frozenset({"t", "m"})


class Limits(NamedTuple):
    """How much one message may hold: facts, bytes of a native line, nesting of its JSON and of the line's."""

    facts_max: int = 10_000
    line_bytes_max: int = 4 * 2**20
    depth_max: int = JSON_DEPTH_MAX


DEFAULT_LIMITS: Final = Limits()


class Event(NamedTuple):
    """One parsed message.

    ``value`` is the new row, or None when a row was deleted; then ``before`` is the deleted row when the source gives
    it. ``key_id`` is the id in the message's key and ``key_row`` the fields beside it, both read only for deletions.
    ``source`` is (partition, offset), and ``limits`` bound what else is read out of a row.
    """

    value: Any
    before: Mapping[str, Any] | None
    key_id: str | None
    source: tuple[int, int]
    key_row: Mapping[str, Any] = MappingProxyType({})
    limits: Limits = DEFAULT_LIMITS


def read_event(
    key: bytes | None,
    value: bytes | None,
    source: tuple[int, int],
    key_fields: tuple[str, ...],
    limits: Limits = DEFAULT_LIMITS,
) -> Event | None:
    """Read one message; None for an envelope that carries no row (a truncation, a log message).

    Raises ProjectionError for a value that is not JSON, and for a deletion that names no id.
    """
    parsed = None if value is None else decode_framed(value, limits.depth_max)
    if parsed is not None and type(parsed) is not dict:
        raise ProjectionError("not_an_object")
    row = None if parsed is None else _payload(parsed)
    if row is not None and is_cloud_event(row):
        row = _carried(row, limits.depth_max)
    if row is None:
        return Event(None, None, *_read_key(key, key_fields, source))
    if not _is_change(row):
        return Event(row, None, None, source, limits=limits)
    if row["op"] in _OTHER_OPERATIONS:
        return None
    after = row.get("after")
    if row["op"] != "d":
        if not isinstance(after, Mapping):
            raise ProjectionError("not_an_object", "after")
        return Event(after, None, None, source, limits=limits)
    before = row.get("before")
    if before is not None and not isinstance(before, Mapping):
        raise ProjectionError("not_an_object", "before")
    named = None if before is None else _id_field(before, key_fields)
    if before is not None and (named is not None or not key):
        return Event(None, before, named, source, before)
    return Event(None, before, *_read_key(key, key_fields, source))


def _payload(parsed: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Take the payload out of a message that carries its schema beside it."""
    if parsed.keys() != {"schema", "payload"}:
        return parsed
    payload = parsed["payload"]
    if payload is not None and not isinstance(payload, Mapping):
        raise ProjectionError("not_an_object", "payload")
    return payload


def _carried(event: Mapping[str, Any], depth_max: int) -> Mapping[str, Any] | None:
    """Take the row out of a CloudEvent; null data is what a null value is."""
    data = data_of(event, depth_max)
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise ProjectionError("not_an_object", "data")
    row = _payload(data)
    return None if row is None else with_operation(row, event)


def _is_change(row: Mapping[str, Any]) -> bool:
    operation = row.get("op")
    return (
        isinstance(operation, str)
        and operation in _CHANGE_OPERATIONS | _OTHER_OPERATIONS
        and ("after" in row or "before" in row or operation in _OTHER_OPERATIONS)
    )


def _read_key(
    key: bytes | None, key_fields: tuple[str, ...], source: tuple[int, int]
) -> tuple[str | None, tuple[int, int], Mapping[str, Any]]:
    """Read the id in a message key: plain text, a JSON string, or the id field of a JSON object, and that object."""
    if not key_fields:
        return None, source, {}
    if not key:
        raise ProjectionError("missing_key")
    text: Any
    row: Mapping[str, Any] = {}
    if key.lstrip()[:1] in (b"{", b'"') or is_framed(key):
        text = decode_framed(key, field="key")
        if isinstance(text, Mapping):
            row = _payload(text) or {}
            text = _id_field(row, key_fields)
    else:
        try:
            text = key.decode()
        except UnicodeDecodeError:
            raise ProjectionError("invalid_key") from None
    if not isinstance(text, str) or is_blank(text):
        raise ProjectionError("invalid_key")
    return native_text(text, "key"), source, row


def _id_field(row: Mapping[str, Any], key_fields: tuple[str, ...]) -> str | None:
    for name in key_fields:
        found = row.get(name)
        if isinstance(found, str) and not is_blank(found):
            return found
    return None
