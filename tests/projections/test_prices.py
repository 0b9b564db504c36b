"""Price tables: what is found for which model at which time, and what a table of one's own must look like."""

from copy import deepcopy
from typing import Any

import pytest

from projections.price_table import BUILT_IN_PRICES
from projections.prices import (
    PriceTableError,
    built_in_table,
    find_codex_price,
    find_price,
    is_priced_model,
    parse_price_table,
    validate_codex_prices,
)

AT = "2026-03-19T12:00:00Z"


def claude_row(prefix: str, price: float, **more: Any) -> dict[str, Any]:
    rates = {"input": price, "cacheRead": 1, "cacheWrite5m": 2, "cacheWrite1h": 3, "output": 4}
    return {"modelPrefix": prefix, "effectiveFrom": "2026-01-01", **rates, **more}


def codex_row(prefix: str, price: float, **more: Any) -> dict[str, Any]:
    rates = {"input": price, "cachedInput": 1, "output": 4}
    return {"modelPrefix": prefix, "effectiveFrom": "2026-01-01", **rates, **more}


def table(**more: Any) -> dict[str, Any]:
    return {"version": 1, "rows": [claude_row("big-4", 15), claude_row("big-4-6", 5)], **more}


LONG_PROMPT = {"boundary": ">", "tokens": 200_000, "input": 2, "cachedInput": 2, "output": 8}


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("big-4-6-20260205", 5),
        ("big-4-6-2026-02-05", 5),
        ("big-4-6-2026-02-05[1m]", 5),
        ("big-4-6", 5),
        ("big-4-6[1m]", 5),
        ("big-4-20260205", 15),
        ("vendor/big-4-6", None),
        ("big-4-60", None),
        ("big-4-6-2026-2-5", None),
        ("big-4-6-20260205-x", None),
        ("big-4-6-latest", None),
        ("big-5", None),
        ("BIG-4-6", None),
        ("", None),
        (None, None),
        (46, None),
    ],
)
def test_a_dated_model_has_its_own_price_and_a_newer_one_never_its_ancestors(model: Any, price: float | None) -> None:
    row = find_price(model, AT, parse_price_table(table()))
    assert (None if row is None else row["input"]) == price


@pytest.mark.parametrize(
    ("model", "price"),
    [("vendor/big-4-6", 5), ("vendor/big-4-6-20260205", 5), ("vendor/big-4", None), ("other/big-4-6", None)],
)
def test_another_spelling_of_a_model_needs_a_listed_alias(model: str, price: float | None) -> None:
    row = find_price(model, AT, parse_price_table(table(aliases={"vendor/big-4-6": "big-4-6"})))
    assert (None if row is None else row["input"]) == price


def test_the_longest_alias_counts() -> None:
    aliases = {"v/big": "big-4", "v/big-20260101": "big-4-6"}
    prices = parse_price_table(table(aliases=aliases))
    row = find_price("v/big-20260101", AT, prices)
    assert row is not None
    assert row["input"] == 5


def test_old_usage_keeps_its_old_price_when_a_later_row_is_added() -> None:
    rows = [claude_row("big-4", 15), claude_row("big-4", 12, effectiveFrom="2026-04-01")]
    prices = parse_price_table({"version": 2, "rows": rows})
    found = [find_price("big-4", at, prices) for at in ("2026-03-31T23:59:59Z", "2026-04-01T00:00:00Z", "2025-12-31")]
    assert [row and row["input"] for row in found] == [15, 12, None]
    assert is_priced_model("big-4", prices)
    assert not is_priced_model("big-5", prices)


def test_codex_models_have_rows_of_their_own() -> None:
    prices = parse_price_table(table(codex=[codex_row("gpt-6", 1)], aliases={"openai/gpt-6": "gpt-6"}))
    for model in ("gpt-6", "gpt-6-2026-02-05", "openai/gpt-6"):
        row = find_codex_price(model, AT, prices)
        assert row is not None
        assert row["input"] == 1
    assert find_price("gpt-6", AT, prices) is None
    assert find_codex_price("big-4", AT, prices) is None
    assert find_codex_price("gpt-6", AT) is None, "the built-in table prices no Codex model"


def test_the_built_in_table_is_well_formed_and_names_its_version() -> None:
    assert built_in_table().version == BUILT_IN_PRICES["version"]
    assert [dict(row) for row in built_in_table().rows] == BUILT_IN_PRICES["rows"]
    assert parse_price_table({**BUILT_IN_PRICES, "version": "2026-10 own"}).version == "2026-10 own"


