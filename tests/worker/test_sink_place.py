"""Where the export of a generation writes while another one is promoted, from both sides."""

import asyncio
from pathlib import Path

import pytest

from tests.worker.sinks.destinations import DESTINATIONS
from tests.worker.test_sink_switch import runs, upsert
from worker.sink import SinkBusy, SinkRefused, open_sink
from worker.sink_place import Serving, SinkPlace, sink_origin
from worker.sink_switch import beside, switch

OLD, NEW = "digest-of-generation-1", "digest-of-generation-2"


@pytest.fixture(params=["clickhouse", "delta", "duckdb", "jsonl", "parquet", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return DESTINATIONS[request.param](tmp_path).url


@pytest.fixture(params=["clickhouse", "duckdb", "postgresql"])
def looked_up_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A sink that is looked up anew with every write."""
    return DESTINATIONS[request.param](tmp_path).url


def test_a_generation_that_does_not_serve_writes_beside_and_takes_its_place_when_it_does(url: str) -> None:
    async def story() -> None:
        serving = Serving(1)
        old, new = SinkPlace(url, OLD, 1, serving), SinkPlace(url, NEW, 2, serving)
        for place, name in ((old, "old"), (new, "new")):
            assert await place.open()
            await place.write([upsert(name, 1)])
        serving.generation = 2
        # What is open goes on where it is until it is let go; nothing is opened before the files have moved.
        await new.write([upsert("new-2", 2)])
        for place in (old, new):
            await place.close()
            with pytest.raises(SinkBusy, match="generation 2 is being promoted"):
                await place.open()
        assert runs(url) == ["old"]
        switch(url, "g2", NEW, keep="g1")
        for place, name in ((old, "old-2"), (new, "new-3")):
            assert not await place.open()
            await place.write([upsert(name, 1)])
            await place.close()

    asyncio.run(story())
    assert runs(url) == ["new", "new-2", "new-3"]
    assert runs(beside(url, "g1")) == ["old", "old-2"]


def test_a_write_into_what_was_moved_meanwhile_waits_instead_of_stopping_the_worker(looked_up_url: str) -> None:
    url = looked_up_url

    async def story() -> None:
        serving = Serving(1)
        old, new = SinkPlace(url, OLD, 1, serving), SinkPlace(url, NEW, 2, serving)
        for place, name in ((old, "old"), (new, "new")):
            await place.open()
            await place.write([upsert(name, 1)])
        switch(url, "g2", NEW, keep="g1")
        for place in (old, new):
            with pytest.raises(SinkBusy, match="is being promoted"):
                await place.write([upsert("late", 1)])
            await place.close()

    asyncio.run(story())
    assert (runs(url), runs(beside(url, "g1"))) == (["new"], ["old"])


def test_a_file_that_somebody_removed_is_refused_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "traces.duckdb"

    async def story() -> None:
        place = SinkPlace(f"duckdb:{path}", OLD, 1, Serving(1))
        await place.open()
        path.unlink()
        with pytest.raises(SinkRefused, match="is gone"):
            await place.write([upsert("run", 1)])

    asyncio.run(story())


def test_the_policy_of_a_switchable_sink_says_of_which_generation_it_is(url: str) -> None:
    assert sink_origin("app", 1, is_switchable=False) == sink_origin("app", 2, is_switchable=False) == "app"
    origins = {sink_origin("app", generation, is_switchable=True) for generation in (1, 2)}
    assert len(origins) == 2

    async def story() -> None:
        old = open_sink(url, OLD)
        await old.open()
        await old.close()
        with pytest.raises(SinkRefused, match="another policy"):
            await SinkPlace(url, NEW, 2, Serving(2)).open()

    asyncio.run(story())
