"""Puts the virtual broker, clock and sinks where the worker's own modules look for the real ones."""

import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

import worker.kafka
import worker.sink
from projections.facts import Fact
from projections.fold import Fold, FoldResult
from tests.simulation.broker import VirtualBroker
from tests.simulation.consumer import VirtualConsumer, VirtualReader
from tests.simulation.destinations import DatabaseSink, Destination, FileSink
from tests.simulation.loop import PROCESS
from tests.simulation.producer import VirtualProducer
from worker.settings import Settings
from worker.sink import Sink

KEY_VARIABLE, KEY = "SIMULATION_EXPORT_KEY", "a-key-of-the-simulation-with-more-than-32-bytes"
SCHEME = "virtual"

_PORTS = (
    "group_consumer",
    "log_reader",
    "plain_producer",
    "idempotent_producer",
    "transactional_producer",
    "open_sink",
)


# Like the session, a fifth of what they are, so that a storm of less than a minute has time for them.
_TIMEOUTS_S = {"_DELIVERY_TIMEOUT_S": 18.0, "_START_TIMEOUT_S": 6.0}


class Site:
    """The world outside the workers: one broker, and destinations by name."""

    def __init__(self, broker: VirtualBroker, destinations: dict[str, Destination]) -> None:
        self.broker = broker
        self.destinations = destinations
        self.lines: list[str] = []
        # How many more times a fold fails half-way through a batch.
        self.spoils = 0

    # ------------------------------------------------------------------------------------- what the modules ask for

    def group_consumer(self, settings: Settings, group: str, assignors: Sequence[Any] | None = None) -> VirtualConsumer:
        return VirtualConsumer(
            self.broker,
            group,
            (assignors or (RoundRobinPartitionAssignor,))[0],
            session_s=settings.kafka.session_timeout_s,
            heartbeat_s=settings.kafka.heartbeat_interval_s,
        )

    def log_reader(self, _settings: Settings) -> VirtualReader:
        return VirtualReader(self.broker)

    def plain_producer(self, _settings: Settings) -> VirtualProducer:
        return VirtualProducer(self.broker, is_idempotent=False)

    def idempotent_producer(self, _settings: Settings) -> VirtualProducer:
        return VirtualProducer(self.broker, is_idempotent=True)

    def transactional_producer(self, _settings: Settings, transactional_id: str) -> VirtualProducer:
        return VirtualProducer(self.broker, is_idempotent=True, name=transactional_id)

    def open_sink(self, url: str, policy_digest: str) -> Sink:
        destination = self.destinations[url.removeprefix(f"{SCHEME}:")]
        return (FileSink if destination.has_one_writer else DatabaseSink)(destination, policy_digest)

    # ----------------------------------------------------------------------------------------------------- wiring

    @contextlib.contextmanager
    def wired(self) -> Iterator[None]:
        """Let the worker's modules use this site for as long as the context lasts."""
        with contextlib.ExitStack() as stack:
            for module in _worker_modules():
                for name, virtual in self._virtual_for(module).items():
                    stack.enter_context(patch.object(module, name, virtual))
            for name, seconds in _TIMEOUTS_S.items():
                stack.enter_context(patch.object(worker.kafka, name, seconds))
            stack.enter_context(patch.dict(worker.sink.SINKS, {SCHEME: "tests.simulation.destinations:DatabaseSink"}))
            stack.enter_context(patch.dict(os.environ, {KEY_VARIABLE: KEY}))
            stack.enter_context(patch.object(Fold, "apply", self._spoiling(Fold.apply)))
            stack.enter_context(self._logs_kept())
            yield

    def _spoiling(self, apply: Callable[[Fold, Sequence[tuple[int, Fact]]], FoldResult]) -> Any:
        def spoiling(fold: Fold, items: Sequence[tuple[int, Fact]]) -> FoldResult:
            # A fold that has failed takes facts one by one, and leaves out the one at fault: here none is.
            if self.spoils and len(items) > 1:
                self.spoils -= 1
                apply(fold, items[: len(items) // 2])
                raise ArithmeticError
            return apply(fold, items)

        return spoiling

    def _virtual_for(self, module: ModuleType) -> dict[str, Any]:
        """Give what a module is to use instead of what it has: clocks, chance, Kafka's clients, sinks."""
        clock = SimpleNamespace(monotonic=self.broker.loop.time)
        chance = Random(self.broker.random.random())
        virtual: dict[str, Any] = {name: getattr(self, name) for name in _PORTS if hasattr(module, name)}
        if getattr(module, "time", None) is time:
            virtual["time"] = clock
        if getattr(module, "random", None) is random:
            virtual["random"] = chance
        return virtual

    @contextlib.contextmanager
    def _logs_kept(self) -> Iterator[None]:
        kept = structlog.get_config()
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        structlog.configure(processors=[self._keep], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.configure(**kept)
            logging.disable(disabled)

    def _keep(self, _logger: object, level: str, event: Any) -> Any:
        process = PROCESS.get()
        rest = " ".join(f"{name}={value}" for name, value in event.items() if name != "event")
        self.note(f"{process.name if process else '-'} {level} {event['event']} {rest}")
        raise structlog.DropEvent

    def note(self, line: str) -> None:
        """Write down what happened, and when."""
        self.lines.append(f"{self.broker.loop.time():9.3f} {line}")


def _worker_modules() -> list[ModuleType]:
    """List the worker's modules that are loaded, without the one that makes the real clients."""
    return [
        module for name, module in sorted(sys.modules.items()) if name.startswith("worker.") and name != "worker.kafka"
    ]
