"""Costs: long prompts, cache writes by their time to live, existing amounts, and reasons instead of guesses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.prices import PriceTable, built_in_table, parse_price_table
from projections.pricing import (
    UNAVAILABLE_REASONS,
    Quote,
    price_codex_usage,
    price_request,
    quote_measurement,
    quote_usage,
    with_estimate,
)
from projections.usage import claude_usage

AT = "2026-03-19T12:00:00Z"
Json = dict[str, Any]


def prices(boundary: str = ">", **codex_more: Any) -> PriceTable:
    """Make a table whose base rates are 1 and 10 and whose long-prompt rates are 2 and 20 USD per million tokens."""
    claude = {"input": 1, "cacheRead": 0.1, "cacheWrite5m": 1.25, "cacheWrite1h": 2, "output": 10}
    codex = {"input": 1, "cachedInput": 0.1, "output": 10, **codex_more}

    def row(prefix: str, rates: Json) -> Json:
        doubled = {name: 2 * rate for name, rate in rates.items()}
        long_prompt = {"boundary": boundary, "tokens": 200_000, **doubled}
        return {"modelPrefix": prefix, "effectiveFrom": "2026-01-01", **rates, "longPrompt": long_prompt}

    return parse_price_table({"version": 9, "rows": [row("claude-x", claude)], "codex": [row("gpt-x", codex)]})


def counts(**given_ones: int | None) -> Json:
    absent = dict.fromkeys(("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total"))
    return {**absent, **given_ones}


def codex_cost(tokens: Json, table: PriceTable) -> float | None:
    return price_codex_usage(tokens, "gpt-x", AT, table).usd


# Field report 26: the whole request goes to the long rate, or none of it.
def test_a_long_prompt_prices_the_whole_request_by_its_whole_prompt() -> None:
    beyond = counts(input=210_000, cachedInput=60_000, output=1_000)
    assert codex_cost(beyond, prices()) == pytest.approx((150_000 * 2 + 60_000 * 0.2 + 1_000 * 20) / 1e6)
    assert price_codex_usage(beyond, "gpt-x", AT, prices()).is_long_prompt


@pytest.mark.parametrize(
    ("boundary", "prompt", "is_long"),
    [(">", 200_000, False), (">", 200_001, True), (">=", 199_999, False), (">=", 200_000, True)],
)
def test_the_row_says_on_which_side_of_its_boundary_a_prompt_lies(boundary: str, prompt: int, is_long: bool) -> None:
    quote = price_codex_usage(counts(input=prompt, cachedInput=0, output=0), "gpt-x", AT, prices(boundary))
    assert quote.is_long_prompt is is_long
    assert quote.usd == prompt * (2 if is_long else 1) / 1e6


def test_a_session_of_many_short_requests_never_reaches_the_long_rate() -> None:
    request = counts(input=90_000, cachedInput=0, output=0)
    total = sum(codex_cost(request, prices()) or 0 for _ in range(20))
    assert total == pytest.approx(20 * 90_000 / 1e6)


def test_counts_of_several_requests_beyond_the_boundary_are_not_priced() -> None:
    session = counts(input=1_800_000, cachedInput=0, output=0)
    quote = quote_usage(session, model="gpt-x", at=AT, is_snapshot=True, table=prices())
    assert (quote.usd, quote.basis, quote.reason) == (None, "unavailable", "request_size_unknown")
    small = counts(input=180_000, cachedInput=0, output=0)
    assert quote_usage(small, model="gpt-x", at=AT, is_snapshot=True, table=prices()).usd == 0.18


def test_claudes_raw_counters_add_up_to_the_prompt_that_the_boundary_looks_at() -> None:
    tokens = {"inputTokens": 150_000, "cacheReadTokens": 60_000, "outputTokens": 10}
    assert price_request(tokens, "claude-x", AT, prices())["costUsd"] == pytest.approx((300_000 + 12_000 + 200) / 1e6)
    short = {"inputTokens": 150_000, "cacheReadTokens": 50_000, "outputTokens": 10}
    assert price_request(short, "claude-x", AT, prices())["costUsd"] == pytest.approx((150_000 + 5_000 + 100) / 1e6)


# Field report 27: a total of cache writes is no evidence of their time to live.
@pytest.mark.parametrize(
    ("split", "usd", "reason"),
    [
        ({"ttl5m": 300, "ttl1h": 700}, (300 * 6.25 + 700 * 10) / 1e6, None),
        ({"ttl5m": 300, "ttl1h": 500}, None, "cache_write_split_mismatch"),
        ({"ttl5m": 1300, "ttl1h": -300}, None, "cache_write_split_mismatch"),
        ({"ttl5m": 1000, "ttl1h": None}, None, "cache_write_split_missing"),
        ({}, None, "cache_write_split_missing"),
        (None, None, "cache_write_split_missing"),
    ],
)
def test_cache_writes_are_priced_by_a_split_that_accounts_for_all_of_them(
    split: Json | None, usd: float | None, reason: str | None
) -> None:
    tokens = counts(input=1000, cachedInput=0, cacheWriteInput=1000, output=0)
    quote = quote_usage(tokens, model="claude-opus-5", at=AT, cache_write_split=split)
    assert quote.reason == reason
    assert quote.usd == (None if usd is None else pytest.approx(usd))


def test_no_cache_writes_need_no_split() -> None:
    tokens = counts(input=1000, cachedInput=400, cacheWriteInput=0, output=100)
    for split in (None, {"ttl5m": 0, "ttl1h": 0}):
        quote = quote_usage(tokens, model="claude-opus-5", at=AT, cache_write_split=split)
        assert quote.usd == pytest.approx((600 * 5 + 400 * 0.5 + 100 * 25) / 1e6)


@given(
    uncached=st.integers(0, 10**6),
    cached=st.integers(0, 10**6),
    write_5m=st.integers(0, 10**6),
    write_1h=st.integers(0, 10**6),
    output=st.integers(0, 10**6),
)
def test_a_quote_of_a_whole_usage_block_is_the_price_of_the_request(
    uncached: int, cached: int, write_5m: int, write_1h: int, output: int
) -> None:
    split = {"ephemeral_5m_input_tokens": write_5m, "ephemeral_1h_input_tokens": write_1h}
    block = {
        "input_tokens": uncached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": write_5m + write_1h,
        "cache_creation": split,
        "output_tokens": output,
    }
    usage = claude_usage(block)
    quote = quote_usage(usage["tokens"], model="claude-opus-5", at=AT, cache_write_split=usage["cacheWriteSplit"])
    raw = {
        "inputTokens": uncached,
        "cacheReadTokens": cached,
        "cacheCreation5mTokens": write_5m,
        "cacheCreation1hTokens": write_1h,
        "outputTokens": output,
    }
    priced = price_request(raw, "claude-opus-5", AT)
    assert quote.usd == priced["costUsd"]
    assert quote.parts_usd == {name: usd for name, usd in priced.items() if name not in ("costUsd", "priced")}


# Field report 25: subsets are not added to what they are part of.
def test_cached_and_reasoning_tokens_are_counted_once() -> None:
    tokens = counts(input=100, cachedInput=80, output=30, reasoningOutput=25, total=130)
    quote = price_codex_usage(tokens, "gpt-x", AT, prices())
    assert quote.usd == pytest.approx((20 * 1 + 80 * 0.1 + 30 * 10) / 1e6)
    assert quote.parts_usd == pytest.approx({"inputUsd": 20 / 1e6, "cachedInputUsd": 8 / 1e6, "outputUsd": 300 / 1e6})


def test_codex_cache_writes_are_ordinary_input_unless_the_row_charges_them() -> None:
    tokens = counts(input=100, cachedInput=50, cacheWriteInput=20, output=0)
    assert codex_cost(tokens, prices()) == pytest.approx((50 + 5) / 1e6)
    charged = prices(cacheWriteInput=1.25)
    assert codex_cost(tokens, charged) == pytest.approx((30 + 5 + 25) / 1e6)
    unknown = price_codex_usage(counts(input=100, cachedInput=50, output=0), "gpt-x", AT, charged)
    assert unknown.reason == "counts_missing"


# Field report 28: an unknown model is unpriced, never free and never its neighbour.
@pytest.mark.parametrize(
    ("model", "at", "reason"),
    [
        ("claude-opus-5-9", AT, "model_not_in_table"),
        ("vendor/claude-opus-5", AT, "model_not_in_table"),
        ("gpt-6", AT, "model_not_in_table"),
        ("", AT, "model_missing"),
        (None, AT, "model_missing"),
        ("claude-opus-5", "2025-12-31T23:59:59Z", "no_price_at_time"),
        ("claude-opus-5", None, "event_time_missing"),
        ("claude-opus-5", "", "event_time_missing"),
        ("claude-opus-5", "some day", "event_time_missing"),
    ],
)
def test_what_has_no_price_says_why(model: Any, at: Any, reason: str) -> None:
    tokens = counts(input=5, cachedInput=0, cacheWriteInput=0, output=5)
    for quote in (quote_usage(tokens, model=model, at=at), price_codex_usage(tokens, model, at)):
        assert (quote.usd, quote.basis) == (None, "unavailable")
    assert quote_usage(tokens, model=model, at=at).reason == reason


@pytest.mark.parametrize(
    "tokens",
    [
        None,
        {},
        counts(input=None, cachedInput=0, cacheWriteInput=0, output=3),
        counts(input=5, cachedInput=None, cacheWriteInput=0, output=3),
        counts(input=5, cachedInput=0, cacheWriteInput=None, output=3),
        counts(input=5, cachedInput=0, cacheWriteInput=0, output=None),
        counts(input=-5, cachedInput=0, cacheWriteInput=0, output=3),
        {"input": True, "cachedInput": 0, "cacheWriteInput": 0, "output": "3"},
    ],
)
def test_an_unknown_count_is_not_zero(tokens: Json | None) -> None:
    quote = quote_usage(tokens, model="claude-opus-5", at=AT)
    assert (quote.usd, quote.reason) == (None, "counts_missing")


@pytest.mark.parametrize(
    "tokens",
    [
        counts(input=5, cachedInput=4, cacheWriteInput=2, output=3),
        counts(input=5, cachedInput=0, cacheWriteInput=0, output=3, reasoningOutput=4),
    ],
)
def test_subsets_greater_than_the_whole_are_not_priced(tokens: Json) -> None:
    quote = quote_usage(tokens, model="claude-opus-5", at=AT, cache_write_split={"ttl5m": 2, "ttl1h": 0})
    assert quote.reason == "counts_inconsistent"
    codex = price_codex_usage({**tokens, "cachedInput": 6}, "gpt-x", AT, prices())
    assert codex.reason == "counts_inconsistent"


# Field report 29: zero is an amount, and a replay gives the amount that it gave before.
@pytest.mark.parametrize(
    ("existing", "usd", "basis"),
    [
        ({"usd": 0, "kind": "reported"}, 0, "reported"),
        ({"usd": 0, "kind": "estimate"}, 0, "existing_estimate"),
        ({"usd": 0.25, "kind": "estimate"}, 0.25, "existing_estimate"),
        ({"usd": 0.25, "kind": "reported"}, 0.25, "reported"),
    ],
)
def test_an_existing_amount_wins_whatever_else_is_unknown(existing: Json, usd: float, basis: str) -> None:
    whole = counts(input=500, cachedInput=0, cacheWriteInput=0, output=0)
    for tokens, model, at in ((None, None, None), (whole, "claude-opus-5", AT), (counts(input=500), "none", "never")):
        quote = quote_usage(tokens, model=model, at=at, existing=existing, source="claude.result")
        assert (quote.usd, quote.basis, quote.reason, quote.table_version) == (usd, basis, None, None)
        assert quote.source == "claude.result"


@pytest.mark.parametrize("existing", [None, {"usd": None, "kind": "reported"}], ids=str)
def test_a_missing_amount_is_estimated_and_the_estimate_names_its_table(existing: Json | None) -> None:
    tokens = counts(input=500, cachedInput=0, cacheWriteInput=0, output=0)
    quote = quote_usage(tokens, model="claude-opus-5", at=AT, existing=existing)
    assert (quote.usd, quote.basis, quote.table_version) == (0.0025, "estimate", built_in_table().version)
    assert quote == quote_usage(tokens, model="claude-opus-5", at=AT, existing=existing), "a replay changes nothing"


def test_a_model_that_costs_nothing_has_an_estimate_of_zero() -> None:
    tokens = counts(input=5, cachedInput=0, cacheWriteInput=0, output=5)
    quote = quote_usage(tokens, model="<synthetic>", at=AT)
    assert (quote.usd, quote.basis) == (0, "estimate")


def measurement(**more: Any) -> Json:
    return {
        "kind": "delta",
        "responseId": "msg_1",
        "model": "claude-opus-5",
        "tokens": counts(input=500, cachedInput=0, cacheWriteInput=0, output=0),
        "cost": None,
        "source": "claude.message.usage",
        **more,
    }


def test_an_estimate_enters_a_measurement_as_one_and_keeps_the_order_of_its_keys() -> None:
    quote = quote_measurement(measurement(), AT)
    priced = with_estimate(measurement(), quote)
    assert priced == measurement(cost={"usd": 0.0025, "kind": "estimate"})
    assert list(priced) == list(measurement())


@pytest.mark.parametrize("cost", [{"usd": 0, "kind": "reported"}, {"usd": 0.5, "kind": "estimate"}], ids=str)
def test_a_measurement_with_an_amount_is_left_as_it_is(cost: Json) -> None:
    quote = quote_measurement(measurement(cost=cost), AT)
    assert quote.source == "claude.message.usage"
    assert with_estimate(measurement(cost=cost), quote) == measurement(cost=cost)


def test_a_measurement_that_cannot_be_priced_keeps_its_null() -> None:
    unpriced = measurement(model="claude-next")
    quote = quote_measurement(unpriced, AT)
    assert quote.reason == "model_not_in_table"
    assert with_estimate(unpriced, quote)["cost"] is None


def test_a_snapshot_measurement_is_quoted_as_one() -> None:
    snapshot = measurement(kind="snapshot", model="gpt-x", tokens=counts(input=300_000, cachedInput=0, output=0))
    assert quote_measurement(snapshot, AT, table=prices()).reason == "request_size_unknown"


@given(
    tokens=st.dictionaries(
        st.sampled_from(["input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput"]),
        st.one_of(st.none(), st.integers(-5, 10**18), st.floats(), st.booleans(), st.text(max_size=2)),
    ),
    model=st.sampled_from([None, "", "claude-x", "gpt-x", "gpt-x-2026-01-01", "other"]),
    at=st.sampled_from([None, AT, "2025-01-01T00:00:00Z", "x", 5]),
    split=st.one_of(st.none(), st.dictionaries(st.sampled_from(["ttl5m", "ttl1h"]), st.integers(-2, 5))),
)
def test_a_quote_is_an_amount_or_a_known_reason_and_never_both(
    tokens: Json, model: Any, at: Any, split: Json | None
) -> None:
    quotes: list[Quote] = [
        quote_usage(tokens, model=model, at=at, cache_write_split=split, table=prices()),
        price_codex_usage(tokens, model, at, prices()),
    ]
    for quote in quotes:
        assert (quote.usd is None) is (quote.basis == "unavailable") is (quote.reason in UNAVAILABLE_REASONS)
        assert quote.usd is None or quote.usd >= 0
