"""Costs without an amount, from transcript to sink: an estimate or a reason for none, and never a guess."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from projections.decode import decode_json
from projections.fold import Change
from projections.prices import parse_price_table
from projections.records import parse_trace_record
from tests.worker.fakes.kafka import FakeMessage
from worker.cli import run
from worker.exports import ExportPolicy, make_upsert, record_message
from worker.file_mode import record_of
from worker.price_file import estimate_prices, load_prices
from worker.roles.fold import headers_of
from worker.settings import ENV_PREFIX, Settings, load_settings
from worker.settings_sections import ExportSettings, SettingsError
from worker.sink import Pricing, SinkRefused, open_sink

AT = "2026-10-01T09:00:00.000Z"
CLAUDE = {"harness": "claude-code", "namespace": "host-a", "nativeId": "c-1"}
CODEX = {"harness": "codex", "namespace": "host-a", "nativeId": "t-1"}
OBSERVED = {"harness": "claude-code", "namespace": "host-a", "nativeId": "o-1"}

BASE = {
    "effectiveFrom": "2026-01-01",
    "input": 2,
    "cacheRead": 0.2,
    "cacheWrite5m": 2.5,
    "cacheWrite1h": 4,
    "output": 8,
}
CODEX_BASE = {"effectiveFrom": "2026-01-01", "input": 1, "cachedInput": 0.1, "output": 10}
LONG = {"boundary": ">", "tokens": 200_000, "input": 2, "cachedInput": 0.2, "output": 15}
TABLE: dict[str, Any] = {
    "version": "house-1",
    "rows": [{"modelPrefix": "big-4", **BASE}],
    "codex": [{"modelPrefix": "code-5", **CODEX_BASE, "longPrompt": LONG}],
}


class Amount(NamedTuple):
    """What a sink holds of one cost: its amount and what the amount rests on."""

    usd: float | None
    kind: str | None
    basis: str | None
    reason: str | None
    table_version: str | None


def estimate(usd: float) -> Amount:
    return Amount(usd, "estimate", "estimate", None, "house-1")


def unavailable(reason: str) -> Amount:
    return Amount(None, None, "unavailable", reason, "house-1")


def claude_line(name: str, offset: int, *, model: str = "big-4", **usage: Any) -> dict[str, Any]:
    """Give a line of one response; the usage is 7 tokens of input, 90 read from the cache, 40 of output, and more."""
    counts: dict[str, Any] = {"input_tokens": 7, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 0}
    message = {"id": name, "model": model, "content": [], "usage": {**counts, "output_tokens": 40, **usage}}
    native = {"type": "assistant", "uuid": name, "requestId": name, "timestamp": AT, "message": message}
    source = {**CLAUDE, "sourceId": "claude-code:host-a:c-1", "format": "claude-code"}
    return {"source": source, "byteOffset": offset, "line": json.dumps(native)}


def written(short: int, long: int) -> dict[str, Any]:
    split = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
    return {"cache_creation_input_tokens": 1000, "cache_creation": split}


def codex_lines(*requests: tuple[int, int, int, int]) -> Iterator[dict[str, Any]]:
    """Give a rollout whose counter grows by (input, cached, output, reasoning) with each request."""
    source = {**CODEX, "sourceId": "codex-rollout:host-a:t-1:f", "format": "codex"}
    names = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
    total = dict.fromkeys(names, 0)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("session_meta", {"id": "t-1"}),
        ("turn_context", {"turn_id": "1", "model": "code-5"}),
    ]
    for request in requests:
        last = dict(zip(names, request, strict=True))
        total = {name: total[name] + last[name] for name in names}
        counters = [{**row, "total_tokens": row["input_tokens"] + row["output_tokens"]} for row in (total, last)]
        info = {"total_token_usage": counters[0], "last_token_usage": counters[1]}
        rows.append(("event_msg", {"type": "token_count", "info": info}))
    for index, (kind, payload) in enumerate(rows):
        line = json.dumps({"timestamp": AT, "type": kind, "payload": payload})
        yield {"source": source, "byteOffset": index * 1000, "line": line}


def observation(name: str, offset: int, **changes: Any) -> dict[str, Any]:
    """Give an observed response of 500 tokens of input and 3 of output."""
    tokens = {"input": 500, "output": 3, "cachedInput": 0, "cacheWriteInput": 0, "reasoningOutput": None, "total": 503}
    measurement = {"kind": "delta", "responseId": name, "model": "big-4", "tokens": tokens, "cost": None}
    measurement |= {"source": "observed", **changes}
    place = {"sourceId": "claude-code:host-a:o-1", "byteOffset": offset, "subrecordIndex": 0}
    usage = {"kind": "usage", "id": place, "conversation": OBSERVED, "timestamp": AT, "measurement": measurement}
    return {"observation": usage}


TRANSCRIPTS = [
    claude_line("split", 0, **written(300, 700)),
    claude_line("wrong-split", 2000, **written(300, 500)),
    claude_line("no-split", 4000, cache_creation_input_tokens=1000),
    claude_line("no-writes", 6000),
    claude_line("unknown", 8000, model="big-5"),
    *codex_lines((1000, 800, 300, 250), (150_000, 60_000, 10, 0), (200_001, 1, 10, 10)),
    observation("reported-zero", 0, cost={"usd": 0, "kind": "reported"}),
    observation("estimated-before", 200, cost={"usd": 0.5, "kind": "estimate"}),
    observation("null", 400),
    observation("no-model", 600, model=None),
    observation("no-count", 800, tokens={"input": None, "output": 3, **dict.fromkeys(("cachedInput", "total"))}),
]
EXPECTED = {
    "split": estimate((7 * 2 + 90 * 0.2 + 300 * 2.5 + 700 * 4 + 40 * 8) / 1e6),
    "wrong-split": unavailable("cache_write_split_mismatch"),
    "no-split": unavailable("cache_write_split_missing"),
    "no-writes": estimate((7 * 2 + 90 * 0.2 + 40 * 8) / 1e6),
    "unknown": unavailable("model_not_in_table"),
    "token_count@2000": estimate((200 * 1 + 800 * 0.1 + 300 * 10) / 1e6),
    "token_count@3000": estimate((90_000 * 1 + 60_000 * 0.1 + 10 * 10) / 1e6),
    "token_count@4000": estimate((200_000 * 2 + 1 * 0.2 + 10 * 15) / 1e6),
    "reported-zero": Amount(0, "reported", "reported", None, None),
    "estimated-before": Amount(0.5, "estimate", "existing_estimate", None, None),
    "null": estimate((500 * 2 + 3 * 8) / 1e6),
    "no-model": unavailable("model_missing"),
    "no-count": unavailable("counts_missing"),
}


class World:
    """A directory with transcripts, a price table and settings, and what projecting it leaves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.transcripts = directory / "transcripts.jsonl"
        self.prices = directory / "prices.json"
        self.config = directory / "settings.toml"
        self.transcripts.write_text("".join(f"{json.dumps(row)}\n" for row in TRANSCRIPTS), encoding="utf-8")
        self.set_prices(TABLE)
        self.config.write_text(f"estimate_costs = true\nprices_file = {json.dumps(str(self.prices))}\n")

    def set_prices(self, table: Any) -> None:
        self.prices.write_text(json.dumps(table), encoding="utf-8")

    def project(self, url: str, *options: str) -> int:
        sources = ["project", str(self.transcripts), "--to", url, "--no-redact"]
        return run(["--config", str(self.config), *sources, *options])

    def amounts_in_duckdb(self) -> dict[str, Amount]:
        path = self.directory / "traces.duckdb"
        assert self.project(f"duckdb:{path}") == 0
        with duckdb.connect(str(path), read_only=True) as connection:
            rows = connection.execute(
                "SELECT response_id, cost_usd, cost_kind, price_basis, price_reason, price_table_version "
                "FROM trace_cost"
            ).fetchall()
        return {name: Amount(*amount) for name, *amount in rows}

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [decode_json(line) for line in (self.directory / name).read_bytes().splitlines()]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ------------------------------------------------------------------------------------------------------------ file mode


