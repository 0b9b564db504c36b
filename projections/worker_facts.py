"""Worker facts: what the completion of a spawned worker carries, checked strictly."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from projections.errors import Issue, ProjectionError
from projections.text import JS_SPACE, MAX_SAFE_INTEGER, utf16_length

WORKER_REPORT_LENGTH_MAX: Final = 2000
"""Length of a report's text in UTF-16 code units; the producer cuts, the check refuses."""

# Looser than the repository of a trace record: only white space and further slashes are ruled out.
_REPO = re.compile(f"[^/{JS_SPACE}]+/[^/{JS_SPACE}]+")


class WorkerFactsError(ProjectionError):
    """A value that is no set of worker facts; ``issues`` lists what is wrong, in field order.

    An issue's path and keys may repeat unknown keys of the input, so issues are for the caller and not for a log.
    """

    def __init__(self, issues: list[Issue]) -> None:
        """Remember the issues; the text of the error holds only the reason."""
        super().__init__("invalid_worker_facts")
        self.issues = issues


Path = tuple[str | int, ...]
Check = Callable[[Any, Path, list[Issue]], Any]
"""Gives the checked value and adds what is wrong with it to the issues."""


class _Field(NamedTuple):
    check: Check
    is_optional: bool = False
    is_nullable: bool = False


def parse_worker_facts(value: Any) -> dict[str, Any]:
    """Check worker facts and give a copy of them, integral numbers as integers.

    Fields: ``agent``, ``profile``, ``spawner`` (texts, not empty), ``exit`` {code, signal, inferred}; may be absent or
    null: ``taskId``, ``report`` {messageId, kind, text}, ``pr`` {repo, number}, ``tokens`` {input, output, total} (the
    sum is not checked), ``costUsd`` (US dollars). Unknown keys are refused at every level.

    Raises WorkerFactsError; its issues carry the codes of the trace record's parse (spec: titan 5).
    """
    issues: list[Issue] = []
    facts = _WORKER_FACTS(value, (), issues)
    if issues:
        raise WorkerFactsError(issues)
    checked: dict[str, Any] = facts
    return checked


def _report(issues: list[Issue], path: Path, code: str) -> None:
    issues.append({"path": list(path), "code": code})


def _object(fields: Mapping[str, _Field]) -> Check:
    def check(value: Any, path: Path, issues: list[Issue]) -> Any:
        if not isinstance(value, dict):
            _report(issues, path, "invalid_type")
            return None
        checked: dict[str, Any] = {}
        for name, field in fields.items():
            if name not in value:
                if not field.is_optional:
                    _report(issues, (*path, name), "invalid_type")
            elif value[name] is None and field.is_nullable:
                checked[name] = None
            else:
                checked[name] = field.check(value[name], (*path, name), issues)
        unknown = [name for name in value if name not in fields]
        if unknown:
            issues.append({"path": list(path), "code": "unrecognized_keys", "keys": unknown})
        return checked

    return check


def _text(*, length_min: int = 0, length_max: int | None = None, pattern: re.Pattern[str] | None = None) -> Check:
    def check(value: Any, path: Path, issues: list[Issue]) -> Any:
        if not isinstance(value, str):
            _report(issues, path, "invalid_type")
        elif len(value) < length_min:
            _report(issues, path, "too_small")
        elif length_max is not None and utf16_length(value) > length_max:
            _report(issues, path, "too_big")
        elif pattern is not None and not pattern.fullmatch(value):
            _report(issues, path, "invalid_format")
        return value

    return check


def _one_of(*allowed: str) -> Check:
    def check(value: Any, path: Path, issues: list[Issue]) -> Any:
        if value not in allowed:
            _report(issues, path, "invalid_value")
        return value

    return check


def _boolean(value: Any, path: Path, issues: list[Issue]) -> Any:
    if not isinstance(value, bool):
        _report(issues, path, "invalid_type")
    return value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _integer(minimum: int = -MAX_SAFE_INTEGER) -> Check:
    def check(value: Any, path: Path, issues: list[Issue]) -> Any:
        if not _is_number(value) or value != int(value):
            _report(issues, path, "invalid_type")
            return value
        if value < minimum:
            _report(issues, path, "too_small")
        elif value > MAX_SAFE_INTEGER:
            _report(issues, path, "too_big")
        return int(value)

    return check


def _amount_usd(value: Any, path: Path, issues: list[Issue]) -> Any:
    if not _is_number(value):
        _report(issues, path, "invalid_type")
    elif value < 0:
        _report(issues, path, "too_small")
    return value


_name = _text(length_min=1)
_count = _integer(0)

_WORKER_REPORT = _object(
    {
        "messageId": _Field(_name),
        "kind": _Field(_one_of("status", "verdict")),
        "text": _Field(_text(length_max=WORKER_REPORT_LENGTH_MAX)),
    }
)
_WORKER_PR = _object({"repo": _Field(_text(pattern=_REPO)), "number": _Field(_integer(1))})
_WORKER_TOKENS = _object({"input": _Field(_count), "output": _Field(_count), "total": _Field(_count)})
_WORKER_EXIT = _object(
    {
        "code": _Field(_integer(), is_nullable=True),
        "signal": _Field(_name, is_nullable=True),
        "inferred": _Field(_boolean),
    }
)
_WORKER_FACTS = _object(
    {
        "agent": _Field(_name),
        "profile": _Field(_name),
        "spawner": _Field(_name),
        "taskId": _Field(_name, is_optional=True, is_nullable=True),
        "report": _Field(_WORKER_REPORT, is_optional=True, is_nullable=True),
        "pr": _Field(_WORKER_PR, is_optional=True, is_nullable=True),
        "tokens": _Field(_WORKER_TOKENS, is_optional=True, is_nullable=True),
        "costUsd": _Field(_amount_usd, is_optional=True, is_nullable=True),
        "exit": _Field(_WORKER_EXIT),
    }
)
