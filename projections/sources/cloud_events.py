"""CloudEvents 1.0 in structured mode: what says that an object is one, and the data that it carries.

In binary mode an event's attributes are headers and the message's value is its data, so there is nothing to open.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from projections.decode import decode_json
from projections.errors import ProjectionError

SPEC_VERSION: Final = "1.0"
REQUIRED_ATTRIBUTES: Final = ("specversion", "id", "source", "type")
"""The attributes that every event has, as texts; together they are what says that an object is an event."""

# Debezium's converter leaves the operation of a change out of the data and puts it here.
_OPERATION: Final = "iodebeziumop"


def is_cloud_event(value: Mapping[str, Any]) -> bool:
    """Say whether an object is an event; no row of a source has all of these attributes as texts."""
    return "specversion" in value and all(isinstance(value.get(name), str) for name in REQUIRED_ATTRIBUTES)


def data_of(event: Mapping[str, Any], depth_max: int) -> Any:
    """Give the JSON value that an event carries, whatever its ``datacontenttype`` says.

    Raises ProjectionError for another version of the specification, an event without data, and data that is not JSON.
    """
    if event["specversion"] != SPEC_VERSION:
        raise ProjectionError("unknown_specversion", "specversion")
    encoded = event.get("data_base64")
    if encoded is None:
        if "data" not in event:
            raise ProjectionError("missing_data", "data")
        return event["data"]
    if event.get("data") is not None or not isinstance(encoded, str):
        raise ProjectionError("invalid_field", "data_base64")
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ProjectionError("invalid_field", "data_base64") from None
    try:
        return decode_json(data, depth_max)
    except ProjectionError as error:
        raise ProjectionError(error.reason, "data_base64") from None


def with_operation(row: Mapping[str, Any], event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a captured change the operation that stands beside it in its event; any other row is left as it is."""
    operation = event.get(_OPERATION)
    if operation is None or "op" in row or not ("before" in row or "after" in row):
        return row
    return {**row, "op": operation}
