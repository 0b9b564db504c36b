"""Bytes: canonical JSON for digests and ties (RFC 8785), compact JSON for records, SHA-256."""

import hashlib
import json
import math
import re
from contextlib import suppress
from typing import Any

import orjson

from projections.errors import ProjectionError
from projections.text import MAX_SAFE_INTEGER, js_text, utf8_of

_SURROGATE = re.compile("[\ud800-\udfff]")
_LIMIT_OF_INTEGRAL_FLOATS = 2.0**53


def canonical_json(value: Any) -> bytes:
    r"""RFC 8785 form of a JSON value, as UTF-8.

    Keys in UTF-16 order, ECMAScript numbers; an integer beyond 2**53-1 becomes the nearest double first. A lone
    surrogate, which RFC 8785 leaves out, is written as ``JSON.stringify`` writes it (``\ud800``).

    Raises ``not_json`` for anything that no JSON text holds, ``number_out_of_range`` for NaN and infinities.
    """
    if _is_plain(value):
        # With ASCII keys the order of code points is that of UTF-16 units, and on the numbers that are let through
        # the two forms agree digit for digit, so one call does the work. It refuses a lone surrogate inside a text.
        with suppress(orjson.JSONEncodeError):
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return _canonical_text(value).encode("utf-8")


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER)
    if kind is float:
        # Here both write the shortest digits without an exponent; an integral float would keep its ".0".
        return bool((1e-4 <= value < 1e15 or -1e15 < value <= -1e-4) and not value.is_integer())
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or (type(item) is not str and not _is_plain(item)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return False


def _canonical_text(value: Any) -> str:
    if isinstance(value, str):
        return _canonical_string(value)
    if value is None or isinstance(value, bool | int | float):
        return js_text(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_canonical_text, value))}]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_canonical_string(key)}:{_canonical_text(value[key])}" for key in keys) + "}"
    raise ProjectionError("not_json")


def _canonical_string(text: str) -> str:
    # The standard library escapes exactly what RFC 8785 escapes, in the same spelling.
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isascii() else _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def sha256_hex(data: bytes) -> str:
    """SHA-256 of bytes, as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def digest_of_json(value: Any) -> str:
    """SHA-256 of a JSON value's canonical form (``paramsSha256``, ``payloadSha256``)."""
    return sha256_hex(canonical_json(value))


def digest_of_text(value: str | float | bool | None) -> str:  # noqa: FBT001 - a JSON scalar, not a switch
    """SHA-256 of a text's UTF-8 (``promptSha256``, ``outputSha256``); a number or boolean counts as its text.

    A lone surrogate is digested as U+FFFD, as ECMAScript encodes it.
    """
    return sha256_hex(utf8_of(js_text(value)))


def encode_record(record: dict[str, Any]) -> bytes:
    """Bytes of a record: compact JSON in the order of its keys, UTF-8, an integral float below 2**53 as an integer.

    Raises ``number_out_of_range`` for NaN and infinities and ``not_storable`` for what JSON or UTF-8 cannot hold,
    lone surrogates among it (see ``storable_text``).
    """
    try:
        return orjson.dumps(_with_integers(record))
    except orjson.JSONEncodeError:
        raise ProjectionError("not_storable") from None


_NO_FLOAT_INSIDE = frozenset((str, int, bool, type(None)))


def _with_integers(value: Any) -> Any:
    """The same value when it holds no integral float, else a copy that holds integers in their place."""
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise ProjectionError("number_out_of_range")
        return (
            int(value)
            if value.is_integer() and -_LIMIT_OF_INTEGRAL_FLOATS < value < _LIMIT_OF_INTEGRAL_FLOATS
            else value
        )
    if kind is dict:
        changed = None
        for key, item in value.items():
            if type(item) in _NO_FLOAT_INSIDE:
                continue
            new = _with_integers(item)
            if new is not item:
                changed = dict(value) if changed is None else changed
                changed[key] = new
        return value if changed is None else changed
    if kind is list:
        items = [_with_integers(item) for item in value]
        return value if all(new is item for new, item in zip(items, value, strict=True)) else items
    return value