def broken(path: str, value: Any) -> Any:
    """Give a good table with the value at a dotted path replaced, or removed for ``...``."""
    good: Any = table(
        codex=[codex_row("gpt-6", 1, longPrompt=dict(LONG_PROMPT))],
        aliases={"vendor/big-4": "big-4"},
        unit="USD per million tokens",
    )
    if not path:
        return value
    *parents, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    place = good
    for name in parents:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return good


@pytest.mark.parametrize(
    ("path", "value", "reason", "field"),
    [
        ("", [], "not_an_object", "table"),
        ("version", ..., "missing", "table.version"),
        ("version", 1.5, "not_a_version", "version"),
        ("version", " ", "not_a_version", "version"),
        ("version", "v1\0", "not_a_version", "version"),
        ("version", "v1\ud83d", "not_a_version", "version"),
        ("version", None, "not_a_version", "version"),
        ("unit", "EUR per token", "unknown_unit", "unit"),
        ("rows", ..., "missing", "table.rows"),
        ("rows", {}, "not_a_list", "rows"),
        ("prices", [], "unknown_key", "table.prices"),
        ("rows.0", "big", "not_an_object", "rows[0]"),
        ("rows.1.output", ..., "missing", "rows[1].output"),
        ("rows.1.output", -1, "not_a_rate", "rows[1].output"),
        ("rows.1.output", "4", "not_a_rate", "rows[1].output"),
        ("rows.1.output", True, "not_a_rate", "rows[1].output"),
        ("rows.1.output", float("inf"), "not_a_rate", "rows[1].output"),
        ("rows.1.output", float("nan"), "not_a_rate", "rows[1].output"),
        ("rows.1.ouptut", 4, "unknown_key", "rows[1].ouptut"),
        ("rows.0.modelPrefix", " ", "blank", "rows[0].modelPrefix"),
        ("rows.0.modelPrefix", 4, "blank", "rows[0].modelPrefix"),
        ("rows.0.effectiveFrom", "2026-02-30", "not_a_date", "rows[0].effectiveFrom"),
        ("rows.0.effectiveFrom", "1 March", "not_a_date", "rows[0].effectiveFrom"),
        ("rows.1.modelPrefix", "big-4", "duplicate_row", "rows[1]"),
        ("codex", {}, "not_a_list", "codex"),
        ("codex.0.modelPrefix", "big-4", "model_in_both_lists", "codex[0].modelPrefix"),
        ("codex.0.cachedInput", ..., "missing", "codex[0].cachedInput"),
        ("codex.0.cacheRead", 1, "unknown_key", "codex[0].cacheRead"),
        ("codex.0.longPrompt", 200_000, "not_an_object", "codex[0].longPrompt"),
        ("codex.0.longPrompt.boundary", "=>", "unknown_boundary", "codex[0].longPrompt.boundary"),
        ("codex.0.longPrompt.boundary", ..., "missing", "codex[0].longPrompt.boundary"),
        ("codex.0.longPrompt.tokens", 0, "not_positive_integer", "codex[0].longPrompt.tokens"),
        ("codex.0.longPrompt.tokens", "200k", "not_positive_integer", "codex[0].longPrompt.tokens"),
        ("codex.0.longPrompt.output", ..., "missing", "codex[0].longPrompt.output"),
        ("codex.0.longPrompt.output", -8, "not_a_rate", "codex[0].longPrompt.output"),
        ("codex.0.longPrompt.cacheWriteInput", 1, "unknown_key", "codex[0].longPrompt.cacheWriteInput"),
        ("codex.0.cacheWriteInput", 1, "missing", "codex[0].longPrompt.cacheWriteInput"),
        ("aliases", [], "not_an_object", "aliases"),
        ("aliases.x", "big-7", "alias_of_unlisted_model", "aliases.x"),
        ("aliases.x", 7, "alias_of_unlisted_model", "aliases.x"),
        ("aliases.big-4", "big-4-6", "alias_is_a_listed_model", "aliases.big-4"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_the_place_of_the_fault(
    path: str, value: Any, reason: str, field: str
) -> None:
    with pytest.raises(PriceTableError) as caught:
        parse_price_table(broken(path, value))
    assert (caught.value.reason, caught.value.field) == (reason, field)
    assert str(caught.value) == f"{reason}: {field}"


def test_a_good_table_is_accepted_as_it_stands_and_not_changed() -> None:
    given = broken("version", 7.0)
    before = deepcopy(given)
    parsed = parse_price_table(given)
    assert (parsed.version, given) == (7, before)
    assert repr(parsed.version) == "7"
    assert [dict(row) for row in validate_codex_prices(given["codex"])] == given["codex"]
