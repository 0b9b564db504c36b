r"""Text rules of the sources, which are written in ECMAScript: white space, lengths, percent-encoding, times.

Python's ``\s``, ``str.strip`` and ``\d`` differ from ECMAScript's on U+001C to U+001F, U+0085, U+FEFF and on every
digit outside ASCII, so none of them is used on source text (spec: titan 1).
"""

import re
from functools import lru_cache
from urllib.parse import quote

import rfc8785

from projections.errors import ProjectionError

MAX_SAFE_INTEGER = 2**53 - 1
"""The greatest integer that an ECMAScript number holds without loss."""

JS_SPACE_CHARACTERS = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""Every character that ECMAScript counts as white space."""

JS_SPACE = "\\t\\n\\v\\f\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"
"""The ECMAScript white-space class, to be written inside ``[...]`` in a Python pattern."""

JS_LINE_END = "\\n\\r\\u2028\\u2029"
"""The characters that ``.`` does not match in ECMAScript, to be written inside ``[...]``."""

_PATTERN_PIECE = re.compile(r"\\.|[\[\].]|[^\\\[\].]+", re.DOTALL)
SAFE_COMPONENT = re.compile(r"[A-Za-z0-9\-_.!~*'()]+")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ufffd\ud800-\udfff]")
_STORABLE = re.compile("\ufffd([0-9a-f]{4})")

_DATE = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29"
    r"|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))"
)
_HOUR_AND_MINUTE = r"(?:[01]\d|2[0-3]):[0-5]\d"
_MINUTE_SOURCE = f"^{_DATE}T{_HOUR_AND_MINUTE}$"
_AFTER_MINUTE_SOURCE = rf"^(?::[0-5]\d(?:\.\d+)?)?(?:Z|[+-]{_HOUR_AND_MINUTE})$"
TIME_SOURCE = f"{_MINUTE_SOURCE[:-1]}{_AFTER_MINUTE_SOURCE[1:]}"
"""The time grammar of a trace record, as an ECMAScript pattern: seconds may be left out, digits may follow them."""


def ecma_pattern(source: str) -> re.Pattern[str]:
    r"""Compile an ECMAScript pattern without flags, to be used with ``fullmatch``.

    Rewrites ``\s``, ``\S``, ``\d`` and ``.`` into the classes that ECMAScript gives them and drops the anchors. Knows
    the constructs of our own grammars and no others: it is no general translator.
    """
    out: list[str] = []
    in_class = False
    for piece in _PATTERN_PIECE.findall(source.removeprefix("^").removesuffix("$")):
        if piece in "[]":
            in_class = piece == "["
        out.append(_python_piece(piece, in_class=in_class))
    return re.compile("".join(out))


def _python_piece(piece: str, *, in_class: bool) -> str:
    if piece == r"\s":
        return JS_SPACE if in_class else f"[{JS_SPACE}]"
    if piece == r"\S":
        assert not in_class, "a negated class inside a class has no Python form"
        return f"[^{JS_SPACE}]"
    if piece == r"\d":
        return "0-9" if in_class else "[0-9]"
    if piece == "." and not in_class:
        return f"[^{JS_LINE_END}]"
    return piece


TIME_PATTERN = ecma_pattern(TIME_SOURCE)
_MINUTE_PATTERN = ecma_pattern(_MINUTE_SOURCE)
_AFTER_MINUTE_PATTERN = ecma_pattern(_AFTER_MINUTE_SOURCE)
_MINUTE_CHARS = 16


def trim_text(text: str) -> str:
    """Text without ECMAScript white space at both ends (``String.prototype.trim``)."""
    return text.strip(JS_SPACE_CHARACTERS)


def is_blank(text: str) -> bool:
    """Whether nothing is left of a text after ``trim_text``."""
    return not text.strip(JS_SPACE_CHARACTERS)


def utf16_length(text: str) -> int:
    """Length in UTF-16 code units, which is what ``String.length`` counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def js_text(value: str | float | bool | None) -> str:  # noqa: FBT001 - a JSON scalar, not a switch
    """Text form of a JSON scalar as ``String(value)`` gives it: ``17``, ``true``, ``1e+21``, ``null``.

    An integer beyond 2**53-1 becomes the nearest double first. Raises ``number_out_of_range`` for a number that no
    finite double holds.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return str(value)
    return js_number(value)


def js_number(value: float) -> str:
    """Text of a number by the rules of ECMA-262 ``Number::toString``, from the nearest double."""
    try:
        double = float(value)
        digits = repr(double)
        # Without an exponent both write the same shortest digits; rfc8785 knows when ECMAScript wants one.
        if digits[0].isdigit() and "e" not in digits:
            return digits.removesuffix(".0")
        return rfc8785.dumps(double).decode("ascii")
    except (OverflowError, rfc8785.FloatDomainError):
        raise ProjectionError("number_out_of_range") from None


def well_formed(text: str) -> str:
    """Text with every lone surrogate replaced by U+FFFD, as ECMAScript does when it encodes UTF-8."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def utf8_of(text: str) -> bytes:
    """UTF-8 of a text, with U+FFFD for every lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return well_formed(text).encode()


def encode_component(text: str) -> str:
    """Percent-encode one id component (``encodeURIComponent``): UTF-8, upper-case hex, ``A-Za-z0-9-_.!~*'()`` kept.

    Raises ``lone_surrogate``.
    """
    # Most components are UUIDs and plain words; the check is several times cheaper than quoting.
    return text if SAFE_COMPONENT.fullmatch(text) else _quoted(text)


@lru_cache(maxsize=4_096)
def _quoted(text: str) -> str:
    if _LONE_SURROGATE.search(text):
        raise ProjectionError("lone_surrogate")
    return quote(text, safe="-_.!~*'()")


def storable_text(text: str) -> str:
    r"""Escape what UTF-8 stores refuse, without ever giving two texts one form.

    NUL and lone surrogates become U+FFFD and four lower-case hex digits; so that this stays injective, a literal
    U+FFFD becomes ``\ufffdfffd``. Every other text is returned as it is, the same object.
    """
    if text.isascii():
        return text if "\x00" not in text else text.replace("\x00", "\ufffd0000")
    return _UNSTORABLE.sub(_escape, text) if _UNSTORABLE.search(text) else text


def _escape(match: re.Match[str]) -> str:
    return f"\ufffd{ord(match[0]):04x}"


def text_of_storable(text: str) -> str:
    """Give back the text of which ``storable_text`` made this one; any other text comes back in some form."""
    return _STORABLE.sub(lambda match: chr(int(match[1], 16)), text) if "\ufffd" in text else text


def storable_json(value: object) -> object:
    """Apply ``storable_text`` to every text and key of a JSON value; the same object when nothing changes."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        pairs = [(storable_text(key), storable_json(item)) for key, item in value.items()]
        same = all(new is item and key is old for (key, new), (old, item) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    if isinstance(value, list):
        items = [storable_json(item) for item in value]
        return value if all(new is item for new, item in zip(items, value, strict=True)) else items
    return value


Instant = tuple[int, str, str]
"""Sortable form of a time: seconds since 1970 UTC, the digits of its fraction without trailing zeros, its text."""


def is_time(value: object) -> bool:
    """Whether a value is text in the time grammar of a trace record."""
    return (
        isinstance(value, str)
        and _minute_s(value[:_MINUTE_CHARS]) is not None
        and _AFTER_MINUTE_PATTERN.fullmatch(value, _MINUTE_CHARS) is not None
    )


@lru_cache(maxsize=4_096)
def instant(text: str) -> Instant:
    """Sortable key of a time in the record grammar, with all its digits; equal instants order by their text.

    Raises ``invalid_time``. Years run from 0000 to 9999, so ``datetime`` is of no use here.
    """
    minute_s = _minute_s(text[:_MINUTE_CHARS])
    if minute_s is None or _AFTER_MINUTE_PATTERN.fullmatch(text, _MINUTE_CHARS) is None:
        raise ProjectionError("invalid_time")
    end = -1 if text[-1] == "Z" else -6
    clock, offset_s = text[_MINUTE_CHARS:end], 0 if end == -1 else _offset_s(text[end:])
    second_s = int(clock[1:3]) if clock else 0
    return minute_s + second_s - offset_s, clock[4:].rstrip("0"), text


# The times of a source lie close together, and most of what there is to check and to count is in their minute.
@lru_cache(maxsize=4_096)
def _minute_s(text: str) -> int | None:
    """Seconds since 1970 at the beginning of a minute, without its offset; None for what is no minute."""
    if _MINUTE_PATTERN.fullmatch(text) is None:
        return None
    days = _days_from_epoch(int(text[0:4]), int(text[5:7]), int(text[8:10]))
    return days * 86_400 + int(text[11:13]) * 3_600 + int(text[14:16]) * 60


def _offset_s(text: str) -> int:
    size_s = int(text[1:3]) * 3_600 + int(text[4:6]) * 60
    return -size_s if text[0] == "-" else size_s


def _days_from_epoch(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, year 0 included."""
    # A year that starts in March puts the leap day last, so months need no table.
    shifted = year - (month <= 2)
    era_year = shifted % 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = era_year * 365 + era_year // 4 - era_year // 100 + day_of_year
    return shifted // 400 * 146_097 + day_of_era - 719_468
