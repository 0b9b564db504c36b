"""Normalise one persisted Robota session: its usage observations and its activities.

A session record is ``{id, history[]?, skillActivationEvents[]?, …}``, a history entry ``{id, timestamp, category, type,
data?}``; only the entry's ``type`` selects. Content (names, prompts, arguments) is never read.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from projections.errors import ProjectionError
from projections.formats.robota_time import iso_text, read_date_ms
from projections.formats.robota_usage import decode_usage_observation, decode_usage_snapshot, filled_text
from projections.text import js_text

Entry = Mapping[str, Any]

_ABSENT: Final = "undefined"


class UsageObservation(NamedTuple):
    """One turn's usage: who saw it, when (ms since 1970), and whether it is an older ``usage-summary`` entry."""

    id: str
    session_id: str
    at_ms: int
    legacy: bool
    observation: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Give the observation as the reference shows it."""
        return {
            "id": self.id,
            "sessionId": self.session_id,
            "at": iso_text(self.at_ms),
            "legacy": self.legacy,
            "observation": self.observation,
        }


class Activity(NamedTuple):
    """One tool that a session started, or one skill that it activated, at a time in ms since 1970."""

    id: str
    session_id: str
    key: str
    label: str
    kind: str
    at_ms: int

    def as_json(self) -> dict[str, Any]:
        """Give the activity as the reference shows it."""
        return {
            "id": self.id,
            "sessionId": self.session_id,
            "key": self.key,
            "label": self.label,
            "kind": self.kind,
            "at": iso_text(self.at_ms),
        }


class NormalizedSession(NamedTuple):
    """What the reports read of one session record, in history order."""

    observations: list[UsageObservation]
    activities: list[Activity]

    def as_json(self) -> dict[str, Any]:
        """Give both lists as the reference shows them."""
        return {
            "observations": [observation.as_json() for observation in self.observations],
            "activities": [activity.as_json() for activity in self.activities],
        }


def normalize_session(record: Mapping[str, Any]) -> NormalizedSession:
    """Read the usage observations and activities of a session record; duplicates stay.

    An observation hides at most one summary of the same usage. Entries without a readable time are dropped, after they
    have hidden what they hide. Raises ``invalid_field`` when the record's id is no text or a list is none.
    """
    session_id, entries = session_id_of(record), history_of(record)
    observations = [*_observations(session_id, entries)]
    return NormalizedSession(observations, [*_tool_starts(session_id, entries), *_skill_starts(session_id, record)])


def session_id_of(record: Mapping[str, Any]) -> str:
    """Give a session record's id; raises ``invalid_field`` when it is no text."""
    session_id = record.get("id")
    if not isinstance(session_id, str):
        raise ProjectionError("invalid_field", "id")
    return session_id


def history_of(record: Mapping[str, Any]) -> list[Entry]:
    """Give a session's history; an entry that is no object becomes an empty one, so that positions stay.

    Raises ``invalid_field`` when the history is neither absent, null nor a list.
    """
    return [entry if isinstance(entry, Mapping) else {} for entry in _list_of(record, "history")]


def hidden_summaries(entries: Sequence[Entry]) -> set[str]:
    """Find the ids of the ``usage-summary`` entries that a ``usage-observation`` says again.

    An observation with usage hides one summary of equal decoded usage, the nearest by history position and the earlier
    of two as near; a summary is hidden once. Ids are hidden, so entries that share one vanish together.
    """
    unmatched: dict[tuple[Any, ...], list[int]] = {}
    for index, entry in enumerate(entries):
        if entry.get("type") == "usage-summary" and (usage := decode_usage_snapshot(entry.get("data"))) is not None:
            unmatched.setdefault(usage_key(usage), []).append(index)
    hidden: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.get("type") != "usage-observation":
            continue
        observation = decode_usage_observation(entry.get("data"))
        if observation is None or "usage" not in observation:
            continue
        if candidates := unmatched.get(usage_key(observation["usage"])):
            hidden.add(entry_id(entries[candidates.pop(nearest_index(candidates, index))]))
    return hidden


