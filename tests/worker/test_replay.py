"""Replaying without a broker: which offsets are meant, what is durable before it counts, and a pause."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import pytest

from tests.worker.fakes.kafka import FakeMessage
from worker.kafka import TopicPartition
from worker.replay import Replay, Replayed, ReplayRefused, Selection, find_spans
from worker.settings import Settings
from worker.topic_scan import Span
from worker.topics import own_topics

RUNS_0, RUNS_1 = TopicPartition("workflow-runs", 0), TopicPartition("workflow-runs", 1)
GATES_0 = TopicPartition("gate-decisions", 0)
RUN = b'{"id": "run-1", "workflowName": "w", "status": "running", "revision": 1, "startedAt": "2026-10-01T09:00:00Z"}'
SETTINGS = Settings()


class FakeScan:
    """Logs that begin and end somewhere; a message's time is its offset."""

    def __init__(self, **logs: tuple[int, int]) -> None:
        self._spans = {
            TopicPartition(name.rpartition("_")[0].replace("_", "-"), int(name[-1])): Span(*bounds)
            for name, bounds in logs.items()
        }

    async def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        return sorted(place for place in self._spans if place.topic in set(topics))

    async def spans(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        return {place: self._spans[place] for place in places}

    async def offsets_at(self, spans: Mapping[TopicPartition, Span], timestamp_ms: int) -> dict[TopicPartition, int]:
        return {place: min(max(span.start, timestamp_ms), span.end) for place, span in spans.items()}

    async def read(
        self, spans: Mapping[TopicPartition, Span]
    ) -> AsyncIterator[tuple[TopicPartition, Sequence[FakeMessage]]]:
        for place, span in spans.items():
            for start in range(span.start, span.end, 2):
                offsets = range(start, min(start + 2, span.end))
                yield place, [FakeMessage(offset, b"run-1", RUN if offset % 3 else b"{") for offset in offsets]


class FakeWriter:
    def __init__(self) -> None:
        self.durable: list[tuple[str, bytes]] = []
        self._pending: list[tuple[str, bytes]] = []

    def append(self, topic: str, _partition: int, key: bytes, _value: bytes) -> None:
        self._pending.append((topic, key))

    async def flush(self) -> None:
        self.durable += self._pending
        self._pending = []


SCAN = FakeScan(workflow_runs_0=(5, 20), workflow_runs_1=(0, 8), gate_decisions_0=(0, 3))
COMMITTED = {RUNS_0: 18, RUNS_1: 8}


def found(selection: Selection, committed: Mapping[TopicPartition, int] | None = COMMITTED) -> dict[Any, Any]:
    spans = asyncio.run(find_spans(SCAN, SETTINGS, selection, committed))  # type: ignore[arg-type]
    assert all(span.is_exact for span in spans.values())
    return {place: (span.start, span.end) for place, span in spans.items()}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        # What nobody has committed is the workers' to do.
        (Selection(), {RUNS_0: (5, 18), RUNS_1: (0, 8), GATES_0: (0, 0)}),
        (Selection(topics=frozenset({"gate-decisions"})), {GATES_0: (0, 0)}),
        (Selection(frozenset({"workflow-runs"}), since_ms=7), {RUNS_0: (7, 18), RUNS_1: (7, 8)}),
        (Selection(frozenset({"workflow-runs"}), until_ms=7), {RUNS_0: (5, 7), RUNS_1: (0, 7)}),
        (Selection(frozenset({"workflow-runs"}), since_ms=19), {RUNS_0: (19, 19), RUNS_1: (8, 8)}),
        # Offsets alone mean their partitions alone; with a topic they are where its other partitions are not.
        (Selection(offsets={RUNS_0: 9}), {RUNS_0: (9, 18)}),
        (Selection(frozenset({"workflow-runs"}), offsets={RUNS_0: 9}), {RUNS_0: (9, 18), RUNS_1: (0, 8)}),
    ],
)
def test_a_selection_means_these_offsets(selection: Selection, expected: dict[TopicPartition, tuple[int, int]]) -> None:
    assert found(selection) == expected


def test_without_a_group_everything_up_to_the_end_is_meant() -> None:
    assert found(Selection(topics=frozenset({"workflow-runs"})), None) == {RUNS_0: (5, 20), RUNS_1: (0, 8)}


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (Selection(topics=frozenset({"elsewhere"})), "elsewhere is no source topic"),
        (Selection(offsets={RUNS_0: 4}), "holds the offsets 5 to 20, and 4 is none of them"),
        (Selection(offsets={TopicPartition("workflow-runs", 7): 0}), "has no partition 7"),
    ],
)
def test_what_is_not_there_is_refused(selection: Selection, words: str) -> None:
    with pytest.raises(ReplayRefused, match=words):
        found(selection)


def replayed(writer: FakeWriter | None, spans: dict[TopicPartition, Span], stop_after: int | None = None) -> Replayed:
    async def story() -> Replayed:
        def on_progress(done: int, _total: int) -> None:
            if stop_after is not None and done >= stop_after:
                task.cancel()

        machine = Replay(SETTINGS, SCAN, writer, None if stop_after is None else 1e9)  # type: ignore[arg-type]
        task = asyncio.ensure_future(machine.run(spans, on_progress))
        return await task

    return asyncio.run(story())


def test_facts_and_letters_are_written_as_the_role_writes_them() -> None:
    writer = FakeWriter()
    done = replayed(writer, {RUNS_1: Span(0, 8)})
    assert (done.tally.messages, done.tally.projected, dict(done.tally.dead_lettered), done.rest) == (
        8,
        5,
        {"invalid_json": 3},
        {},
    )
    topics = own_topics(SETTINGS)
    assert [topic for topic, _ in writer.durable].count(topics.facts) == done.facts == 5
    assert [key for topic, key in writer.durable if topic == topics.dead_letters] == [
        b"workflow-runs/1/0",
        b"workflow-runs/1/3",
        b"workflow-runs/1/6",
    ]


def test_a_dry_run_counts_the_same_and_writes_nothing() -> None:
    dry, wet = replayed(None, {RUNS_1: Span(0, 8)}), replayed(FakeWriter(), {RUNS_1: Span(0, 8)})
    assert (dry.tally.projected, dry.facts, dry.total) == (wet.tally.projected, wet.facts, wet.total)


def test_a_pause_tells_where_to_go_on_and_what_counts_is_durable() -> None:
    writer = FakeWriter()
    spans = {RUNS_0: Span(5, 9), RUNS_1: Span(0, 8)}
    done = replayed(writer, spans, stop_after=6)
    assert done.rest == {RUNS_0: 9, RUNS_1: 2}
    assert done.tally.messages == 6
    rest = replayed(writer, {place: Span(offset, spans[place].end) for place, offset in done.rest.items()})
    assert rest.tally.messages + done.tally.messages == 12
    whole = FakeWriter()
    replayed(whole, spans)
    assert writer.durable == whole.durable
