"""JSON, white space and text forms exactly as the Harn runtime has them (serde_json and Rust's standard library)."""

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

import orjson

from projections.errors import ProjectionError

DEPTH_MAX = 127
INT_MIN = -(2**63)
INT_MAX = 2**63 - 1

# Unicode White_Space, which is what Rust trims; Python's own set also has U+001C to U+001F.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

# A text, or a bracket outside of texts. Only ever used on bytes that have parsed.
_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{])|([\]}])', re.DOTALL)
# Numbers that orjson and serde_json read differently: a negative zero without fraction is a float for the latter, and
# so is every integer outside signed 64 bits (19 digits or more).
_UNLIKE = re.compile(rb"-0(?![.eE0-9])|[0-9]{19}")
_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")

# Below this magnitude the runtime writes a whole float with one decimal.
_ONE_DECIMAL_BELOW = 1e15


def parse_json(data: bytes) -> Any:
    """Parse one JSON document with serde_json's strictness and its number types.

    Refused: anything but one document of RFC 8259 JSON in UTF-8, lone surrogate escapes, numbers past a double, depth
    over 127. Integers outside signed 64 bits and ``-0`` become floats; of duplicate keys the last one wins.

    Raises:
        ProjectionError: ``invalid_json`` or ``too_deep``.
    """
    value, refused = None, False
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        # The parser's error carries the document, so nothing may be raised from inside this block.
        refused = True
    if refused:
        raise ProjectionError("invalid_json")
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX and _depth(data) > DEPTH_MAX:
        raise ProjectionError("too_deep")
    if _UNLIKE.search(data):
        # The strict parser has accepted these bytes, so this second look only changes number types.
        return json.loads(data, parse_int=_integer, parse_constant=_refuse_constant)
    return value


def _depth(data: bytes) -> int:
    depth = deepest = 0
    for match in _BRACKET.finditer(data):
        if match[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif match[2]:
            depth -= 1
    return deepest


def _integer(text: str) -> int | float:
    if text == "-0":
        return -0.0
    # 19 digits are the most a 64-bit integer has, and JSON allows no leading zeros.
    if len(text) <= len("-9223372036854775808"):
        value = int(text)
        if INT_MIN <= value <= INT_MAX:
            return value
    return float(text)


def _refuse_constant(_name: str) -> NoReturn:
    raise AssertionError("orjson accepts neither NaN nor Infinity")


def type_name(value: Any) -> str:
    """Give Harn's name for the type of a parsed JSON value."""
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES: dict[type, str] = {
    type(None): "nil",
    bool: "bool",
    int: "int",
    float: "float",
    str: "string",
    list: "list",
    dict: "dict",
}


def to_int(value: Any) -> int | None:
    """Convert as the runtime's ``to_int``; None is its nil (lists, objects, text that is no number, out of range)."""
    match value:
        case bool() | int():
            return int(value)
        case float():
            return int(value) if INT_MIN <= value < -float(INT_MIN) else None
        case str():
            return _text_to_int(value.strip(WHITE_SPACE))
        case _:
            return None


def _text_to_int(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    if match is None or len(match[2]) > len(str(INT_MAX)):
        return None
    value = int(match[1] + match[2])
    return value if INT_MIN <= value <= INT_MAX else None


def display(value: Any) -> str:
    """Give the runtime's display text of a value, which stands in for a tag that is no text."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case float():
            return _display_float(value)
        case list():
            return "[" + ", ".join(map(display, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{key}: {display(value[key])}" for key in sorted(value)) + "}"
        case _:
            return str(value)


def _display_float(value: float) -> str:
    if value.is_integer() and abs(value) < _ONE_DECIMAL_BELOW:
        return f"{value:.1f}"
    # Rust never writes an exponent here.
    return format(Decimal(repr(value)), "f")
