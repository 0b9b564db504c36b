"""`trace-projector price`: rates, the price of a request, and a reason where there is none."""

import json
from pathlib import Path

import pytest

from projections.pricing import UNAVAILABLE_REASONS
from tests.worker.test_estimated_costs import TABLE
from worker.cli import run
from worker.commands.price import REASONS

SONNET = ["price", "claude-sonnet-5", "--at", "2026-10-01T09:00:00Z"]


def test_without_counts_it_prints_the_rates_of_that_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["price", "claude-sonnet-5-20260101", "--at", "2026-10-01"]) == 0
    first, *rates = capsys.readouterr().out.splitlines()
    assert first == (
        "claude-sonnet-5-20260101 at 2026-10-01: USD per million tokens "
        "(price table 2, claude-sonnet-5 since 2026-01-01)"
    )
    assert {line.split()[0]: float(line.split()[1]) for line in rates} == {
        "input": 2,
        "cacheRead": 0.2,
        "cacheWrite5m": 2.5,
        "cacheWrite1h": 4,
        "output": 10,
    }


def test_with_counts_it_prints_the_price_of_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    counts = ["--input", "1500", "--cache-read", "400", "--cache-write-5m", "100", "--output", "90"]
    assert run([*SONNET, *counts]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0.003230 USD for claude-sonnet-5 at 2026-10-01T09:00:00Z (rates of price table 2, ")
    assert [line.split() for line in lines[1:]] == [
        ["input", "0.002000"],
        ["cacheRead", "0.000080"],
        ["cacheWrite5m", "0.000250"],
        ["cacheWrite1h", "0.000000"],
        ["output", "0.000900"],
    ]


def test_in_json_it_says_the_amount_its_parts_and_what_they_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SONNET, "--input", "1000000", "--output", "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["usd"], answer["basis"], answer["tableVersion"]) == (2, "estimate", 2)
    assert (answer["unit"], answer["row"]["modelPrefix"]) == ("USD per million tokens", "claude-sonnet-5")
    assert answer["partsUsd"]["inputUsd"] == 2
    assert answer["tokens"] == {"input": 1_000_000, "output": 0, "cachedInput": 0, "cacheWriteInput": 0}
    assert run(["price", "claude-sonnet-5", "--at", "2026-10-01", "--json"]) == 0
    assert "usd" not in json.loads(capsys.readouterr().out)


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    (tmp_path / "prices.json").write_text(json.dumps(TABLE))
    (tmp_path / "c.toml").write_text(f"prices_file = {json.dumps(str(tmp_path / 'prices.json'))}\n")
    return ["--config", str(tmp_path / "c.toml")]


def test_the_table_of_the_settings_is_asked_and_long_prompts_have_its_rates(
    table: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = ["price", "code-5", "--at", "2026-10-01"]
    assert run([*table, *code]) == 0
    assert "a request whose input is > 200000 tokens, all of it:" in capsys.readouterr().out
    for prompt, usd, rates in ((200_000, 0.2, "(rates of"), (200_001, 0.400002, "(long-prompt rates of")):
        assert run([*table, *code, "--input", str(prompt)]) == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith(f"{usd:.6f} USD")
        assert f"{rates} price table house-1" in first


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["gpt-unheard-of"], "model_not_in_table"),
        (["claude-sonnet-51"], "model_not_in_table"),
        ([""], "model_missing"),
        (["claude-sonnet-5", "--cache-write", "5"], "cache_write_split_missing"),
        (["claude-sonnet-5", "--cache-write", "5", "--cache-write-1h", "4"], "cache_write_split_mismatch"),
    ],
)
def test_without_a_price_the_exit_code_is_1_and_the_reason_is_said(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["price", *arguments, "--at", "2026-10-01"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"trace-projector: no price for {arguments[0]!r} at 2026-10-01: {REASONS[reason]} (price table 2)\n"
    assert run(["price", *arguments, "--at", "2026-10-01", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["basis"], answer["reason"]) == ("unavailable", reason)
    assert answer.get("usd") is None


def test_a_model_that_is_priced_only_later_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["price", "claude-sonnet-5", "--at", "2025-12-31"]) == 1
    assert REASONS["no_price_at_time"] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["price"], "Missing argument 'MODEL'"),
        (["price", "m"], "Missing option '--at'"),
        (["price", "m", "--at", "yesterday"], "--at yesterday is no time"),
        (["price", "m", "--at", "2026-02-30"], "--at 2026-02-30 is no time"),
        ([*SONNET, "--input", "-1"], "-1 is not in the range"),
        ([*SONNET, "--input", "1.5"], "not a valid integer"),
        ([*SONNET, "--input", "10", "--cache-read", "11"], "--input includes cache reads and writes"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("trace-projector: ")
    assert words in line


def test_every_reason_that_can_be_given_here_has_words() -> None:
    # What was typed has a time and counts, and is one request.
    unreachable = {"event_time_missing", "counts_missing", "request_size_unknown"}
    assert REASONS.keys() == set(UNAVAILABLE_REASONS) - unreachable
