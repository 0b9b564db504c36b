"""What usage costs: prices of single requests, and quotes that say where an amount comes from or why there is none.

A missing price is never zero and never a neighbour's: a quote is an amount with its basis, or a reason for none.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from projections.lifecycle.ecmascript import safe_integer
from projections.lifecycle.instants import instant_ms
from projections.prices import (
    CLAUDE_RATES,
    PriceRow,
    Prices,
    PriceTable,
    built_in_table,
    find_codex_price,
    find_price,
    is_priced_model,
)

Basis = Literal["reported", "existing_estimate", "estimate", "unavailable"]

UNAVAILABLE_REASONS = (
    "model_missing",
    "model_not_in_table",
    "no_price_at_time",
    "event_time_missing",
    "counts_missing",
    "counts_inconsistent",
    "cache_write_split_missing",
    "cache_write_split_mismatch",
    "request_size_unknown",
)
"""Why a quote has no amount."""

_TOKENS_PER_PRICE = 1_000_000.0


class Quote(NamedTuple):
    """An amount and its basis.

    ``usd`` is US dollars, None exactly when ``basis`` is ``unavailable``; ``reason`` then says why. ``table_version``
    names the price table of a new estimate, ``is_long_prompt`` whether it was made at the rates of long prompts, and
    ``parts_usd`` what it is the sum of. ``source`` is the source of the measurement whose own amount was kept.
    """

    usd: float | None
    basis: Basis
    reason: str | None = None
    table_version: int | str | None = None
    is_long_prompt: bool = False
    parts_usd: Mapping[str, float] | None = None
    source: str | None = None


class _Unavailable(Exception):  # noqa: N818 - an answer, not a fault
    """Leaves a computation that cannot give an amount; becomes the reason of the quote."""


def price_request(
    tokens: Mapping[str, int | float | None], model: str, ts: str, table: Prices | None = None
) -> dict[str, Any]:
    """Price one request from Claude's raw counters, as the reference does.

    ``tokens``: ``inputTokens`` (without cache reads and writes), ``cacheReadTokens``, ``cacheCreationTokens`` or its
    split ``cacheCreation5mTokens`` and ``cacheCreation1hTokens``, ``outputTokens``; what is missing counts as 0. A
    split above zero is used and the total ignored; without one the total is priced as 5-minute writes. Quotes are
    stricter: see ``quote_usage``.

    Gives ``inputUsd``, ``cacheReadUsd``, ``cacheWrite5mUsd``, ``cacheWrite1hUsd``, ``outputUsd``, their sum ``costUsd``
    in US dollars, and ``priced``: false, with zeros, when no row covers the model at that time (spec: titan 8).
    """
    row = find_price(model, ts, table)
    write_5m, write_1h = tokens.get("cacheCreation5mTokens") or 0, tokens.get("cacheCreation1hTokens") or 0
    if write_5m <= 0 and write_1h <= 0:
        write_5m, write_1h = tokens.get("cacheCreationTokens") or 0, 0
    counts = (
        tokens.get("inputTokens") or 0,
        tokens.get("cacheReadTokens") or 0,
        write_5m,
        write_1h,
        tokens.get("outputTokens") or 0,
    )
    rates = {} if row is None else _rates_for(row, sum(counts[:-1]))
    parts = {f"{name}Usd": _usd(count, rates.get(name, 0)) for name, count in zip(CLAUDE_RATES, counts, strict=True)}
    return {**parts, "costUsd": _total(parts), "priced": row is not None}


def price_codex_usage(tokens: Mapping[str, Any], model: Any, ts: Any, table: PriceTable | None = None) -> Quote:
    """Quote one Codex request from its counts.

    ``tokens`` are token counts of one request: ``input`` includes ``cachedInput`` (and ``cacheWriteInput``), ``output``
    includes ``reasoningOutput``; nothing is added twice, and ``total`` is not looked at. The rates of long prompts
    apply to the whole request when its whole input is beyond the row's boundary. Unavailable, with a reason, when the
    model, the time or a count that has a rate of its own is unknown. Never raises (spec: titan 8).
    """
    prices = built_in_table() if table is None else table
    try:
        row = find_codex_price(_known_model(model), _known_time(ts), prices)
        return _estimate(_codex_parts(tokens, _found(row, model, prices)), prices)
    except _Unavailable as unavailable:
        return Quote(None, "unavailable", str(unavailable))


def quote_usage(
    tokens: Mapping[str, Any] | None,
    *,
    model: Any,
    at: Any,
    existing: Mapping[str, Any] | None = None,
    cache_write_split: Mapping[str, Any] | None = None,
    is_snapshot: bool = False,
    table: PriceTable | None = None,
    source: str | None = None,
) -> Quote:
    """Quote the cost of one measurement.

    An existing amount wins, zero included, whatever else is unknown: basis ``reported`` or ``existing_estimate``.
    Otherwise the table makes an ``estimate`` from the counts, whose input includes cache reads and writes and whose
    output includes reasoning. Cache writes are priced by their time to live: ``cache_write_split`` {``ttl5m``,
    ``ttl1h``} must add up to ``cacheWriteInput``, since a total alone is no evidence; Codex rows have one rate.

    ``at`` is the time of the request. ``is_snapshot`` says that the counts may span several requests; where long
    prompts have rates of their own, such counts beyond the boundary cannot be priced. Never raises
    (spec: titan 8; seed "Pricing context and existing estimates").
    """
    if existing is not None and existing.get("usd") is not None:
        basis: Basis = "reported" if existing.get("kind") == "reported" else "existing_estimate"
        return Quote(existing["usd"], basis, source=source)
    prices = built_in_table() if table is None else table
    try:
        parts = _parts_of(tokens or {}, _known_model(model), _known_time(at), cache_write_split, prices)
        _require_known_size(parts, is_snapshot=is_snapshot)
        return _estimate(parts, prices)
    except _Unavailable as unavailable:
        return Quote(None, "unavailable", str(unavailable))


def quote_measurement(
    measurement: Mapping[str, Any],
    at: Any,
    *,
    cache_write_split: Mapping[str, Any] | None = None,
    table: PriceTable | None = None,
) -> Quote:
    """Quote the cost of a usage measurement of a trace record; ``at`` is the record's time. See ``quote_usage``."""
    return quote_usage(
        measurement["tokens"],
        model=measurement["model"],
        at=at,
        existing=measurement["cost"],
        cache_write_split=cache_write_split,
        is_snapshot=measurement["kind"] == "snapshot",
        table=table,
        source=measurement["source"],
    )


