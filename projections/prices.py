"""Price tables: parse one that people wrote, and find the row that prices a model at a time."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from projections.canonical import digest_of_json
from projections.errors import ProjectionError
from projections.lifecycle.ecmascript import safe_integer
from projections.lifecycle.instants import instant_ms
from projections.price_table import BUILT_IN_PRICES
from projections.text import JS_LINE_END, is_blank, storable_text, utf16_length

PRICE_UNIT: Final = "USD per million tokens"

CLAUDE_RATES: Final = ("input", "cacheRead", "cacheWrite5m", "cacheWrite1h", "output")
"""Rates of a row for usage whose cache writes are priced by their time to live."""

CODEX_RATES: Final = ("input", "cachedInput", "output")
"""Rates of a row for usage whose input includes what was cached."""

CODEX_OPTIONAL_RATES: Final = ("cacheWriteInput",)
"""Without a rate of their own, cache writes of such usage are ordinary input."""

BOUNDARIES: Final = (">", ">=")
"""Whether a prompt of exactly ``tokens`` is still short (``>``) or already long (``>=``)."""

PriceRow = Mapping[str, Any]

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# A dated model id, with the date in either spelling, and a bracketed variant after it.
_DATED = re.compile(rf"-(?:[0-9]{{8}}|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?:\[[^{JS_LINE_END}]*\])?")
_TABLE_KEYS = ("version", "unit", "rows", "codex", "aliases")


class PriceTableError(ProjectionError):
    """A price table that cannot be used; ``field`` is the path of what is wrong, such as ``rows[2].output``."""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices in US dollars per million tokens.

    ``rows`` have the rates of ``CLAUDE_RATES``, ``codex`` those of ``CODEX_RATES``; a model prefix is in one of the two
    only. ``aliases`` maps other spellings of a model (``vendor/model``) to the one in the rows.
    """

    version: int | str
    rows: tuple[PriceRow, ...]
    codex: tuple[PriceRow, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of all that the table says; two tables of one version that differ have two digests."""
        rows, codex = list(self.rows), list(self.codex)
        return digest_of_json({"version": self.version, "rows": rows, "codex": codex, "aliases": dict(self.aliases)})


Prices = PriceTable | Sequence[PriceRow]
"""A table, or bare rows without version and aliases."""


@cache
def built_in_table() -> PriceTable:
    """Give the table that comes with the project."""
    return parse_price_table(BUILT_IN_PRICES)


def parse_price_table(value: Any) -> PriceTable:
    """Check a price table (parsed JSON or TOML) and give it in the form that pricing reads.

    Keys: ``version`` (an integer or a text), ``unit`` (may be absent, else ``USD per million tokens``), ``rows``,
    ``codex``, ``aliases`` (may be absent). A row: ``modelPrefix``, ``effectiveFrom`` (``YYYY-MM-DD``), its rates, and
    for models whose long prompts cost more ``longPrompt`` {``boundary`` ``>`` or ``>=``, ``tokens``, its rates}.

    Raises PriceTableError for the first thing that is wrong.
    """
    table = _object(value, "table", required=("version", "rows"), optional=_TABLE_KEYS)
    version = table["version"]
    # It stands beside amounts in databases, and not all of them take a NUL or half a surrogate pair.
    is_text = isinstance(version, str) and not is_blank(version) and storable_text(version) == version
    if not is_text and safe_integer(version) is None:
        raise PriceTableError("not_a_version", "version")
    if table.get("unit", PRICE_UNIT) != PRICE_UNIT:
        raise PriceTableError("unknown_unit", "unit")
    rows = _rows(table["rows"], "rows", CLAUDE_RATES, ())
    codex = validate_codex_prices(table.get("codex", []))
    shared = {row["modelPrefix"] for row in rows} & {row["modelPrefix"] for row in codex}
    if shared:
        raise PriceTableError("model_in_both_lists", f"codex[{_index_of(codex, shared)}].modelPrefix")
    return PriceTable(
        version=version if isinstance(version, str) else int(version),
        rows=rows,
        codex=codex,
        aliases=_aliases(table.get("aliases", {}), [*rows, *codex]),
    )


def validate_codex_prices(value: Any) -> tuple[PriceRow, ...]:
    """Check rows for Codex usage: ``input``, ``cachedInput`` and ``output``, ``cacheWriteInput`` where it is charged.

    Raises PriceTableError for the first thing that is wrong.
    """
    return _rows(value, "codex", CODEX_RATES, CODEX_OPTIONAL_RATES)


def find_price(model: Any, ts: Any, table: Prices | None = None) -> PriceRow | None:
    """Find the row that prices a model at a time; None when no row does.

    A row's prefix matches the model itself, or the model followed by ``[…]`` or by a date (``-YYYYMMDD`` or
    ``-YYYY-MM-DD``, then perhaps ``[…]``): a newer model is never priced as the one whose name it extends. Of the rows
    that are in effect (``effectiveFrom <= ts`` as plain text, so offsets are not looked at), the longest prefix wins,
    then the latest date, then the first row. A model that no row matches is looked up by its alias
    (spec: titan 8).
    """
    prices = built_in_table() if table is None else table
    if isinstance(prices, PriceTable):
        return _find(model, ts, prices.rows, prices.aliases)
    return _find(model, ts, prices, {})


def find_codex_price(model: Any, ts: Any, table: PriceTable | None = None) -> PriceRow | None:
    """Find the Codex row that prices a model at a time, by the rules of ``find_price``."""
    prices = built_in_table() if table is None else table
    return _find(model, ts, prices.codex, prices.aliases)


def is_priced_model(model: Any, table: PriceTable) -> bool:
    """Say whether a table prices a model at some time, if not at every time."""
    return bool(_matching(model, [*table.rows, *table.codex], table.aliases))


def _find(model: Any, ts: Any, rows: Iterable[PriceRow], aliases: Mapping[str, str]) -> PriceRow | None:
    if not isinstance(ts, str):
        return None
    matching = _matching(model, [row for row in rows if row["effectiveFrom"] <= ts], aliases)
    # max() keeps the first of equal rows.
    return max(matching, key=lambda row: (utf16_length(row["modelPrefix"]), row["effectiveFrom"]), default=None)


def _matching(model: Any, rows: Sequence[PriceRow], aliases: Mapping[str, str]) -> list[PriceRow]:
    """List the rows that match a model by its own name or, when there are none, by its alias."""
    if not isinstance(model, str):
        return []
    for name in (model, _unaliased(model, aliases)):
        matching = [row for row in rows if _rest_of_model(name, row["modelPrefix"]) is not None]
        if matching:
            return matching
    return []


def _rest_of_model(model: str, prefix: str) -> str | None:
    """Give what follows a prefix that ends where a model's name may end, else None."""
    if not model.startswith(prefix):
        return None
    rest = model[len(prefix) :]
    return rest if not rest or rest.startswith("[") or _DATED.fullmatch(rest) else None


