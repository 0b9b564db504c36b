"""Sums over Robota usage observations: what is known adds up, and the cost says how far it can be trusted."""

from collections.abc import Iterable
from typing import Any

from projections.formats.robota_numbers import Number, add
from projections.formats.robota_session import UsageObservation
from projections.reports.robota_order import utf16_key


def fold_cost_status(statuses: Iterable[str | None]) -> str:
    """Fold the cost statuses of observations into one; None stands for an observation without readable usage.

    Nothing at all, or one unknown part, makes the whole ``unknown``; else one ``estimated`` part makes it that.
    """
    seen = set(statuses)
    if not seen or None in seen or "unknown" in seen:
        return "unknown"
    return "estimated" if "estimated" in seen else "exact"


class UsageTotals:
    """The running sums of one group: tokens, cost in US dollars, turns, and the sessions that took part.

    ``session_ids`` may be added to from outside: an activity makes its session count without any usage.
    """

    __slots__ = ("_completion", "_cost_usd", "_prompt", "_statuses", "_total", "session_ids", "turns")

    def __init__(self) -> None:
        self.session_ids: set[str] = set()
        self.turns = 0
        self._prompt: Number = 0
        self._completion: Number = 0
        self._total: Number = 0
        self._cost_usd: Number = 0
        self._statuses: set[str | None] = set()

    def add(self, item: UsageObservation) -> None:
        """Add one observation; a legacy one or that of a consulted tool model adds tokens but no turn."""
        observation = item.observation
        usage: dict[str, Any] = observation.get("usage", {})
        self.session_ids.add(item.session_id)
        if not item.legacy and observation.get("source", {}).get("scope") != "tool":
            self.turns += 1
        self._prompt = add(self._prompt, usage.get("promptTokens", 0))
        self._completion = add(self._completion, usage.get("completionTokens", 0))
        self._total = add(self._total, usage.get("totalTokens", 0))
        self._cost_usd = add(self._cost_usd, usage.get("costUsd", 0))
        self._statuses.add(usage.get("costStatus"))

    def sums(self) -> dict[str, Any]:
        """Give turns, tokens, cost and cost status."""
        return {
            "turns": self.turns,
            "promptTokens": self._prompt,
            "completionTokens": self._completion,
            "totalTokens": self._total,
            "costUsd": self._cost_usd,
            "costStatus": fold_cost_status(self._statuses),
        }

    def with_sessions(self) -> dict[str, Any]:
        """Give the sums and how many sessions took part."""
        return {"sessions": len(self.session_ids), **self.sums()}

    def sorted_session_ids(self) -> list[str]:
        """List the sessions by UTF-16 code unit."""
        return sorted(self.session_ids, key=utf16_key)
