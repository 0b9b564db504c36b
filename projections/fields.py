"""Typed reading of source rows: every field that a fact takes is checked here, once, and named in the error.

Rows come from programs (camelCase) and from database tables through change capture (snake_case, JSON columns as
text); both are read alike.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from projections.canonical import digest_of_json, digest_of_text
from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.text import MAX_SAFE_INTEGER, is_blank, is_time, storable_text, well_formed

_DIGEST = re.compile(r"[0-9a-f]{64}")
_COLUMN = re.compile("[a-z][a-z0-9]*(?:_[a-z][a-z0-9]*)+")

# What Debezium writes where PostgreSQL's log does not hold a large value, because an update left it as it was.
_UNAVAILABLE = "__debezium_unavailable_value"


@lru_cache(maxsize=1_024)
def _field_of(column: str) -> str:
    """Give the record field of a table column: ``created_at`` is ``createdAt``; any other name stays as it is."""
    if _COLUMN.fullmatch(column) is None:
        return column
    first, *others = column.split("_")
    return first + "".join(map(str.capitalize, others))


def _by_field(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a row with the names of record fields; what already has such a name goes before its column."""
    return {_field_of(name): value for name, value in row.items()} | dict(row)


class Row:
    """One JSON object of a source, read field by field; ``path`` is its place in the message, for errors."""

    __slots__ = ("_fields", "_path", "value")

    def __init__(self, value: Any, path: str = "") -> None:
        # What was parsed is a dict; asking for a Mapping first costs as much as reading a field.
        if type(value) is not dict and not isinstance(value, Mapping):
            raise ProjectionError("not_an_object", path or None)
        self.value: Mapping[str, Any] = value
        """The object itself."""
        self._fields = _by_field(value) if "_" in "".join(value) else value
        self._path = path

    def where(self, name: str) -> str:
        """Give the dotted path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def raw(self, name: str) -> Any:
        """Give a field as it stands; None when it is absent."""
        return self._fields.get(name)

    def has(self, name: str) -> bool:
        """Say whether the field is there, null included."""
        return name in self._fields

    def is_filler(self, *names: str) -> bool:
        """Say whether one of these texts, none of which is ever empty, is.

        Change capture that is given the key of a deleted row alone fills its other columns with empty texts and zeros.
        """
        return any(self._fields.get(name) == "" for name in names)

    def refuse(self, name: str, reason: str = "invalid_field") -> ProjectionError:
        """Make the error that names one field."""
        return ProjectionError(reason, self.where(name))

    def text(self, name: str) -> str:
        """Read a text that must be there and not empty."""
        value = self.text_or_none(name)
        if not value:
            raise self.refuse(name)
        return value

    def native(self, name: str) -> str:
        """Read a source id, kept as it is: ids are encoded, never escaped. It must not be blank."""
        value = self._fields.get(name)
        # Here and below: only what is refused needs to say where it stands.
        if type(value) is str and value.isascii() and not is_blank(value):
            return value
        return native_text(value, self.where(name))

    def text_or_none(self, name: str) -> str | None:
        """Read a text that may be null or absent."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.refuse(name)
        if value == _UNAVAILABLE:
            raise self.refuse(name, "unavailable_value")
        return storable_text(value)

    def one_of(self, name: str, allowed: Collection[str]) -> str:
        """Read a text out of a closed list."""
        value = self._fields.get(name)
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(name)
        return value

    def count(self, name: str) -> int:
        """Read a whole number from 0 to 2^53-1; ``1.0`` and ``1e2`` are whole numbers."""
        value = self._fields.get(name)
        if type(value) is int and 0 <= value <= MAX_SAFE_INTEGER:
            return value
        return whole_number(value, self.where(name))

    def time(self, name: str) -> str:
        """Read an RFC 3339 time that must be there, kept as the source wrote it."""
        value = self._fields.get(name)
        if value is None:
            raise self.refuse(name)
        if not is_time(value):
            raise self.refuse(name, "invalid_time")
        return str(value)

    def time_or_none(self, name: str) -> str | None:
        """Read a time that may be null or absent."""
        value = self._fields.get(name)
        return None if value is None else self.time(name)

    def digest(self, content: str, given: str, *, as_json: bool = False) -> str | None:
        """Digest a content field, or take the digest that the source gives instead of (or beside) it.

        Null and absent content has no digest. Texts are digested as their UTF-8, other values as RFC 8785 JSON when
        ``as_json``, else as their ECMAScript text.
        """
        ready = self._fields.get(given)
        if ready is not None:
            if not isinstance(ready, str) or not _DIGEST.fullmatch(ready):
                raise self.refuse(given)
            return ready
        value = self.json(content) if as_json else self._fields.get(content)
        if value is None:
            return None
        if value == _UNAVAILABLE:
            raise self.refuse(content, "unavailable_value")
        return digest_of_json(value) if as_json or isinstance(value, dict | list) else digest_of_text(value)

    def json(self, name: str) -> Any:
        """Read a JSON column: the value itself, or its text (an object, a list, a text in quotes, or null)."""
        value = self._fields.get(name)
        if not isinstance(value, str) or not (value[:1] in _JSON_STARTS or value == "null"):
            if value == _UNAVAILABLE:
                raise self.refuse(name, "unavailable_value")
            return value
        try:
            return decode_json(value.encode())
        except (ProjectionError, UnicodeEncodeError):
            raise self.refuse(name) from None

    def row(self, name: str) -> "Row":
        """Read a nested object that must be there."""
        return Row(self.json(name), self.where(name))

    def row_or_none(self, name: str) -> "Row | None":
        """Read a nested object that may be null or absent."""
        value = self.json(name)
        return None if value is None else Row(value, self.where(name))