def test_every_cost_has_an_amount_or_a_reason_and_what_it_rests_on(world: World) -> None:
    found = world.amounts_in_duckdb()
    assert found.keys() == EXPECTED.keys()
    for name, expected in EXPECTED.items():
        assert found[name][1:] == expected[1:], name
        assert found[name].usd == (None if expected.usd is None else pytest.approx(expected.usd, rel=1e-12)), name


def test_replay_with_the_same_table_gives_equal_amounts_in_whatever_order(world: World) -> None:
    first = world.amounts_in_duckdb()
    lines = world.transcripts.read_text(encoding="utf-8").splitlines(keepends=True)
    world.transcripts.write_text("".join([*reversed(lines), *lines]), encoding="utf-8")
    assert world.amounts_in_duckdb() == first


def test_amounts_of_another_table_are_told_apart_by_its_version(world: World) -> None:
    first = world.amounts_in_duckdb()
    world.set_prices({**TABLE, "version": "house-2", "rows": [{"modelPrefix": "big-4", **BASE, "output": 80}]})
    second = world.amounts_in_duckdb()
    assert {row.table_version for row in first.values()} == {"house-1", None}
    assert {row.table_version for row in second.values()} == {"house-2", None}
    assert second["reported-zero"] == first["reported-zero"], "what a source knew is no matter of tables"
    assert (second["null"].usd or 0) > (first["null"].usd or 0)


