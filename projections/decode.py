"""The one JSON parser: strict, bounded in depth, and the same answer for the same bytes everywhere."""

import json
import math
import re
from contextlib import suppress
from typing import Any, Final, NoReturn

import orjson

from projections.errors import ProjectionError

JSON_DEPTH_MAX = 127
"""Greatest nesting of lists and objects that is read."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
# An unterminated string runs to the end of the text: trying again at each quote inside it would be quadratic.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_REFUSED: Final[Any] = object()
_INT64_MIN = -(2**63)
_UINT64_MAX = 2**64 - 1


def decode_json(data: bytes, depth_max: int = JSON_DEPTH_MAX) -> Any:
    """Parse UTF-8 JSON text, nested at most ``depth_max`` deep (127 or less).

    Strict RFC 8259: no NaN, Infinity, comments, BOM or raw control characters; the last of two equal keys wins.
    Numbers are IEEE doubles as in the sources, except that an integer from -2**63 to 2**64-1 stays an exact ``int``;
    one outside becomes the nearest double. Lone-surrogate escapes are read and kept as lone surrogates.

    Raises ``invalid_utf8``, ``invalid_json``, ``too_deep`` or ``number_out_of_range`` (beyond a double).
    """
    # The parser's error carries the document: it is dropped here, and ours is raised without it as its context.
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _REFUSED
    if value is _REFUSED:
        return _decode_refused(data, depth_max)
    if data.count(b"[") + data.count(b"{") > depth_max and _depth_of_value(value) > depth_max:
        raise ProjectionError("too_deep")
    return value


def _depth_of_value(value: object) -> int:
    """Nesting of a decoded value, counted level by level so that no recursion limit is met."""
    depth = 0
    level = [value] if isinstance(value, dict | list) else []
    while level:
        depth += 1
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
    return depth


def _decode_refused(data: bytes, depth_max: int) -> Any:
    """Read what orjson refuses only for its lone surrogates, and name the reason for everything else."""
    text = None
    with suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
    if text is None:
        raise ProjectionError("invalid_utf8")
    if _depth_of_text(data) > depth_max:
        raise ProjectionError("too_deep")
    value = _REFUSED
    with suppress(json.JSONDecodeError):
        value = json.loads(text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse_constant)
    if value is _REFUSED or _SURROGATE_ESCAPE.search(data) is None:
        raise ProjectionError("invalid_json")
    return value


def _depth_of_text(data: bytes) -> int:
    """Nesting that a parser would meet, from the brackets outside of strings; works on broken text too."""
    depth = deepest = 0
    for bracket in _STRING.sub(b"", data).translate(None, _NO_BRACKET):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _parse_int(digits: str) -> float:
    # Beyond 20 characters nothing fits into 64 bits, and int() itself would refuse thousands of digits.
    if len(digits) <= 20:
        value = int(digits)
        if _INT64_MIN <= value <= _UINT64_MAX:
            return value
    return _parse_float(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ProjectionError("number_out_of_range")
    return value


def _refuse_constant(_name: str) -> NoReturn:
    raise ProjectionError("invalid_json")