def with_estimate(measurement: Mapping[str, Any], quote: Quote) -> dict[str, Any]:
    """Give a copy of a measurement that carries a new estimate; any other quote changes nothing.

    The table's version has no place in a measurement: whoever stores estimates keeps it beside the record.
    """
    if quote.basis != "estimate":
        return dict(measurement)
    return {**measurement, "cost": {"usd": quote.usd, "kind": "estimate"}}


def price_cost(
    record: Mapping[str, Any], cache_write_split: Mapping[str, Any] | None, table: PriceTable
) -> tuple[dict[str, Any], Quote]:
    """Quote a cost record and give a copy that carries the estimate, where there is one; still a valid record.

    ``cache_write_split`` {``ttl5m``, ``ttl1h``} is what the record's source says beside it. The same record, split and
    table give the same amount (US dollars, ``kind`` ``estimate``); the quote says what it rests on, or why there is
    none.
    """
    measurement = record["measurement"]
    quote = quote_measurement(measurement, record["at"], cache_write_split=cache_write_split, table=table)
    return {**record, "measurement": with_estimate(measurement, quote)}, quote


class _Parts(NamedTuple):
    usd: dict[str, float]
    is_long_prompt: bool


def _estimate(parts: _Parts, prices: PriceTable) -> Quote:
    return Quote(
        _total(parts.usd),
        "estimate",
        table_version=prices.version,
        is_long_prompt=parts.is_long_prompt,
        parts_usd=parts.usd,
    )


def _parts_of(
    tokens: Mapping[str, Any], model: str, at: str, split: Mapping[str, Any] | None, prices: PriceTable
) -> _Parts:
    row = find_price(model, at, prices)
    if row is not None:
        return _claude_parts(tokens, row, split)
    return _codex_parts(tokens, _found(find_codex_price(model, at, prices), model, prices))


def _require_known_size(parts: _Parts, *, is_snapshot: bool) -> None:
    """Refuse counts of perhaps several requests whose sum is beyond a boundary that none of them need have crossed."""
    if is_snapshot and parts.is_long_prompt:
        raise _Unavailable("request_size_unknown")


