"""What values come in, as the programs that write it would: CloudEvents, and the frame of a schema registry."""

import base64
import struct
from collections.abc import Callable
from typing import Final

_ATTRIBUTES: Final = (
    b'"specversion":"1.0","id":"e-1","source":"/ledger","type":"com.example.row","time":"2026-10-01T09:00:00Z"'
)


def event(value: bytes) -> bytes:
    """Make a value the data of a CloudEvent in structured mode."""
    return b"{" + _ATTRIBUTES + b',"datacontenttype":"application/json","data":' + value + b"}"


def event_base64(value: bytes) -> bytes:
    return b'{"data_base64":"' + base64.b64encode(value) + b'",' + _ATTRIBUTES + b',"data":null}'


def framed(value: bytes, schema_id: int = 10) -> bytes:
    """Put the frame of a schema registry before a value or a key."""
    return b"\x00" + struct.pack(">I", schema_id) + value


def with_schema(value: bytes) -> bytes:
    """Put a value beside its schema, as Kafka Connect's JSON converter does."""
    return b'{"schema":{"type":"struct"},"payload":' + value + b"}"


WRAPPINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "cloud event": event,
    "cloud event with base64": event_base64,
    "frame": framed,
    "frame with white space before the text": lambda value: framed(b" \r\n" + value),
    "cloud event in a frame": lambda value: framed(event(value)),
    "cloud event with its schema beside it": lambda value: with_schema(event(value)),
}
"""The envelopes by name; what is in them means what it means alone."""
