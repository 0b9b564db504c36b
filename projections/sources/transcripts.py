"""The transcripts topic: one raw native line, or one observation, of one conversation."""

import base64
import binascii
import re
from functools import lru_cache
from typing import Any, NamedTuple

from projections.decode import JSON_DEPTH_MAX, decode_json
from projections.errors import ProjectionError
from projections.facts import Fact
from projections.fields import Row
from projections.formats import FORMATS
from projections.formats.assembly import line_key
from projections.formats.observation import read_observation
from projections.ids import ConversationIdentity, conversation_ref
from projections.sources.envelope import DEFAULT_LIMITS, Event
from projections.text import is_blank

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STRAY_BYTE = re.compile("[\udc80-\udcff]")

LINE_BYTES_MAX = DEFAULT_LIMITS.line_bytes_max


def project_event(event: Event) -> tuple[list[Fact], str | None, list[str]]:
    """Project one line or observation; a tombstone means nothing here."""
    if event.value is None:
        return [], "tombstone", []
    row = Row(event.value)
    if row.has("observation"):
        return _project_observation(row.row("observation"), row.row_or_none("source"))
    source = row.row("source")
    teller = _teller_of(source)
    line = _line_bytes(row, event.limits.line_bytes_max)
    ordinal = row.count("ordinal") if row.has("ordinal") else None
    body = _read_line(line, teller.read_line, ordinal, event.limits.depth_max)
    if isinstance(body, str):
        return [], body, []
    key = line_key(teller.format_name, source.native("sourceId"), row.count("byteOffset"))
    return [Fact(teller.aggregate, key, (), body)], None, []


class _Teller(NamedTuple):
    """Whose lines these are, and how they are read."""

    aggregate: str
    format_name: str
    read_line: Any


def _teller_of(source: Row) -> _Teller:
    get = source.value.get
    harness, namespace, native_id, format_name = get("harness"), get("namespace"), get("nativeId"), get("format")
    if type(harness) is type(namespace) is type(native_id) is type(format_name) is str:
        return _known_teller(harness, namespace, native_id, format_name)
    return _read_teller(source)


# The lines of a conversation come one after the other, and each says in full whose it is.
@lru_cache(maxsize=1_024)
def _known_teller(harness: str, namespace: str, native_id: str, format_name: str) -> _Teller:
    source = {"harness": harness, "namespace": namespace, "nativeId": native_id, "format": format_name}
    return _read_teller(Row(source, "source"))


def _read_teller(source: Row) -> _Teller:
    format_name = source.text_or_none("format") or source.text("harness")
    line_format = FORMATS.get(format_name)
    if line_format is None or line_format.read_line is None:
        raise ProjectionError("unknown_format", "source.format")
    return _Teller(conversation_ref(_identity(source)), format_name, line_format.read_line)


def _identity(row: Row) -> ConversationIdentity:
    return ConversationIdentity(row.native("harness"), row.native("namespace"), row.native("nativeId"))


def _line_bytes(row: Row, bytes_max: int) -> bytes:
    """Give the bytes of the native line: the text's UTF-8, or base64 where they are not valid UTF-8."""
    encoded = row.raw("lineB64")
    if encoded is not None:
        if not isinstance(encoded, str):
            raise row.refuse("lineB64")
        try:
            line = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise row.refuse("lineB64") from None
    else:
        text = row.raw("line")
        if not isinstance(text, str):
            raise row.refuse("line")
        try:
            line = text.encode()
        except UnicodeEncodeError:
            raise row.refuse("line", "lone_surrogate") from None
    if len(line) > bytes_max:
        raise row.refuse("line", "line_too_long")
    return line


def _read_line(line: bytes, read: Any, ordinal: int | None, depth_max: int) -> dict[str, Any] | str:
    text = line.rstrip(b"\x00")
    if line and not text:
        return "nul_line"
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if not text:
        return "blank_line"
    if text.isspace() and is_blank(text.decode("ascii")):
        return "blank_line"
    # A killed writer pads with NULs, some editors begin with a mark: neither is JSON, and both stay in the span.
    try:
        parsed = _parse(text, depth_max)
    except ProjectionError as error:
        raise ProjectionError(f"line_{error.reason}", "line") from None
    found: dict[str, Any] | str = read(parsed, line, ordinal)
    return found


def parse_line(line: bytes, depth_max: int = JSON_DEPTH_MAX) -> Any:
    """Parse a native line forgivingly; raises ProjectionError as ``decode_json`` does.

    NULs behind it and a byte order mark before it do not count, and bytes that are not UTF-8 inside its texts do not
    cost the line.
    """
    return _parse(line.rstrip(b"\x00").removeprefix(_BYTE_ORDER_MARK), depth_max)


def _parse(text: bytes, depth_max: int) -> Any:
    try:
        return decode_json(text, depth_max)
    except ProjectionError as error:
        if error.reason != "invalid_utf8":
            raise
    # A byte that is no UTF-8 becomes a lone-surrogate escape, which only its own field can trip over.
    escaped = _STRAY_BYTE.sub(lambda stray: f"\\u{ord(stray[0]):04x}", text.decode(errors="surrogateescape"))
    return decode_json(escaped.encode(), depth_max)


def _project_observation(row: Row, source: Row | None) -> tuple[list[Fact], str | None, list[str]]:
    conversation = row.row_or_none("conversation")
    identity = _identity(conversation if conversation is not None else source if source is not None else row)
    place = row.row("id")
    body = read_observation(row)
    if isinstance(body, str):
        return [], body, []
    key = line_key("observation", place.native("sourceId"), place.count("byteOffset"), place.count("subrecordIndex"))
    return [Fact(conversation_ref(identity), key, (), body)], None, []