_JSON_STARTS = frozenset('{["')


def storable_as_is(value: Any, where: str) -> str:
    """Check a text that goes into an id unencoded: it may hold nothing that stores refuse."""
    if not isinstance(value, str) or storable_text(value) != value:
        raise ProjectionError("invalid_field", where)
    return value


def native_text(value: Any, where: str) -> str:
    """Check a source id: text that is not blank and can be encoded (decisions: lone surrogate escapes)."""
    found = native_text_or_none(value, where)
    if found is None:
        raise ProjectionError("invalid_field", where)
    return found


def native_text_or_none(value: Any, where: str) -> str | None:
    """Check a source id that may be missing; None for what is no text or blank."""
    if not isinstance(value, str) or is_blank(value):
        return None
    if not value.isascii() and well_formed(value) != value:
        raise ProjectionError("lone_surrogate", where)
    return value


def name_or_none(value: Any) -> str | None:
    """Give a name as it is stored; None when it is missing or blank."""
    return storable_text(value) if isinstance(value, str) and not is_blank(value) else None


def whole_number(value: Any, where: str) -> int:
    """Check a count: a JSON number with an integral value from 0 to 2^53-1, else an error naming ``where``."""
    if type(value) is not int:
        if not isinstance(value, float) or not value.is_integer():
            raise ProjectionError("invalid_count", where)
        value = int(value)
    count: int = value
    if not 0 <= count <= MAX_SAFE_INTEGER:
        raise ProjectionError("count_out_of_range", where)
    return count


def checked_time(value: Any, where: str) -> str:
    """Check that a value is a time in the grammar of records and give it back as it was written."""
    if not is_time(value):
        raise ProjectionError("invalid_time", where)
    return str(value)


def checked_number(value: Any, where: str) -> int | float:
    """Check a JSON number that is no boolean; equal amounts become one number, so that they have equal bytes."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProjectionError("invalid_number", where)
    if abs(value) > MAX_SAFE_INTEGER:
        return float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_span(row: Row) -> dict[str, Any]:
    """Read the place of a transcript line; line number and native ordinal are left out (spec: titan 6)."""
    content_hash = row.text("contentHash")
    if not _DIGEST.fullmatch(content_hash):
        raise row.refuse("contentHash")
    return {
        "sourceId": row.text("sourceId"),
        "byteOffset": row.count("byteOffset"),
        "byteLength": row.count("byteLength"),
        "contentHash": content_hash,
    }
