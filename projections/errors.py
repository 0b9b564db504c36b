"""The errors of the core: a bounded reason and a field name of our own, never a piece of the input."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class Issue(TypedDict):
    """One thing wrong with a trace record.

    ``path`` runs from the record's root through keys and list positions; it may name keys that came with the
    input (unknown fields, correlation keys), as ``keys`` does, so an issue is for the caller and not for a log.
    """

    path: list[str | int]
    code: str
    keys: NotRequired[list[str]]


class ProjectionError(ValueError):
    """Input that cannot be projected.

    ``reason`` is a bounded snake_case code (``invalid_json``, ``blank_component``) and ``field`` the dotted path of
    a field name of ours. Both are safe to log and to put into a dead letter.
    """

    def __init__(self, reason: str, field: str | None = None) -> None:
        """Remember a reason code and, where one value is at fault, the name of its field."""
        super().__init__(reason if field is None else f"{reason}: {field}")
        self.reason = reason
        self.field = field


class TraceParseError(ProjectionError):
    """A value that is no valid ``titan.trace/v1`` record; ``issues`` lists what is wrong, in field order."""

    def __init__(self, issues: Sequence[Issue], field: str | None = None) -> None:
        """Remember the issues; the text of the error holds only the reason and a schema field."""
        super().__init__("invalid_record", field)
        self.issues = list(issues)