def _unaliased(model: str, aliases: Mapping[str, str]) -> str:
    """Put the listed name in the place of the longest alias that the model begins with."""
    rests = {alias: _rest_of_model(model, alias) for alias in aliases}
    matching = [alias for alias, rest in rests.items() if rest is not None]
    if not matching:
        return model
    alias = max(matching, key=len)
    return f"{aliases[alias]}{rests[alias]}"


def _object(value: Any, path: str, *, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PriceTableError("not_an_object", path)
    for name in value:
        if name not in required and name not in optional:
            raise PriceTableError("unknown_key", f"{path}.{name}")
    for name in required:
        if name not in value:
            raise PriceTableError("missing", f"{path}.{name}")
    return value


def _rows(value: Any, path: str, rates: Sequence[str], optional_rates: Sequence[str]) -> tuple[PriceRow, ...]:
    if not isinstance(value, list):
        raise PriceTableError("not_a_list", path)
    rows = tuple(_row(row, f"{path}[{index}]", rates, optional_rates) for index, row in enumerate(value))
    seen: set[tuple[str, str]] = set()
    for index, row in enumerate(rows):
        key = (row["modelPrefix"], row["effectiveFrom"])
        if key in seen:
            raise PriceTableError("duplicate_row", f"{path}[{index}]")
        seen.add(key)
    return rows


def _row(value: Any, path: str, rates: Sequence[str], optional_rates: Sequence[str]) -> PriceRow:
    row = _object(
        value, path, required=("modelPrefix", "effectiveFrom", *rates), optional=("longPrompt", *optional_rates)
    )
    if not isinstance(row["modelPrefix"], str) or is_blank(row["modelPrefix"]):
        raise PriceTableError("blank", f"{path}.modelPrefix")
    since = row["effectiveFrom"]
    if not isinstance(since, str) or not _DATE.fullmatch(since) or math.isnan(instant_ms(since)):
        raise PriceTableError("not_a_date", f"{path}.effectiveFrom")
    _require_rates(row, path)
    if "longPrompt" in row:
        given_rates = [name for name in (*rates, *optional_rates) if name in row]
        _require_long_prompt(row["longPrompt"], f"{path}.longPrompt", given_rates)
    return dict(row)


def _require_long_prompt(value: Any, path: str, rates: Sequence[str]) -> None:
    """Check the rates of long prompts, one for each rate of the row, and where they begin."""
    long_prompt = _object(value, path, required=("boundary", "tokens", *rates))
    _require_rates(long_prompt, path)
    if long_prompt["boundary"] not in BOUNDARIES:
        raise PriceTableError("unknown_boundary", f"{path}.boundary")
    tokens = safe_integer(long_prompt["tokens"])
    if tokens is None or tokens < 1:
        raise PriceTableError("not_positive_integer", f"{path}.tokens")


def _require_rates(row: Mapping[str, Any], path: str) -> None:
    for name in (*CLAUDE_RATES, *CODEX_RATES, *CODEX_OPTIONAL_RATES):
        rate = row.get(name, 0)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise PriceTableError("not_a_rate", f"{path}.{name}")


def _aliases(value: Any, rows: Sequence[PriceRow]) -> dict[str, str]:
    if not isinstance(value, dict):
        raise PriceTableError("not_an_object", "aliases")
    for alias, model in value.items():
        if is_blank(alias) or _matching(alias, rows, {}):
            raise PriceTableError("alias_is_a_listed_model", f"aliases.{alias}")
        if not _matching(model, rows, {}):
            raise PriceTableError("alias_of_unlisted_model", f"aliases.{alias}")
    return dict(value)


def _index_of(rows: Sequence[PriceRow], prefixes: set[str]) -> int:
    return next(index for index, row in enumerate(rows) if row["modelPrefix"] in prefixes)