def test_in_jsonl_records_stay_records_and_the_rest_stands_beside_them(world: World) -> None:
    assert world.project(f"jsonl:{world.directory}/traces.jsonl") == 0
    records = world.lines("traces.jsonl")
    assert all(parse_trace_record(record) == record for record in records)
    costs = {record["id"]: record["measurement"] for record in records if record["kind"] == "cost"}
    beside = {row["id"]: row for row in world.lines("traces.jsonl.pricing")}
    assert beside.keys() == costs.keys()
    for cost_id, measurement in costs.items():
        expected = EXPECTED[measurement["responseId"]]
        row = beside[cost_id]
        assert (row["kind"], row["basis"]) == ("pricing", expected.basis)
        assert (row.get("reason"), row.get("tableVersion")) == (expected.reason, expected.table_version)
        assert (measurement["cost"] or {}).get("kind") == expected.kind


def test_a_jsonl_file_without_estimates_leaves_none_of_an_earlier_one_behind(world: World) -> None:
    url = f"jsonl:{world.directory}/traces.jsonl"
    world.project(url)
    world.config.write_text("")
    assert world.project(url) == 0
    names = {path.name for path in world.directory.iterdir()}
    assert names == {"transcripts.jsonl", "prices.json", "settings.toml", "traces.jsonl"}
    assert all(row["measurement"]["cost"] is None for row in world.lines("traces.jsonl") if row["id"].endswith(":null"))


def test_without_being_asked_nothing_is_estimated(world: World) -> None:
    world.config.write_text("")
    found = world.amounts_in_duckdb()
    assert found["null"] == Amount(None, None, None, None, None)
    assert found["reported-zero"] == Amount(0, "reported", None, None, None)


