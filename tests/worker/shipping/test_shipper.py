"""The loop of `ship`: offsets after acknowledgements, retries, rate, stopping, and what it tells."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from worker.harnesses import HARNESSES
from worker.harnesses.discovery import chosen_places
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.shipping.files import Selection, ShipTally
from worker.shipping.sender import Delivery, Outgoing, UndeliveredError
from worker.shipping.shipper import Rate, ShipPlan, ShipStopped, default_state_path, ship
from worker.shipping.state import ShipState, Target

META = '{"type":"session_meta","payload":{"id":"t-1"}}\n'
FAST = LimitSettings(sink_retry_delay_max_s=0.01, shutdown_drain_s=0.05)


class Sea:
    """Where messages go in these tests, and what happens to them there."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = directory / "place"
        self.place.mkdir()
        self.state_path = directory / "state" / "ship.json"
        self.settings = Settings(limits=FAST)
        self.arrived: list[str] = []
        self.chunks: list[int] = []
        self.said: list[str] = []
        self.progress: list[tuple[int, int]] = []
        self.topic_is_whole = True
        self.offsets_at_delivery: list[int] = []
        self.on_delivery: Callable[[int], Any] = lambda _number: None
        self.stop = asyncio.Event()
        monkeypatch.setattr("worker.shipping.shipper.find_target", self._find_target)
        monkeypatch.setattr("worker.shipping.shipper.holds", self._holds)
        monkeypatch.setattr("worker.shipping.shipper.ShipSender", lambda *_: self)

    async def _find_target(self, _settings: Settings) -> tuple[Target, list[int]]:
        return Target("c", "transcripts"), [0]

    async def _holds(self, _settings: Settings, _topic: str, _acknowledged: dict[int, int]) -> bool:
        return self.topic_is_whole

    async def deliver(self, rows: Sequence[Outgoing]) -> Delivery:
        self.offsets_at_delivery.append(self.saved())
        await asyncio.sleep(0)
        outcome = self.on_delivery(len(self.chunks))
        self.chunks.append(len(rows))
        if outcome is not None:
            await outcome
        self.arrived += [json.loads(row.value)["line"] for row in rows]
        return Delivery({0: len(self.arrived)} if rows else {}, [])

    async def close(self) -> None:
        pass

    def saved(self) -> int:
        if not self.state_path.exists():
            return 0
        return sum(row["offset"] for row in json.loads(self.state_path.read_bytes())["files"])

    def write(self, name: str, *numbers: int) -> None:
        path = self.place / name
        with path.open("a") as stream:
            if stream.tell() == 0:
                stream.write(META)
            stream.writelines(f'{{"n":{number}}}\n' for number in numbers)

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.place.iterdir())

    def ship(
        self, *, once: bool = True, rate: Rate | None = None, places: Any = None, interval_s: float = 0.01
    ) -> ShipTally:
        plan = ShipPlan(
            Selection(places or {"codex": chosen_places(HARNESSES["codex"], [self.place])}, "n"),
            self.state_path,
            once,
            rate,
            interval_s,
            lambda file, text: self.said.append(text if file is None else f"{file.path.name} {text}"),
            lambda ahead, done: self.progress.append((ahead, done)),
        )

        async def scenario() -> ShipTally:
            return await asyncio.wait_for(ship(self.settings, plan, self.stop), 20)

        return asyncio.run(scenario())


