"""Nine all-time gauges over Robota sessions: a snapshot to be read, never summed over exports."""

from collections.abc import Mapping, Sequence
from typing import Any

from projections.formats.robota_numbers import Number, add
from projections.formats.robota_session import UsageObservation, normalize_session


def usage_gauges(records: Sequence[Mapping[str, Any]]) -> dict[str, Number]:
    """Give the gauges by name: sessions, turns, tokens, and cost in US dollars, as far as they are known.

    There is no window. The first observation of an id counts; unlike in the personal report, that of a consulted tool
    model is a turn here. A half token split counts as unknown, yet its known half is added. Raises ``invalid_field``
    for a record that cannot be read.
    """
    gauges: dict[str, Number] = {
        "robota.session.count": len(records),
        "robota.turn.count": 0,
        "robota.token.total": 0,
        "robota.token.input.known": 0,
        "robota.token.output.known": 0,
        "robota.token.split_unknown_observations": 0,
        "robota.cost.usd.known": 0,
        "robota.cost.unknown_observations": 0,
        "robota.cost.estimated_observations": 0,
    }
    seen: set[str] = set()
    for record in records:
        for item in normalize_session(record).observations:
            if item.id not in seen:
                seen.add(item.id)
                _count_observation(item, gauges)
    return gauges


def _count_observation(item: UsageObservation, gauges: dict[str, Number]) -> None:
    usage: dict[str, Any] = item.observation.get("usage", {})
    if not item.legacy:
        gauges["robota.turn.count"] += 1
    for name, field in (
        ("robota.token.total", "totalTokens"),
        ("robota.token.input.known", "promptTokens"),
        ("robota.token.output.known", "completionTokens"),
        ("robota.cost.usd.known", "costUsd"),
    ):
        gauges[name] = add(gauges[name], usage.get(field, 0))
    if "promptTokens" not in usage or "completionTokens" not in usage:
        gauges["robota.token.split_unknown_observations"] += 1
    # The decoder gives a cost exactly when its status is not unknown, and then the status is estimated.
    known = "costUsd" in usage
    gauges["robota.cost.estimated_observations" if known else "robota.cost.unknown_observations"] += 1