def test_the_summary_counts_what_amounts_rest_on(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    assert world.project("-") == 0
    out, err = capfd.readouterr()
    assert all(parse_trace_record(record) == record for record in map(decode_json, out.encode().splitlines()))
    (line,) = [line for line in err.splitlines() if line.startswith("amounts")]
    assert line == (
        "amounts       13 (estimate 6, existing_estimate 1, reported 1, unavailable cache_write_split_mismatch 1, "
        "unavailable cache_write_split_missing 1, unavailable counts_missing 1, unavailable model_missing 1, "
        "unavailable model_not_in_table 1) by price table house-1"
    )


def test_the_option_asks_for_estimates_by_the_built_in_table(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    world.config.write_text("")
    world.transcripts.write_text(json.dumps(claude_line("m", 0, model="claude-sonnet-5")) + "\n", encoding="utf-8")
    assert world.project("-", "--estimate-costs") == 0
    out, err = capfd.readouterr()
    costs = [row["measurement"]["cost"] for row in map(json.loads, out.splitlines()) if row["kind"] == "cost"]
    assert costs == [{"usd": pytest.approx((7 * 2 + 90 * 0.2 + 40 * 10) / 1e6), "kind": "estimate"}]
    assert "amounts       1 (estimate 1) by price table 2" in err


# --------------------------------------------------------------------------------------------------------------- policy


def cost_change(record_id: str = "cost:response:claude-code:host-a:c-1:m", **measurement: Any) -> Change:
    tokens = {"input": 1097, "output": 40, "cachedInput": 90, "cacheWriteInput": 1000, "reasoningOutput": None}
    body = {"kind": "delta", "responseId": "m", "model": "big-4", "tokens": {**tokens, "total": 1137}, "cost": None}
    record: dict[str, Any] = {"schema": "titan.trace/v1", "kind": "cost", "id": record_id, "runId": "r1", "at": AT}
    record |= {"conversation": "conversation:claude-code:host-a:c-1"}
    record["measurement"] = {**body, "source": "s", **measurement}
    return Change(
        "cost", record_id, None, json.dumps(record, separators=(",", ":")).encode(), {"ttl5m": 300, "ttl1h": 700}
    )


PRICES = parse_price_table(TABLE)


def test_the_split_reaches_the_pricing_through_the_headers_of_a_record() -> None:
    change = cost_change()
    message = FakeMessage(7, change.id.encode(), change.record, tuple(headers_of(change)))
    item = record_message(1, message)
    assert item.cache_write_split == {"ttl5m": 300, "ttl1h": 700}
    upsert = make_upsert(ExportPolicy.unredacted(origin="test", prices=PRICES), item)
    assert upsert.pricing == Pricing("estimate", None, "house-1")
    assert upsert == make_upsert(ExportPolicy.unredacted(origin="test", prices=PRICES), record_of(change, 7))


def test_a_redacting_export_estimates_too_and_its_record_stays_redacted() -> None:
    export = ExportSettings(name="public", sink="memory:", key_env="K")
    policy = ExportPolicy.from_settings(export, origin="test", prices=PRICES, environ={"K": "k" * 40})
    upsert = make_upsert(policy, record_of(cost_change(), 7))
    assert upsert.record is not None
    assert upsert.json is not None
    assert upsert.record["measurement"]["cost"]["kind"] == "estimate"
    assert upsert.record["conversation"].startswith("hmac-sha256:")
    assert decode_json(upsert.json) == upsert.record


def test_a_record_whose_amount_is_known_leaves_byte_for_byte() -> None:
    change = cost_change(cost={"usd": 0, "kind": "reported"})
    upsert = make_upsert(ExportPolicy.unredacted(origin="test", prices=PRICES), record_of(change, 7))
    assert (upsert.json, upsert.pricing) == (change.record, Pricing("reported"))


def test_a_table_is_part_of_the_policy_by_all_that_it_says() -> None:
    edited = {**TABLE, "rows": [{"modelPrefix": "big-4", **BASE, "output": 9}]}
    tables = [None, TABLE, {**TABLE, "version": "house-2"}, edited, {**TABLE, "aliases": {"vendor/big-4": "big-4"}}]
    prices = [None if table is None else parse_price_table(table) for table in tables]
    digests = [ExportPolicy.unredacted(origin="test", prices=table).digest for table in prices]
    assert len(set(digests)) == len(tables)
    assert ExportPolicy.unredacted(origin="test", prices=parse_price_table(TABLE)).digest == digests[1]


def test_a_sink_that_was_priced_by_another_table_is_refused(tmp_path: Path) -> None:
    async def write(prices: Any) -> None:
        policy = ExportPolicy.unredacted(origin="test", prices=parse_price_table(prices))
        sink = open_sink(f"jsonl:{tmp_path}/traces.jsonl", policy.digest)
        await sink.open()
        await sink.write([make_upsert(policy, record_of(cost_change(), 7))])
        await sink.close()

    asyncio.run(write(TABLE))
    with pytest.raises(SinkRefused, match="price table"):
        asyncio.run(write({**TABLE, "version": "house-2"}))


# ------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings_say", "export_says", "is_estimated"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
def test_what_the_export_says_wins_over_the_settings(
    settings_say: bool, export_says: bool | None, is_estimated: bool
) -> None:
    export = ExportSettings(name="a", sink="memory:", redact=False, estimate_costs=export_says)
    settings = Settings(estimate_costs=settings_say, exports=(export,))
    assert (estimate_prices(settings, export) is not None) == is_estimated
    assert (estimate_prices(settings, None) is not None) == settings_say


TOML = """version = "house-1"
aliases = { "vendor/big-4" = "big-4" }
[[rows]]
modelPrefix = "big-4"
effectiveFrom = 2026-01-01
input = 2
cacheRead = 0.2
cacheWrite5m = 2.5
cacheWrite1h = 4
output = 8
"""


def test_a_table_in_toml_may_leave_its_dates_unquoted(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(TOML)
    prices = load_prices(Settings(prices_file=tmp_path / "prices.toml"))
    assert prices == parse_price_table(
        {"version": "house-1", "rows": TABLE["rows"], "aliases": {"vendor/big-4": "big-4"}}
    )


@contextmanager
def refused() -> Iterator[list[str]]:
    problems: list[str] = []
    with pytest.raises(SettingsError) as caught:
        yield problems
    problems += caught.value.problems


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.json", "{", "is no JSON: invalid_json"),
        ("p.json", "[]", "table: not_an_object"),
        ("p.json", '{"version": 1}', "table.rows: missing"),
        ("p.json", '{"version": 1, "rows": [{"modelPrefix": ""}]}', "rows[0].effectiveFrom: missing"),
        ("p.toml", "version =", "is no TOML"),
        ("p.toml", TOML.replace("output = 8", "output = -8"), "rows[0].output: not_a_rate"),
        ("p.toml", 'version = "v"\nrows = "x"', "rows: not_a_list"),
        ("p.toml", 'version = "\\u0000"\nrows = []', "version: not_a_version"),
    ],
)
def test_a_table_that_cannot_be_used_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with refused() as problems:
        load_prices(Settings(prices_file=path))
    assert len(problems) == 1
    assert problems[0].startswith(f"prices_file {path}")
    assert words in problems[0]


def test_a_table_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with refused() as problems:
        load_prices(Settings(prices_file=tmp_path / "none.json"))
    assert problems == [f"cannot read prices_file {tmp_path}/none.json: No such file or directory"]


def test_bytes_that_are_no_text_are_no_toml(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_bytes(b"\xff")
    with refused() as problems:
        load_prices(Settings(prices_file=tmp_path / "p.toml"))
    assert "is no TOML" in problems[0]


def test_the_settings_file_says_it_in_two_places(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        'estimate_costs = true\n[[exports]]\nname = "a"\nsink = "memory:"\nredact = false\nestimate_costs = false\n'
    )
    settings = load_settings(config)
    assert settings.estimate_costs
    assert settings.export_named("a").estimate_costs is False
