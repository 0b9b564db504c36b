"""Reading Harn's durable artifacts as its runtime does: transcript pages, the folded context, the agent result.

Everything here is a function of bytes. What only a file system can say (no such file, a directory) the caller passes in
as a ``FileFault`` in place of the bytes. Results are values or a ``ReadFailure``; nothing is raised for bad input.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple

from projections.errors import ProjectionError
from projections.formats.harn_contracts import (
    AGENT_RESULT,
    CURRENT_VERSION,
    FAMILIES,
    TRANSCRIPT_CONTEXT,
    ReadFailure,
    VersionedValue,
    check_versioned,
)
from projections.formats.harn_json import WHITE_SPACE, display, parse_json

MAX_RECORDS_DEFAULT: Final = 256
MAX_RECORDS_LIMIT: Final = 10_000
MAX_BYTES_DEFAULT: Final = 1024 * 1024
MAX_BYTES_LIMIT: Final = 16 * 1024 * 1024


class FileFault(StrEnum):
    """Why a file has no bytes, in the runtime's words."""

    NOT_FOUND = "not_found"
    IS_A_DIRECTORY = "is_a_directory"
    PERMISSION_DENIED = "permission_denied"
    OTHER = "other"


class Cursor(NamedTuple):
    """Where a page starts: a byte offset, and the number of its line (believed, never checked)."""

    offset: int
    line: int


START: Final = Cursor(0, 1)


class Span(NamedTuple):
    """A line's bytes up to its newline (a carriage return is inside) and their SHA-256 in lower-case hex."""

    byte_offset: int
    byte_length: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class Event:
    """One decoded row. ``version`` is None for a row of an unknown family, whose whole value is content."""

    line: int
    offset: int
    span: Span
    recognized: bool
    tag: str = field(repr=False)
    version: int | None
    value: dict[str, Any] = field(repr=False)


class Issue(NamedTuple):
    """One row that was not decoded, and why; its text is not kept."""

    line: int
    offset: int
    span: Span
    failure: ReadFailure


class Page(NamedTuple):
    """A bounded stretch of a transcript. Issues list the malformed rows first, then the others, each in file order."""

    events: tuple[Event, ...]
    issues: tuple[Issue, ...]
    next_cursor: Cursor
    done: bool


class _Line(NamedTuple):
    line: int
    offset: int
    text: str
    span: Span


def read_page(
    source: bytes | FileFault,
    max_records: int = MAX_RECORDS_DEFAULT,
    max_bytes: int = MAX_BYTES_DEFAULT,
    cursor: Cursor = START,
) -> Page | ReadFailure:
    """Read one page of transcript events from a whole file's bytes.

    A page takes lines while they are fewer than ``max_records`` (1 to 10,000; blank and bad ones count) and their bytes
    with newlines are at most ``max_bytes`` (1 to 16 MiB). A last line without a newline counts: a caller that follows a
    growing file holds it back. Failure kinds: ``invalid_input`` (a limit or cursor out of range), ``file_too_large``
    (the first line alone is over ``max_bytes``), ``invalid_data`` (a line of the page is no UTF-8), and a file fault.
    """
    if not _are_limits(max_records, max_bytes, cursor):
        return ReadFailure("invalid_input")
    if isinstance(source, FileFault):
        return ReadFailure(source.value)
    if cursor.offset > len(source):
        return ReadFailure("invalid_input")
    taken = _take_lines(source, max_records, max_bytes, cursor)
    if isinstance(taken, ReadFailure):
        return taken
    lines, next_offset = taken
    malformed: list[Issue] = []
    refused: list[Issue] = []
    events: list[Event] = []
    for line in lines:
        decoded = _decode_line(line)
        if isinstance(decoded, Event):
            events.append(decoded)
        elif decoded is not None:
            (malformed if decoded.failure.kind == "malformed" else refused).append(decoded)
    next_cursor = Cursor(next_offset, cursor.line + len(lines))
    return Page(tuple(events), (*malformed, *refused), next_cursor, done=next_offset >= len(source))


def _are_limits(max_records: Any, max_bytes: Any, cursor: Cursor) -> bool:
    return (
        _is_within(max_records, 1, MAX_RECORDS_LIMIT)
        and _is_within(max_bytes, 1, MAX_BYTES_LIMIT)
        and _is_within(cursor.offset, 0)
        and _is_within(cursor.line, 1)
    )


def _is_within(value: Any, lowest: int, highest: int | None = None) -> bool:
    return type(value) is int and value >= lowest and (highest is None or value <= highest)


