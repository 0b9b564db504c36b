"""Usage: which measurements describe distinct spend, and what their sums are (spec: titan 3).

A measurement is ``{model, tokens{input, output, cachedInput, cacheWriteInput, reasoningOutput, total}, cost, source}``
with either ``{kind: "delta", responseId}`` or ``{kind: "snapshot", scope, scopeId, epoch, sequence}``. Input includes
cache reads and writes, output includes reasoning; unknown counts and costs are null. Money is in USD.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from projections.text import MAX_SAFE_INTEGER

Measurement = Mapping[str, Any]
Basis = Literal["delta", "snapshot"]

TOKEN_FIELDS = ("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total")
"""Token counts of a measurement, in record order; all are there, null when unknown."""

CLAUDE_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Token counts of a Claude ``usage`` block; ``input_tokens`` are those that no cache had."""


class FoldedUsage(NamedTuple):
    """Measurements that may be summed, and what they are: per-response deltas or snapshots of counters."""

    basis: Basis
    measurements: list[Measurement]


def fold_usage(measurements: Iterable[Measurement]) -> FoldedUsage:
    """Pick the measurements that describe distinct spend; the inputs themselves are returned.

    Deltas count once per response, the last report winning in the place of the first. Any delta discards every
    snapshot. Else the highest sequence per scope, scope id and epoch counts (a tie goes to the later), and a
    conversation's snapshot supersedes the turns of its epoch. Nothing folds to a snapshot basis.
    """
    deltas: dict[str, Measurement] = {}
    snapshots: dict[tuple[str, str, str], Measurement] = {}
    for measurement in measurements:
        if measurement["kind"] == "delta":
            deltas[measurement["responseId"]] = measurement
        elif not deltas:
            key = (measurement["scope"], measurement["scopeId"], measurement["epoch"])
            best = snapshots.get(key)
            if best is None or measurement["sequence"] >= best["sequence"]:
                snapshots[key] = measurement
    if deltas:
        return FoldedUsage("delta", list(deltas.values()))
    covered = {epoch for scope, _, epoch in snapshots if scope == "conversation"}
    kept = [item for (scope, _, epoch), item in snapshots.items() if scope == "conversation" or epoch not in covered]
    return FoldedUsage("snapshot", kept)


def usage_from_measurements(measurements: Iterable[Measurement]) -> dict[str, Any] | None:
    """Usage of a step or attempt, ``{costUsd, inputTokens?, outputTokens?}``: the sum of the folded measurements.

    Summed left to right. An unknown cost counts 0, an unknown token count not at all; None without measurements.
    """
    total: dict[str, Any] | None = None
    for measurement in fold_usage(measurements).measurements:
        total = add_usage(total, _usage_of(measurement))
    return total


def _usage_of(measurement: Measurement) -> dict[str, Any]:
    cost, tokens = measurement["cost"], measurement["tokens"]
    usage = {"costUsd": 0 if cost is None else cost["usd"]}
    for field, source in (("inputTokens", "input"), ("outputTokens", "output")):
        if tokens[source] is not None:
            usage[field] = tokens[source]
    return usage


def add_usage(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Sum of two usages, None standing for none; a token count that neither has stays absent."""
    if first is None or second is None:
        present = second if first is None else first
        return None if present is None else dict(present)
    total = {"costUsd": first["costUsd"] + second["costUsd"]}
    for field in ("inputTokens", "outputTokens"):
        counts = [usage[field] for usage in (first, second) if usage.get(field) is not None]
        if counts:
            total[field] = sum(counts)
    return total


def usage_summary(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Folded usage per model, models in the order first seen.

    One ``{model, inputTokens, outputTokens, requestCount, tokens, basis}`` per model. A count that is null in one
    member is null in the sum; a conversation's snapshot has no single model; requests are known for deltas only.
    """
    basis, folded = fold_usage(measurements)
    groups: dict[str | None, list[Measurement]] = {}
    for measurement in folded:
        groups.setdefault(None if measurement.get("scope") == "conversation" else measurement["model"], []).append(
            measurement
        )
    return [_summary_row(model, basis, members) for model, members in groups.items()]


def _summary_row(model: str | None, basis: Basis, members: Sequence[Measurement]) -> dict[str, Any]:
    tokens = {field: sum_or_null([member["tokens"][field] for member in members]) for field in TOKEN_FIELDS}
    return {
        "model": model,
        "inputTokens": tokens["input"],
        "outputTokens": tokens["output"],
        "requestCount": len(members) if basis == "delta" else None,
        "tokens": tokens,
        "basis": basis,
    }


def sum_or_null(counts: Sequence[int | None]) -> int | None:
    """Sum of counts; null as soon as one of them is."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def count_of(value: Any) -> int | None:
    """A token count as a source wrote it: an integer from 0 to 2**53-1 (``1.0`` is one), anything else unknown."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_SAFE_INTEGER else None


def claude_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts of a Claude ``usage`` block: ``{tokens, cacheWriteSplit: {ttl5m, ttl1h} | null}``.

    The block's input leaves cache reads and writes out; ours takes them in, so it is unknown when one of the three
    is. Cache writes are split by their time to live where the block says so.
    """
    tokens = claude_tokens(*(count_of(usage.get(name)) for name in CLAUDE_COUNTS))
    return {"tokens": tokens, "cacheWriteSplit": cache_write_split(usage.get("cache_creation"))}


def claude_tokens(
    uncached: int | None, output: int | None, cached: int | None, written: int | None
) -> dict[str, int | None]:
    """Token counts of a Claude ``usage`` block from those of ``CLAUDE_COUNTS``."""
    input_tokens = None if uncached is None or cached is None or written is None else uncached + cached + written
    return {
        "input": input_tokens,
        "output": output,
        "cachedInput": cached,
        "cacheWriteInput": written,
        "reasoningOutput": None,
        "total": None if input_tokens is None or output is None else input_tokens + output,
    }


def cache_write_split(creation: Any) -> dict[str, int] | None:
    """Cache writes of a Claude ``usage`` block by their time to live; None where it says nothing about that."""
    # What was parsed is a dict; asking for a Mapping first costs as much as all the rest.
    if type(creation) is not dict and not isinstance(creation, Mapping):
        return None
    short = count_of(creation.get("ephemeral_5m_input_tokens"))
    long = count_of(creation.get("ephemeral_1h_input_tokens"))
    return None if short is None and long is None else {"ttl5m": short or 0, "ttl1h": long or 0}
