"""Which records an export is for: a filter by fields that a record has, asked of the record before it is redacted.

It looks at one version of one record and at nothing else, so what a sink holds follows from the newest versions alone.
A record whose newest version does not match is deleted there; one of a kind or, by its id, of a run that the export is
not for never was there.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from projections.ids import split_attempt_id
from projections.records import RECORD_KINDS
from projections.reports.days import ANY_TIME, moment_text
from projections.reports.spend import Moment, moment_of
from projections.text import is_time, storable_text
from worker.settings_sections import ExportFilterSettings

_SLASH: Final = re.compile("/")


class ExportFilter:
    """The filter of one export, made of its settings."""

    __slots__ = ("_attempt_ids", "_kinds", "_prefixes", "_repos", "_run_ids", "_window")

    def __init__(self, settings: ExportFilterSettings) -> None:
        self._kinds = settings.kinds
        # Either names a run, so where only one is given the other names none.
        self._run_ids = settings.run_ids
        self._prefixes = None if settings.run_id_prefixes is None else tuple(sorted(settings.run_id_prefixes))
        self._attempt_ids = settings.attempt_ids
        self._repos = settings.repos
        self._window = settings.window()

    def takes_kind(self, kind: str) -> bool:
        """Whether any record of a kind can match; of an unknown kind nobody knows."""
        return self._kinds is None or kind in self._kinds or kind not in RECORD_KINDS

    def takes(self, kind: str, record_id: str) -> bool:
        """Whether any version of a record can match, as far as its id tells.

        Runs, attempts and gates say in their ids which run they are of, and such an id leaves in clear: what can never
        have been there is not named by a deletion either.
        """
        return self.takes_kind(kind) and any(map(self._can_hold_run, _runs_named_by(kind, record_id)))

    def holds(self, record: dict[str, Any]) -> bool:
        """Whether a record matches; one that lacks what is asked of it does not."""
        return (
            (self._kinds is None or record["kind"] in self._kinds)
            and self._holds_run(record.get("runId"))
            and (self._attempt_ids is None or _attempt_of(record) in self._attempt_ids)
            and (self._repos is None or record["kind"] != "artifact" or _text(record.get("repo")) in self._repos)
            and (self._window == ANY_TIME or self._holds_time(record.get("at")))
        )

    def _can_hold_run(self, run_id: str | None) -> bool:
        return run_id is None or self._holds_run(run_id)

    def _holds_run(self, run_id: Any) -> bool:
        if self._run_ids is None and self._prefixes is None:
            return True
        if not isinstance(run_id, str):
            return False
        return run_id in (self._run_ids or ()) or run_id.startswith(self._prefixes or ())

    def _holds_time(self, at: Any) -> bool:
        return isinstance(at, str) and is_time(at) and self._window.holds(moment_of(at))

    def rules(self, repos: Iterable[str]) -> dict[str, Any]:
        """Give the conditions as JSON, equal for filters that match alike; ``repos`` is how repositories are named."""
        rules = {
            "kinds": _sorted(self._kinds),
            "runIds": _sorted(self._run_ids),
            "runIdPrefixes": _sorted(self._prefixes),
            "attemptIds": _sorted(self._attempt_ids),
            "repos": None if self._repos is None else sorted(repos),
            "since": _instant(self._window.since),
            "until": _instant(self._window.until),
        }
        return {name: rule for name, rule in rules.items() if rule is not None}

    @property
    def repos(self) -> list[str]:
        """Give the repositories that artifacts may be of, in order; none where any is right."""
        return _sorted(self._repos) or []


def _runs_named_by(kind: str, record_id: str) -> Iterator[str | None]:
    """Give the runs that a record of this id can be of; None stands for any."""
    match kind:
        case "run":
            yield record_id
        case "attempt":
            parts = split_attempt_id(record_id)
            yield None if parts is None else storable_text(parts.run)
        case "gate":
            attempt, mark, _row = record_id.partition("#policy:")
            if mark or "/" not in record_id:
                yield from _runs_named_by("attempt", attempt)
            # A run's id may hold a slash, too, so every cut may be the right one.
            yield from (record_id[: slash.start()] for slash in _SLASH.finditer(record_id))
        case _:
            yield None


def _attempt_of(record: dict[str, Any]) -> str:
    return _text(record.get("id" if record["kind"] == "attempt" else "attemptId"))


def _text(value: Any) -> str:
    # No id and no name is empty.
    return value if isinstance(value, str) else ""


def _sorted(values: Iterable[str] | None) -> list[str] | None:
    return None if values is None else sorted(values)


def _instant(moment: Moment | None) -> str | None:
    return None if moment is None else moment_text(moment)