def _take_lines(data: bytes, max_records: int, max_bytes: int, cursor: Cursor) -> tuple[list[_Line], int] | ReadFailure:
    lines: list[_Line] = []
    offset = cursor.offset
    limit = min(len(data), offset + max_bytes)
    while offset < len(data) and len(lines) < max_records:
        newline = data.find(b"\n", offset, limit)
        if newline < 0 and limit < len(data):
            if not lines:
                return ReadFailure("file_too_large")
            break
        end = newline if newline >= 0 else len(data)
        body = data[offset:end]
        try:
            text = body.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            return ReadFailure("invalid_data")
        lines.append(_Line(cursor.line + len(lines), offset, text, Span(offset, len(body), sha256(body).hexdigest())))
        offset = min(end + 1, len(data))
    return lines, offset


def _decode_line(line: _Line) -> Event | Issue | None:
    if not line.text.strip(WHITE_SPACE):
        return None
    try:
        value = parse_json(line.text.encode())
    except ProjectionError:
        return Issue(line.line, line.offset, line.span, ReadFailure("malformed"))
    decoded = decode_event(value)
    if isinstance(decoded, ReadFailure):
        return Issue(line.line, line.offset, line.span, decoded)
    return Event(line.line, line.offset, line.span, decoded.recognized, decoded.tag, decoded.version, value)


class DecodedEvent(NamedTuple):
    """What a parsed row is: its family tag (content when unknown) and, when recognised, its version."""

    recognized: bool
    tag: str
    version: int | None


def decode_event(value: Any) -> DecodedEvent | ReadFailure:
    """Decode one parsed row: a known family checked against its contract, or an unknown family, unchecked."""
    if not isinstance(value, dict):
        return ReadFailure("schema_invalid")
    named = value.get("type")
    tag = "" if named is None else display(named)
    contract = FAMILIES.get(tag)
    if contract is None:
        return DecodedEvent(recognized=False, tag=tag, version=None)
    checked = check_versioned(value, contract)
    if isinstance(checked, ReadFailure):
        return checked
    return DecodedEvent(recognized=True, tag=tag, version=checked.version)


def fold_context(
    source: bytes | FileFault,
    max_records: int = MAX_RECORDS_DEFAULT,
    max_bytes: int = MAX_BYTES_DEFAULT,
    cursor: Cursor = START,
) -> VersionedValue | ReadFailure:
    """Fold a transcript from ``cursor`` on into its context: counts, and the last provider, model, format and prompt.

    The first page that fails fails the fold: ``missing`` for a file that is not there, else ``malformed``. Rows with
    issues take no part. The value does not depend on the page limits and holds the system prompt, which is content.
    """
    context: dict[str, Any] = {"event_count": 0, "request_count": 0, "response_count": 0, "unknown_count": 0}
    for page in _pages(source, max_records, max_bytes, cursor):
        if isinstance(page, ReadFailure):
            return ReadFailure("missing" if page.kind == FileFault.NOT_FOUND else "malformed")
        for event in page.events:
            context["event_count"] += 1
            _fold_event(context, event)
    return VersionedValue(TRANSCRIPT_CONTEXT.id, CURRENT_VERSION, context)


def _pages(source: bytes | FileFault, max_records: int, max_bytes: int, cursor: Cursor) -> Iterator[Page | ReadFailure]:
    while True:
        page = read_page(source, max_records, max_bytes, cursor)
        yield page
        if isinstance(page, ReadFailure) or page.done:
            return
        cursor = page.next_cursor


def _fold_event(context: dict[str, Any], event: Event) -> None:
    value = event.value
    if not event.recognized:
        context["unknown_count"] += 1
    elif event.tag == "system_prompt":
        if value["content"].strip(WHITE_SPACE):
            context["system_prompt"] = value["content"]
    elif event.tag == "provider_call_request":
        context["request_count"] += 1
        context.update({name: value[name] for name in ("provider", "model", "tool_format")})
    elif event.tag == "provider_call_response":
        context["response_count"] += 1
        # A response only fills what no request has said; an empty text counts as said.
        for name in ("provider", "model"):
            context.setdefault(name, value[name])


def read_agent_result(source: bytes | FileFault) -> VersionedValue | ReadFailure:
    """Read ``agent-result.json``: version first, then shape; the exact source text rides along for round trips.

    Failure kinds: ``missing`` (no bytes, or no UTF-8), ``malformed``, ``version_mismatch``, ``schema_invalid``; all but
    the first keep the text.
    """
    if isinstance(source, FileFault):
        return ReadFailure("missing")
    try:
        raw = source.decode()
    except UnicodeDecodeError:
        return ReadFailure("missing")
    try:
        value = parse_json(source)
    except ProjectionError:
        return ReadFailure("malformed", raw=raw)
    checked = check_versioned(value, AGENT_RESULT)
    if isinstance(checked, ReadFailure):
        return ReadFailure(checked.kind, checked.problems, checked.found_version, checked.supported_versions, raw)
    return VersionedValue(checked.id, checked.version, checked.value, raw)


def check_context_contract(value: Any) -> VersionedValue | ReadFailure:
    """Check a persisted transcript context (a parsed JSON value) against its contract."""
    return check_versioned(value, TRANSCRIPT_CONTEXT)
