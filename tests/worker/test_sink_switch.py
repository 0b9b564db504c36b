"""What stands beside a sink takes its place whole: with crashes at any step, under writers, and back again."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from projections.canonical import encode_record
from tests.worker.sinks.destinations import DESTINATIONS
from worker.record_reader import open_reader
from worker.sink import Pricing, Sink, SinkBusy, SinkRefused, Upsert, open_sink
from worker.sink_switch import beside, can_be_switched, discard, policy_of, switch

OLD, NEW = "policy-of-the-old", "policy-of-the-new"
KINDS = ("run", "cost")


def upsert(run_id: str, generation: int, *, pricing: Pricing | None = None) -> Upsert:
    record: dict[str, Any] = {
        "schema": "titan.trace/v1",
        "kind": "run",
        "id": run_id,
        "runId": run_id,
        "at": "2026-10-01T09:00:00Z",
        "workflowName": "w",
        "status": "running",
    }
    if pricing is not None:
        record |= {"kind": "cost", "id": f"cost:response:h:n:v:{run_id}", "conversation": "conversation:h:n:v"}
        record |= {"measurement": {"kind": "delta", "responseId": run_id, "model": "m", "tokens": {}, "cost": None}}
    return Upsert(record["kind"], record["id"], generation, 1, record, encode_record(record), pricing)


async def _fill(sink: Sink, upserts: list[Upsert]) -> None:
    await sink.open()
    await sink.write(upserts)
    await sink.close()


def fill(url: str, digest: str, *upserts: Upsert) -> None:
    asyncio.run(_fill(open_sink(url, digest), list(upserts)))


def runs(url: str) -> list[str]:
    return sorted(record["runId"] for record in open_reader(url).read(KINDS))


@pytest.fixture(params=["clickhouse", "delta", "duckdb", "jsonl", "parquet", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return DESTINATIONS[request.param](tmp_path).url


@pytest.fixture(params=["delta", "duckdb", "jsonl", "parquet"])
def file_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return DESTINATIONS[request.param](tmp_path).url


def test_readers_have_the_old_or_the_new_and_the_old_is_kept_under_a_name(url: str) -> None:
    fill(url, OLD, upsert("old-1", 1), upsert("both", 1))
    fill(beside(url, "g2"), NEW, upsert("new-1", 2), upsert("both", 2))
    assert runs(url) == ["both", "old-1"]
    switch(url, "g2", NEW, keep="g1")
    assert (runs(url), policy_of(url)) == (["both", "new-1"], NEW)
    assert (runs(beside(url, "g1")), policy_of(beside(url, "g1"))) == (["both", "old-1"], OLD)
    # Once more does nothing; and the way back is the same way.
    switch(url, "g2", NEW, keep="g1")
    switch(url, "g1", OLD, keep="g2")
    assert runs(url) == ["both", "old-1"]
    # Each goes on being written where it now stands.
    fill(url, OLD, upsert("old-2", 1))
    fill(beside(url, "g2"), NEW, upsert("new-2", 2))
    assert (runs(url), runs(beside(url, "g2"))) == (["both", "old-1", "old-2"], ["both", "new-1", "new-2"])


def test_what_is_not_kept_is_gone_and_a_sink_that_was_never_there_can_be_put_in_place(url: str, tmp_path: Path) -> None:
    fill(beside(url, "fresh"), NEW, upsert("new-1", 2))
    switch(url, "fresh", NEW, keep=None)
    assert runs(url) == ["new-1"]
    fill(beside(url, "fresh"), NEW, upsert("new-2", 2))
    switch(url, "fresh", NEW, keep=None)
    assert runs(url) == ["new-2"]
    assert not list(tmp_path.glob("*.fresh*"))


def test_only_what_was_filled_under_the_right_policy_is_put_in_place(url: str) -> None:
    fill(url, OLD, upsert("old-1", 1))
    with pytest.raises(SinkRefused, match="fill it first"):
        switch(url, "g2", NEW, keep="g1")
    fill(beside(url, "g2"), "another", upsert("new-1", 2))
    with pytest.raises(SinkRefused, match="fill it first"):
        switch(url, "g2", NEW, keep="g1")
    assert runs(url) == ["old-1"]


def test_a_file_of_somebody_else_is_not_replaced(file_url: str) -> None:
    Path(file_url.partition(":")[2]).write_text("something of somebody", encoding="utf-8")
    fill(beside(file_url, "g2"), NEW, upsert("new-1", 2))
    with pytest.raises(SinkRefused):
        switch(file_url, "g2", NEW, keep="g1")
    assert Path(file_url.partition(":")[2]).read_text(encoding="utf-8") == "something of somebody"


def test_what_is_discarded_is_gone(url: str, tmp_path: Path) -> None:
    fill(beside(url, "g2"), NEW, upsert("new-1", 2))
    assert discard(url, "g2")
    assert not discard(url, "g2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_prices", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("crash_after", range(12))
def test_a_switch_that_crashed_anywhere_is_finished_by_doing_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_after: int, has_prices: tuple[bool, bool]
) -> None:
    url = f"jsonl:{tmp_path / 'traces.jsonl'}"
    price = Pricing("estimate", None, "1")
    fill(url, OLD, upsert("old-1", 1), *([upsert("old-2", 1, pricing=price)] if has_prices[0] else []))
    fill(beside(url, "g2"), NEW, upsert("new-1", 2), *([upsert("new-2", 2, pricing=price)] if has_prices[1] else []))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    steps = 0
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        nonlocal steps
        steps += 1
        if steps > crash_after:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        try:
            switch(url, "g2", NEW, keep="g1")
        except KeyboardInterrupt:
            # A reader never sees anything but one of the two.
            path = tmp_path / "traces.jsonl"
            assert path.read_bytes() in (before["traces.jsonl"], before["traces.jsonl.g2"])
    switch(url, "g2", NEW, keep="g1")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    expected = {name.replace(".g2", ""): data for name, data in before.items() if ".g2" in name}
    expected |= {
        name.replace("traces.jsonl", "traces.jsonl.g1"): data for name, data in before.items() if ".g2" not in name
    }
    assert after == expected


def test_a_writer_that_is_open_is_waited_for(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path / 'traces.jsonl'}"
    fill(beside(url, "g2"), NEW, upsert("new-1", 2))
    writer = open_sink(url, OLD)
    asyncio.run(writer.open())
    with pytest.raises(SinkBusy):
        switch(url, "g2", NEW, keep="g1")
    asyncio.run(writer.close())
    switch(url, "g2", NEW, keep="g1")
    assert runs(url) == ["new-1"]


def test_a_duckdb_writer_under_whose_feet_the_file_was_replaced_writes_nothing_into_the_other(tmp_path: Path) -> None:
    url = f"duckdb:{tmp_path / 'traces.duckdb'}"
    fill(url, OLD, upsert("old-1", 1))
    fill(beside(url, "g2"), NEW, upsert("new-1", 2))

    async def story() -> None:
        writer = open_sink(url, OLD)
        await writer.open()
        switch(url, "g2", NEW, keep="g1")
        with pytest.raises(SinkRefused, match="another policy"):
            await writer.write([upsert("old-2", 1)])

    asyncio.run(story())
    assert runs(url) == ["new-1"]


def test_only_files_and_schemas_of_ours_can_be_switched() -> None:
    names = (
        "clickhouse://host/db",
        "delta:a",
        "duckdb:a",
        "jsonl:a",
        "parquet:a",
        "postgresql://host/db",
        "memory:a",
        "delta:s3://b/a",
        "-",
    )
    assert [can_be_switched(name) for name in names] == [True] * 6 + [False] * 3


def test_a_state_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{}\n", encoding="utf-8")
    (tmp_path / "a.state").write_text(json.dumps([]) + "\n", encoding="utf-8")
    with pytest.raises(SinkRefused, match="is no state of a JSONL export"):
        policy_of(f"jsonl:{tmp_path / 'a'}")
