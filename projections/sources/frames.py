"""The frame that serializers of a schema registry put before what they write: a zero byte and the schema's id.

JSON text never begins with a zero byte, so a frame is told by its first byte alone. Which schema its id means is of no
interest: what is read is checked field by field.
"""

from typing import Any, Final

from projections.decode import JSON_DEPTH_MAX, decode_json
from projections.errors import ProjectionError

_FRAME_BYTES: Final = 5
_NOT_JSON: Final = frozenset({"invalid_json", "invalid_utf8"})


def is_framed(data: bytes) -> bool:
    """Say whether bytes begin with a frame."""
    return data[:1] == b"\x00" and len(data) >= _FRAME_BYTES


def decode_framed(data: bytes, depth_max: int = JSON_DEPTH_MAX, *, field: str | None = None) -> Any:
    """Parse JSON, behind a frame or without one, as ``decode_json`` does.

    What is no JSON behind a frame (Avro, Protobuf) raises ProjectionError ``not_json_frame``, about ``field``.
    """
    if not is_framed(data):
        return decode_json(data, depth_max)
    try:
        return decode_json(data[_FRAME_BYTES:], depth_max)
    except ProjectionError as error:
        raise ProjectionError("not_json_frame" if error.reason in _NOT_JSON else error.reason, field) from None