@pytest.fixture
def sea(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sea:
    return Sea(tmp_path, monkeypatch)


async def fail(*_: object) -> None:
    raise UndeliveredError("KafkaTimeoutError")


async def hang() -> None:
    await asyncio.Event().wait()


def test_once_ships_what_is_there_and_saves_how_far_it_went(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", 1, 2)
    sea.write("rollout-2.jsonl", 3)
    tally = sea.ship()
    assert (tally.lines, len(tally.files)) == (5, 2)
    assert sea.saved() == sea.size()
    sea.write("rollout-1.jsonl", 4)
    assert sea.ship().lines == 1
    assert [json.loads(line).get("n") for line in sea.arrived] == [None, 1, 2, None, 3, 4]


def test_an_offset_is_saved_only_after_its_lines_are_acknowledged(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", *range(50))
    sea.settings = Settings(limits=FAST.model_copy(update={"batch_messages_max": 10}))
    sizes = []

    async def note() -> None:
        sizes.append(sum(len(line) + 1 for line in sea.arrived))

    sea.on_delivery = lambda _number: note()
    sea.ship()
    assert sea.chunks == [10, 10, 10, 10, 10, 1]
    assert all(saved <= arrived for saved, arrived in zip(sea.offsets_at_delivery, sizes, strict=True))
    # The first chunk is saved at once, so that one that is killed again and again goes on.
    assert sea.offsets_at_delivery[1] == sizes[1]


def test_once_a_failed_delivery_ends_it_and_keeps_what_was_acknowledged(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", *range(30))
    sea.settings = Settings(limits=FAST.model_copy(update={"batch_messages_max": 10}))
    sea.on_delivery = lambda number: fail() if number == 2 else None
    with pytest.raises(UndeliveredError):
        sea.ship()
    assert sea.saved() == sum(len(line) + 1 for line in sea.arrived)
    sea.on_delivery = lambda _: None
    sea.ship()
    assert [json.loads(line).get("n") for line in sea.arrived] == [None, *range(30)]


def test_following_it_tries_on_and_says_so_once(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", *range(3))

    def outcome(number: int) -> Any:
        if number < 5:
            return fail()
        sea.stop.set()
        return None

    sea.on_delivery = outcome
    tally = sea.ship(once=False)
    assert tally.lines == 4
    assert sea.said == ["the brokers do not acknowledge; trying on", "the brokers acknowledge again"]
    assert sea.saved() == sea.size()


def test_following_it_ships_what_is_added_and_what_is_new(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", 1)

    def outcome(number: int) -> Any:
        if number == 0:
            sea.write("rollout-1.jsonl", 2)
            sea.write("rollout-2.jsonl", 3)
        elif len(sea.arrived) >= 4:
            sea.stop.set()
        return None

    sea.on_delivery = outcome
    sea.ship(once=False)
    assert [json.loads(line).get("n") for line in sea.arrived] == [None, 1, 2, None, 3]


def test_told_to_stop_it_lets_the_chunk_on_its_way_arrive(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", *range(30))
    sea.settings = Settings(limits=FAST.model_copy(update={"batch_messages_max": 10, "shutdown_drain_s": 5.0}))

    async def slowly() -> None:
        sea.stop.set()
        await asyncio.sleep(0.05)

    sea.on_delivery = lambda _number: slowly()
    sea.ship(once=False)
    assert sea.chunks == [10]
    assert sea.saved() == sum(len(line) + 1 for line in sea.arrived) > 0


def test_told_to_stop_it_does_not_wait_for_ever_and_saves_nothing_that_did_not_arrive(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", 1)

    async def never() -> None:
        sea.stop.set()
        await hang()

    sea.on_delivery = lambda _number: never()
    sea.ship(once=False)
    assert (sea.arrived, sea.saved()) == ([], 0)


def test_once_and_told_to_stop_it_was_interrupted(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", 1)
    sea.stop.set()
    with pytest.raises(ShipStopped):
        sea.ship()


@pytest.mark.parametrize("rate", [Rate(200, "lines"), Rate(10_000, "bytes")])
def test_a_rate_is_kept(sea: Sea, rate: Rate) -> None:
    sea.write("rollout-1.jsonl", *range(100_000, 100_100))
    started = time.monotonic()
    sea.ship(rate=rate)
    least_s = (101 if rate.unit == "lines" else sea.size()) / rate.amount
    # The first part of a second is free, and the last chunk is paid for after it was sent.
    assert time.monotonic() - started >= 0.7 * least_s
    assert max(sea.chunks) <= 60
    assert len(sea.arrived) == 101


def test_a_topic_that_was_made_anew_gets_everything_again(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", 1)
    sea.ship()
    assert sea.ship().lines == 0
    sea.topic_is_whole = False
    assert sea.ship().lines == 2
    assert sea.said == ["topic transcripts is not the one that was shipped to; everything is shipped again"]


def test_a_harness_that_becomes_unavailable_is_said_once_and_the_others_go_on(
    sea: Sea, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.harnesses import discovery  # noqa: PLC0415

    original = discovery.discover

    def discover(places: Any) -> Any:
        if places[0].path.name == "closed":
            return discovery.Unavailable("Permission denied")
        return original(places)

    monkeypatch.setattr("worker.shipping.files.discover", discover)
    sea.write("rollout-1.jsonl", 1)
    places = {
        "claude-code": chosen_places(HARNESSES["claude-code"], [sea.place.with_name("closed")]),
        "codex": chosen_places(HARNESSES["codex"], [sea.place]),
    }
    looks = iter(range(3))

    def outcome(_number: int) -> Any:
        if next(looks, None) is None:
            sea.stop.set()
        return None

    sea.on_delivery = outcome
    assert sea.ship(once=False, places=places).lines == 2
    assert sea.said == ["claude-code is unavailable: Permission denied"]


def test_progress_is_told_in_bytes_of_the_files(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", *range(10))
    sea.ship()
    assert sum(ahead for ahead, _ in sea.progress) == sum(done for _, done in sea.progress) == sea.size()


def test_the_state_is_let_go_when_it_ends(sea: Sea) -> None:
    sea.write("rollout-1.jsonl", 1)
    sea.ship()
    ShipState.open(sea.state_path).close()


def test_the_state_is_where_states_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_path(Settings(), "t") == tmp_path / ".local/state/trace-projector/ship-t.json"
    assert default_state_path(Settings(state_dir=tmp_path / "s"), "t") == tmp_path / "s/ship-t.json"
