"""What an amount rests on stands beside its cost in every sink that has a place for it, as new as the cost itself."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from projections.decode import decode_json
from tests.worker.sinks.destinations import (
    DOC_RUN,
    DeltaDestination,
    Destination,
    DuckDBDestination,
    JsonlDestination,
    MemoryDestination,
    ParquetDestination,
    SqlDestination,
    deletion,
    upsert,
)
from worker.sink import Pricing, SinkRefused, Upsert, open_sink
from worker.sinks.memory import memory_store

COST = next(record for record in DOC_RUN if record["kind"] == "cost")
RUN = next(record for record in DOC_RUN if record["kind"] == "run")
GUESSED = Pricing("estimate", None, "1")
UNKNOWN = Pricing("unavailable", "model_not_in_table", "1")


def priced(offset: int, pricing: Pricing) -> Upsert:
    return upsert(COST, offset)._replace(pricing=pricing)


def in_tables(destination: Destination) -> dict[str, Pricing]:
    assert isinstance(destination, SqlDestination)
    rows = destination.query("SELECT id, price_basis, price_reason, price_table_version FROM trace_cost")
    return {name: Pricing(*values) for name, *values in rows}


def in_jsonl(destination: Destination) -> dict[str, Pricing]:
    assert isinstance(destination, JsonlDestination)
    lines = [decode_json(line) for line in pricing_path(destination).read_bytes().splitlines()]
    assert all(line["kind"] == "pricing" for line in lines)
    return {line["id"]: Pricing(line["basis"], line.get("reason"), line.get("tableVersion")) for line in lines}


def in_memory(destination: Destination) -> dict[str, Pricing]:
    found = memory_store(str(destination.directory)).pricing
    return {name: pricing for (kind, name), pricing in found.items() if kind == "cost" and pricing is not None}


def pricing_path(destination: JsonlDestination) -> Path:
    return destination.directory / "traces.jsonl.pricing"


PLACES: dict[type[Destination], Callable[[Destination], dict[str, Pricing]]] = {
    DeltaDestination: in_tables,
    DuckDBDestination: in_tables,
    JsonlDestination: in_jsonl,
    MemoryDestination: in_memory,
    ParquetDestination: in_tables,
}


@pytest.fixture(params=PLACES, ids=lambda kind: kind.__name__)
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    kind: type[Destination] = request.param
    return kind(tmp_path)


def beside(destination: Destination) -> dict[str, Pricing]:
    return PLACES[type(destination)](destination)


def test_a_cost_stands_with_what_its_amount_rests_on(destination: Destination) -> None:
    records = destination.write([upsert(RUN, 1), priced(2, GUESSED)])
    assert len(records) == 2
    assert beside(destination) == {COST["id"]: GUESSED}


def test_it_is_that_of_the_newest_version_in_whatever_order_and_batches(destination: Destination) -> None:
    versions = [(1, GUESSED), (2, UNKNOWN), (3, GUESSED), (4, None), (5, UNKNOWN)]
    # Every order has a cost of its own, all of them in the same two batches: making a place is what takes time here.
    first, second = [], []
    for number, order in enumerate(itertools.permutations(versions)):
        cost = {**COST, "id": f"{COST['id']}-{number}"}
        items = [
            deletion(cost, offset) if pricing is None else upsert(cost, offset)._replace(pricing=pricing)
            for offset, pricing in order
        ]
        first += items[:2]
        second += items[2:]
    destination.write(first, second)
    assert beside(destination) == {f"{COST['id']}-{number}": UNKNOWN for number in range(120)}


def test_it_goes_with_its_cost(destination: Destination) -> None:
    destination.write([priced(1, GUESSED)])
    assert destination.write([deletion(COST, 2)]) == {}
    assert beside(destination) == {}
    destination.write([priced(1, GUESSED)])
    assert beside(destination) == {}


def test_it_is_there_after_reopening(destination: Destination) -> None:
    destination.write([priced(1, GUESSED)])
    destination.write([upsert(RUN, 2)])
    assert beside(destination) == {COST["id"]: GUESSED}


@pytest.fixture
def file(tmp_path: Path) -> JsonlDestination:
    return JsonlDestination(tmp_path)


def test_a_jsonl_file_without_estimates_has_nothing_beside_it(file: JsonlDestination) -> None:
    file.write([upsert(COST, 1), upsert(RUN, 2)])
    assert not pricing_path(file).exists()


def test_writing_what_is_known_already_touches_no_byte_beside(file: JsonlDestination) -> None:
    file.write([priced(1, GUESSED)])
    before = pricing_path(file).stat()
    file.write([priced(1, UNKNOWN)])
    after = pricing_path(file).stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_a_crash_after_the_first_of_the_two_files_is_made_good_by_the_next_try(file: JsonlDestination) -> None:
    """The pricing was written and its cost was not: the same batch comes again, and both are there."""
    file.write([priced(1, GUESSED)])
    kept = {path: path.read_bytes() for path in (file.path, file.state_path)}
    file.write([priced(2, UNKNOWN)])
    for path, data in kept.items():
        path.write_bytes(data)
    file.write([priced(2, UNKNOWN)])
    assert beside(file) == {COST["id"]: UNKNOWN}
    assert file.state_path.read_bytes() != kept[file.state_path]


def test_a_file_beside_that_lost_its_state_is_refused_and_the_lock_is_let_go(file: JsonlDestination) -> None:
    file.write([priced(1, GUESSED)])
    pricing_path(file).unlink()
    for _ in range(2):
        with pytest.raises(SinkRefused, match=r"traces\.jsonl\.pricing is gone"):
            asyncio.run(open_sink(file.url, "policy-a").open())
