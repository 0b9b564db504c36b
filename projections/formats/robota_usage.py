"""Decode Robota's usage contracts: the snapshot of a turn, its source, its split by model, and the observation."""

from collections.abc import Mapping
from typing import Any, Final

from projections.formats.robota_numbers import is_metric, plain

USAGE_OUTCOMES: Final = frozenset({"success", "failure", "interrupted"})

_SOURCE_SCOPES: Final = frozenset({"main", "subagent", "background", "tool", "command", "skill"})
_SURFACES: Final = frozenset({"cli", "desktop-app", "browser", "remote", "attach", "unknown"})
_REQUIRED_METRICS: Final = ("totalTokens", "contextUsedTokens", "contextMaxTokens", "contextUsedPercentage")
_OPTIONAL_METRICS: Final = ("promptTokens", "completionTokens")
_SHARE_METRICS: Final = ("promptTokens", "completionTokens", "totalTokens")


def decode_usage_source(value: Any) -> dict[str, str] | None:
    """Read who spent a turn's tokens: a known scope, with id and label where they are non-empty texts."""
    if not isinstance(value, Mapping) or not _is_one_of(value.get("scope"), _SOURCE_SCOPES):
        return None
    source: dict[str, str] = {"scope": value["scope"]}
    for name in ("id", "label"):
        if (text := filled_text(value.get(name))) is not None:
            source[name] = text
    return source


def decode_usage_snapshot(value: Any) -> dict[str, Any] | None:
    """Read one turn's usage; one fault voids it, an unreadable source is merely dropped.

    A count is any finite number of at least 0. The cost status ``exact`` is read as ``estimated``: it was a local
    price-table result, never an invoice. ``unknown`` must come without ``costUsd``, the others with it.
    """
    if not isinstance(value, Mapping) or value.get("scope") != "turn":
        return None
    if value.get("kind") not in ("exact", "estimated") or not _is_cost_consistent(value, ("estimated", "exact")):
        return None
    if not all(is_metric(value.get(name)) for name in _REQUIRED_METRICS):
        return None
    if not all(is_metric(value[name]) for name in _OPTIONAL_METRICS if name in value):
        return None
    usage: dict[str, Any] = {"kind": value["kind"], "scope": "turn"}
    usage.update((name, plain(value[name])) for name in _REQUIRED_METRICS)
    usage["costStatus"] = "unknown" if value["costStatus"] == "unknown" else "estimated"
    usage.update((name, plain(value[name])) for name in (*_OPTIONAL_METRICS, "costUsd") if name in value)
    if (source := decode_usage_source(value.get("source"))) is not None:
        usage["source"] = source
    return usage


def decode_model_shares(value: Any) -> list[dict[str, Any]] | None:
    """Read the split of a turn over models: every share or none, for a partial split misstates what each spent."""
    if not isinstance(value, list) or not value:
        return None
    shares = [_decode_share(share) for share in value]
    readable = [share for share in shares if share is not None]
    return readable if len(readable) == len(shares) else None


def decode_usage_observation(value: Any) -> dict[str, Any] | None:
    """Read the observation of a turn; None without its ids or a known outcome. Unreadable usage leaves it without."""
    if not isinstance(value, Mapping) or not _is_one_of(value.get("outcome"), USAGE_OUTCOMES):
        return None
    observation_id, turn_id = filled_text(value.get("usageObservationId")), filled_text(value.get("turnId"))
    if observation_id is None or turn_id is None:
        return None
    surface = value.get("surface")
    optional = {
        "modelId": filled_text(value.get("modelId")),
        "providerId": filled_text(value.get("providerId")),
        "modelShares": decode_model_shares(value.get("modelShares")),
        "surface": surface if _is_one_of(surface, _SURFACES) else None,
        "source": decode_usage_source(value.get("source")),
        "usage": decode_usage_snapshot(value.get("usage")),
    }
    observation = {"usageObservationId": observation_id, "turnId": turn_id, "outcome": value["outcome"]}
    return observation | {name: part for name, part in optional.items() if part is not None}


def filled_text(value: Any) -> str | None:
    """Give a non-empty text; None for anything else."""
    return value if isinstance(value, str) and value else None


def _decode_share(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or not _is_cost_consistent(value, ("estimated",)):
        return None
    names: dict[str, Any] = {name: filled_text(value.get(name)) for name in ("providerId", "modelId")}
    if None in names.values() or not all(is_metric(value.get(name)) for name in _SHARE_METRICS):
        return None
    share = names | {name: plain(value[name]) for name in _SHARE_METRICS} | {"costStatus": value["costStatus"]}
    if "costUsd" in value:
        share["costUsd"] = plain(value["costUsd"])
    return share


def _is_cost_consistent(value: Mapping[str, Any], priced: tuple[str, ...]) -> bool:
    status = value.get("costStatus")
    if status == "unknown":
        return "costUsd" not in value
    return status in priced and is_metric(value.get("costUsd"))


def _is_one_of(value: Any, known: frozenset[str]) -> bool:
    return isinstance(value, str) and value in known
