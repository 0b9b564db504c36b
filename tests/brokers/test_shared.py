"""Test processes of one run share a broker, and it ends with the last of them."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.brokers.broker import Broker
from tests.brokers.shared import shared_broker

PATIENCE_S = 60


def starts(events: list[str], name: str) -> Callable[[], Broker]:
    def start() -> Broker:
        events.append(f"{name} started")
        return Broker(name, "127.0.0.1:1", supports_transactions=True, stop=lambda: events.append(f"{name} stopped"))

    return start


def use(directory: Path, uses: Event, is_to_end: Event) -> None:
    with shared_broker(directory, starts([], "mine")) as broker:
        assert broker.name == "first"
        uses.set()
        assert is_to_end.wait(PATIENCE_S)
        (directory / "used").touch()


def test_another_process_has_the_same_broker_and_who_started_it_waits_for_that_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    uses, is_to_end = context.Event(), context.Event()
    events: list[str] = []

    def stop() -> None:
        assert (tmp_path / "used").exists(), "the other one still uses it"
        events.append("first stopped")

    other = context.Process(target=use, args=(tmp_path, uses, is_to_end))
    first = Broker("first", "127.0.0.1:1", supports_transactions=True, stop=stop)
    with shared_broker(tmp_path, lambda: first):
        other.start()
        assert uses.wait(PATIENCE_S)
        assert events == []
        is_to_end.set()
    assert events == ["first stopped"]
    other.join(PATIENCE_S)
    assert other.exitcode == 0


def test_who_comes_after_the_end_starts_another_one(tmp_path: Path) -> None:
    events: list[str] = []
    for name in ("first", "second"):
        with shared_broker(tmp_path, starts(events, name)) as broker:
            assert broker.name == name
    assert events == ["first started", "first stopped", "second started", "second stopped"]
