"""`trace-projector price`: what a model costs at a time, and what a request costs then."""

import json
import math
from collections.abc import Iterator
from typing import Any

import click

from worker.cli import EXIT_FAILED, CommandFailed, Invocation

REASONS = {
    "model_missing": "no model was named",
    "model_not_in_table": "no row of the table matches the model",
    "no_price_at_time": "the table prices the model only from a later time",
    "counts_inconsistent": "cache reads and writes exceed the input, or reasoning exceeds the output",
    "cache_write_split_missing": "say how long cache writes live: --cache-write-5m and --cache-write-1h",
    "cache_write_split_mismatch": "--cache-write-5m and --cache-write-1h do not add up to --cache-write",
}
"""What a reason for no price means to somebody who typed the numbers."""

_Count = click.IntRange(min=0, max=2**53 - 1)


@click.command(
    "price",
    epilog="""\b
Examples:
  trace-projector price claude-sonnet-5 --at 2026-10-01
  trace-projector price claude-sonnet-5 --at 2026-10-01T09:00:00Z --input 1500 --cache-read 400 --output 90
  trace-projector price claude-opus-5 --at 2026-10-01 --input 1100 --cache-write-5m 300 --cache-write-1h 700 --json
""",
)
@click.argument("model", metavar="MODEL")
@click.option("--at", "at", metavar="TIME", required=True, help="When: a date, or a time as in 2026-10-01T09:00:00Z.")
@click.option("--input", "input_tokens", type=_Count, help="Input tokens, cache reads and writes included.")
@click.option("--output", "output_tokens", type=_Count, help="Output tokens, reasoning included.")
@click.option("--cache-read", "cache_read", type=_Count, help="Of the input: tokens read from the cache.")
@click.option("--cache-write", "cache_write", type=_Count, help="Of the input: tokens written to the cache.")
@click.option("--cache-write-5m", "write_5m", type=_Count, help="Of those: tokens that live five minutes.")
@click.option("--cache-write-1h", "write_1h", type=_Count, help="Of those: tokens that live an hour.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.pass_obj
def price_command(  # noqa: PLR0913  (one argument per option)
    invocation: Invocation,
    *,
    model: str,
    at: str,
    input_tokens: int | None,
    output_tokens: int | None,
    cache_read: int | None,
    cache_write: int | None,
    write_5m: int | None,
    write_1h: int | None,
    as_json: bool,
) -> int:
    """Print what MODEL costs at a time, in US dollars.

    Without token counts: the rates of the price table that apply then, per million tokens. With them: the price of one
    request; counts that are not given are 0. The table is that of the setting prices_file, else the built-in one.

    Exit code 1 means that there is no price, and the reason is said; it is never zero and never a neighbour's.
    """
    _check_time(at)
    counts = _counts(input_tokens, output_tokens, cache_read, cache_write, write_5m, write_1h)
    from worker.price_file import load_prices  # noqa: PLC0415  (late, like every heavy import of a command)

    answer = _answer(model, at, counts, load_prices(invocation.settings()))
    if as_json:
        click.echo(json.dumps(answer))
        return EXIT_FAILED if answer["basis"] == "unavailable" else 0
    if answer["basis"] == "unavailable":
        why = f"{REASONS[answer['reason']]} (price table {answer['tableVersion']})"
        raise CommandFailed(f"no price for {model!r} at {at}: {why}")
    for line in _lines(answer):
        click.echo(line)
    return 0


def _check_time(at: str) -> None:
    from projections.lifecycle import instant_ms  # noqa: PLC0415

    if math.isnan(instant_ms(at)):
        raise click.UsageError(f"--at {at} is no time; write a date, or a time as in 2026-10-01T09:00:00Z")


def _counts(
    input_tokens: int | None,
    output_tokens: int | None,
    cache_read: int | None,
    cache_write: int | None,
    write_5m: int | None,
    write_1h: int | None,
) -> dict[str, Any] | None:
    """Give the counts of one request as a record has them, with their split; None when no count was given."""
    given = (input_tokens, output_tokens, cache_read, cache_write, write_5m, write_1h)
    if all(count is None for count in given):
        return None
    split = None if write_5m is None and write_1h is None else {"ttl5m": write_5m or 0, "ttl1h": write_1h or 0}
    written = cache_write if cache_write is not None else sum(split.values()) if split else 0
    read = cache_read or 0
    if input_tokens is not None and read + written > input_tokens:
        raise click.UsageError(f"--input includes cache reads and writes, so it is at least {read + written} here")
    prompt = read + written if input_tokens is None else input_tokens
    tokens = {"input": prompt, "output": output_tokens or 0, "cachedInput": read, "cacheWriteInput": written}
    return {"tokens": tokens, "split": split}


def _answer(model: str, at: str, counts: dict[str, Any] | None, prices: Any) -> dict[str, Any]:
    from projections.prices import PRICE_UNIT, find_codex_price, find_price  # noqa: PLC0415
    from projections.pricing import quote_usage  # noqa: PLC0415

    tokens = None if counts is None else counts["tokens"]
    split = None if counts is None else counts["split"]
    # Nothing costs nothing, so a quote of it says only whether there is a price.
    nothing = dict.fromkeys(("input", "output", "cachedInput", "cacheWriteInput"), 0)
    quote = quote_usage(tokens or nothing, model=model, at=at, cache_write_split=split, table=prices)
    row = find_price(model, at, prices) or find_codex_price(model, at, prices)
    answer: dict[str, Any] = {"model": model, "at": at, "tableVersion": prices.version, "basis": quote.basis}
    if quote.reason is not None:
        answer["reason"] = quote.reason
    if row is not None:
        answer |= {"unit": PRICE_UNIT, "row": dict(row)}
    if tokens is not None:
        answer |= {"tokens": tokens, "usd": quote.usd, "isLongPrompt": quote.is_long_prompt}
        if quote.parts_usd is not None:
            answer["partsUsd"] = dict(quote.parts_usd)
    return answer


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    """Write an answer for a person."""
    table = f"price table {answer['tableVersion']}"
    row = answer["row"]
    matched = f"{row['modelPrefix']} since {row['effectiveFrom']}"
    if "tokens" not in answer:
        yield f"{answer['model']} at {answer['at']}: {answer['unit']} ({table}, {matched})"
        for name, rate in _rates(row):
            yield f"  {name:<16} {rate:>10}"
        if "longPrompt" in row:
            long_prompt = row["longPrompt"]
            yield f"  a request whose input is {long_prompt['boundary']} {long_prompt['tokens']} tokens, all of it:"
            for name, rate in _rates(long_prompt):
                yield f"  {name:<16} {rate:>10}"
        return
    rates = "long-prompt rates" if answer["isLongPrompt"] else "rates"
    yield f"{answer['usd']:.6f} USD for {answer['model']} at {answer['at']} ({rates} of {table}, {matched})"
    for name, usd in answer["partsUsd"].items():
        yield f"  {name.removesuffix('Usd'):<16} {usd:>12.6f}"


def _rates(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, rate in row.items():
        if name not in ("modelPrefix", "effectiveFrom", "longPrompt", "boundary", "tokens"):
            yield name, rate