def _claude_parts(tokens: Mapping[str, Any], row: PriceRow, split: Mapping[str, Any] | None) -> _Parts:
    prompt, cached = _count(tokens, "input"), _count(tokens, "cachedInput")
    written, output = _count(tokens, "cacheWriteInput"), _count(tokens, "output")
    _require_consistent(tokens, uncached=prompt - cached - written, output=output)
    write_5m, write_1h = _split_of(written, split)
    counts = (prompt - cached - written, cached, write_5m, write_1h, output)
    rates = _rates_for(row, prompt)
    usd = {f"{name}Usd": _usd(count, rates[name]) for name, count in zip(CLAUDE_RATES, counts, strict=True)}
    return _Parts(usd, is_long_prompt=_is_long(row, prompt))


def _codex_parts(tokens: Mapping[str, Any], row: PriceRow) -> _Parts:
    prompt, cached, output = (_count(tokens, name) for name in ("input", "cachedInput", "output"))
    # Without a rate of their own, cache writes are input like any other, known or not.
    written = _count(tokens, "cacheWriteInput") if "cacheWriteInput" in row else 0
    _require_consistent(tokens, uncached=prompt - cached - written, output=output)
    counts = {"input": prompt - cached - written, "cachedInput": cached, "cacheWriteInput": written, "output": output}
    rates = _rates_for(row, prompt)
    usd = {f"{name}Usd": _usd(count, rates[name]) for name, count in counts.items() if name in rates}
    return _Parts(usd, is_long_prompt=_is_long(row, prompt))


def _split_of(written: int, split: Mapping[str, Any] | None) -> tuple[int, int]:
    """Give cache writes by their time to live; only a split that accounts for every token is evidence."""
    if split is None:
        if written:
            raise _Unavailable("cache_write_split_missing")
        return 0, 0
    short, long = safe_integer(split.get("ttl5m")), safe_integer(split.get("ttl1h"))
    if short is None or long is None:
        raise _Unavailable("cache_write_split_missing")
    if short < 0 or long < 0 or short + long != written:
        raise _Unavailable("cache_write_split_mismatch")
    return short, long


def _require_consistent(tokens: Mapping[str, Any], *, uncached: int, output: int) -> None:
    """Refuse subsets that are greater than what they are part of."""
    reasoning = safe_integer(tokens.get("reasoningOutput"))
    if uncached < 0 or (reasoning is not None and reasoning > output):
        raise _Unavailable("counts_inconsistent")


def _count(tokens: Mapping[str, Any], name: str) -> int:
    count = safe_integer(tokens.get(name))
    if count is None or count < 0:
        raise _Unavailable("counts_missing")
    return count


def _known_model(model: Any) -> str:
    if not isinstance(model, str) or not model:
        raise _Unavailable("model_missing")
    return model


def _known_time(at: Any) -> str:
    if not isinstance(at, str) or math.isnan(instant_ms(at)):
        raise _Unavailable("event_time_missing")
    return at


def _found(row: PriceRow | None, model: Any, prices: PriceTable) -> PriceRow:
    if row is None:
        raise _Unavailable("no_price_at_time" if is_priced_model(model, prices) else "model_not_in_table")
    return row


def _is_long(row: PriceRow, prompt_tokens: float) -> bool:
    long_prompt = row.get("longPrompt")
    if long_prompt is None:
        return False
    boundary: float = long_prompt["tokens"]
    return prompt_tokens >= boundary if long_prompt["boundary"] == ">=" else prompt_tokens > boundary


def _rates_for(row: PriceRow, prompt_tokens: float) -> Mapping[str, Any]:
    """Give the rates of a whole request: a long prompt changes every one of them, the output's too."""
    rates: Mapping[str, Any] = row["longPrompt"] if _is_long(row, prompt_tokens) else row
    return rates


def _usd(tokens: float, rate: float) -> float:
    # Multiply first, in doubles, as the reference does: the last digit depends on it.
    return float(tokens) * float(rate) / _TOKENS_PER_PRICE


def _total(parts_usd: Mapping[str, float]) -> float:
    # Left to right in the order of the rates; sum() would compensate for rounding and give other last digits.
    total = 0.0
    for usd in parts_usd.values():
        total += usd
    return total