def nearest_index(positions: Sequence[int], position: int) -> int:
    """Find which of some sorted positions is nearest, the earlier one on a tie; there must be one."""
    after = bisect_left(positions, position)
    if after == 0:
        return 0
    if after == len(positions) or position - positions[after - 1] <= positions[after] - position:
        return after - 1
    return after


def usage_key(usage: Mapping[str, Any]) -> tuple[Any, ...]:
    """Give what two decoded usages must share to be the same one: every field, the source's included."""
    return tuple(tuple(value.items()) if isinstance(value, dict) else value for value in usage.values()) + tuple(usage)


def entry_id(entry: Entry) -> str:
    """Give a history entry's id as text, ``undefined`` when it has none."""
    return _template_text(entry, "id")


def _observations(session_id: str, entries: Sequence[Entry]) -> Iterator[UsageObservation]:
    hidden = hidden_summaries(entries)
    for entry in entries:
        at_ms = _time_ms(entry)
        if at_ms is None:
            continue
        if entry.get("type") == "usage-observation":
            observation = decode_usage_observation(entry.get("data"))
            if observation is not None:
                observation_id = observation["usageObservationId"]
                yield UsageObservation(observation_id, session_id, at_ms, legacy=False, observation=observation)
        elif entry.get("type") == "usage-summary" and entry_id(entry) not in hidden:
            usage = decode_usage_snapshot(entry.get("data"))
            if usage is not None:
                yield _legacy_observation(session_id, entry_id(entry), at_ms, usage)


def _legacy_observation(session_id: str, summary_id: str, at_ms: int, usage: dict[str, Any]) -> UsageObservation:
    observation_id = f"legacy:{session_id}:{summary_id}"
    observation = {
        "usageObservationId": observation_id,
        "turnId": f"legacy:{summary_id}",
        "outcome": "success",
        "usage": usage,
    }
    if "source" in usage:
        observation["source"] = usage["source"]
    observation["surface"] = "unknown"
    return UsageObservation(observation_id, session_id, at_ms, legacy=True, observation=observation)


def _tool_starts(session_id: str, entries: Sequence[Entry]) -> Iterator[Activity]:
    for entry in entries:
        data = entry.get("data")
        if entry.get("type") != "tool-start" or not isinstance(data, Mapping):
            continue
        name, at_ms = filled_text(data.get("toolName")), _time_ms(entry)
        if name is not None and at_ms is not None:
            yield Activity(f"tool:{session_id}:{entry_id(entry)}", session_id, f"tool:{name}", name, "tool", at_ms)


def _skill_starts(session_id: str, record: Mapping[str, Any]) -> Iterator[Activity]:
    # The history repeats activations as entries of its own; this list is the one that counts.
    for event in _list_of(record, "skillActivationEvents"):
        if not isinstance(event, Mapping) or event.get("status") != "started":
            continue
        at_ms, source = _time_ms(event), _template_text(event, "source")
        if at_ms is None:
            continue
        qualified = event.get("qualifiedName") is not None
        label = _template_text(event, "qualifiedName" if qualified else "skillName")
        at_text, invocation = _template_text(event, "timestamp"), _template_text(event, "invocation")
        yield Activity(
            id=f"activation:{session_id}:{at_text}:{source}:{label}:{invocation}",
            session_id=session_id,
            key=label if qualified else f"{source}:{label}",
            label=label,
            kind=source,
            at_ms=at_ms,
        )


def _time_ms(entry: Entry) -> int | None:
    return read_date_ms(entry["timestamp"]) if "timestamp" in entry else None


def _template_text(entry: Entry, name: str) -> str:
    """Give a field as ECMAScript puts it into a template text; a list or an object counts as absent."""
    value = entry.get(name, _ABSENT)
    return _ABSENT if isinstance(value, (Mapping, list)) else js_text(value)


def _list_of(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ProjectionError("invalid_field", name)
    return value
