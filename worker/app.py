"""The composition root: settings in, a running worker out; Faust is the program around the batch consumers.

What Faust does here: it starts, supervises and stops the services, and serves the pages. Its own consumer, producer,
tables and topics are switched off by its boot strategy, so it creates nothing on the broker and asks nothing of it.
"""

import asyncio
import functools
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import faust
import structlog
from aiokafka.errors import KafkaError
from faust.app.base import BootStrategy
from faust.types import AppT
from mode import Service
from mode.types import ServiceT

from projections.version import PROJECTION_VERSION
from worker.consumer import BatchConsumer
from worker.export_policy import policy_for
from worker.garbage import collect_rarely
from worker.generations.binding import bind_generation, check_generation
from worker.generations.log import Binding, Generations
from worker.generations.watch import GenerationWatch, TopicsWatch
from worker.heap import keep_little
from worker.kafka import quiet_abandoned_futures
from worker.lanes import Role, StopWorkerError
from worker.logs import configure_logs, error_fields
from worker.metrics import GaugeName, Metrics
from worker.reading import reading_rules
from worker.roles.export import ExportRole
from worker.roles.fold import FoldRole
from worker.roles.project import ProjectRole
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import SinkRefused
from worker.sink_place import Serving
from worker.standstill import check_standstill
from worker.starting import patiently
from worker.state import FoldStore, MemoryFoldStore
from worker.state_rocks import local_store
from worker.supervisor_notices import Supervisor, SupervisorNotices
from worker.topic_ids import topic_identities
from worker.topic_scan import BrokerFailed, broker_errors, open_scan
from worker.topics import StartError, own_topics, prepare_topics
from worker.transaction_probe import has_transactions
from worker.web.health import Readiness, add_pages
from worker.web.letters import Letters
from worker.web.pages import RecordPages, open_pages
from worker.web.worker_view import Rates

_log = structlog.get_logger(__name__)

_EXIT_OK: Final = 0
_EXIT_FAILED: Final = 1
# Of the time for draining, what is left to Faust for its pages once the roles have drained.
_STOP_SPARE_S: Final = 5.0
_LOG_ENDS_S: Final = 10.0
_RATES_S: Final = 10.0


def run_worker(settings: Settings) -> int:
    """Run a worker with the roles of its settings until it is told to stop, and give the exit code.

    Raises SettingsError when an export has no usable key; every other failure is one line on standard error.
    """
    # Once more, now that all of the program is imported.
    collect_rarely()
    keep_little()
    configure_logs(settings.log_format, settings.log_level)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(settings))
    except (BrokerFailed, StartError, StopWorkerError, SinkRefused) as error:
        sys.stderr.write(f"trace-projector: {error}\n")
        return _EXIT_FAILED


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  (there is none on some platforms)
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run(settings: Settings) -> int:
    quiet_abandoned_futures(asyncio.get_running_loop())
    metrics = Metrics()
    # Before anything is asked of the broker: what is wrong with an export's key shows at once.
    for export in _own_exports(settings):
        policy_for(settings, export)
    pages = open_pages(settings)
    generations = await patiently(lambda: _bound(settings))
    assert generations.serving is not None, "the generation of this worker was started, so one serves"
    serving = Serving(generations.serving)
    await patiently(lambda: check_standstill(settings, _own_exports(settings), serving.generation))
    core = await patiently(lambda: core_roles(settings, metrics))
    if not core and not _own_exports(settings):
        message = "nothing to do: the only role is export, and the settings have no exports"
        raise StartError(message)
    pipeline = Pipeline(settings, core, metrics, serving, generations.bindings[settings.generation])
    worker = _Worker(
        make_app(settings, pipeline, pages),
        quiet=True,
        override_logging=False,
        redirect_stdouts=False,
        loop=asyncio.get_running_loop(),
    )
    # Faust would write a cursor control to standard output.
    worker.spinner = None
    _log.info(
        "worker_started", app_id=settings.app_id, generation=settings.generation, roles=list(pipeline.readiness())
    )
    return await _serve(worker, settings)


async def _bound(settings: Settings) -> Generations:
    """Make topics ready and make sure that this program may work on its generation; gives all that there are."""
    await check_generation(settings)
    await prepare_topics(settings, settings.roles)
    generations = await bind_generation(settings, settings.roles)
    if generations.serving != settings.generation:
        _log.warning("generation_does_not_serve", generation=settings.generation, serving=generations.serving)
    return generations


def _own_exports(settings: Settings) -> list[ExportSettings]:
    """Give the exports that this worker's roles name."""
    return [export for export in settings.exports if not {"export", f"export:{export.name}"}.isdisjoint(settings.roles)]


def make_exports(settings: Settings, metrics: Metrics, serving: Serving) -> list[ExportRole]:
    """Make the exports that run here; one whose sink cannot be filled out of sight waits until its generation serves.

    Raises SettingsError when an export has no usable key or price table.
    """
    exports = [ExportRole(settings, export, metrics, serving) for export in _own_exports(settings)]
    if serving.generation == settings.generation:
        return exports
    for export in exports:
        if not export.can_stand_beside:
            _log.warning("export_waits", role=export.name, problem="its readers would see two generations at once")
    return [export for export in exports if export.can_stand_beside]


async def core_roles(settings: Settings, metrics: Metrics) -> Sequence[Role]:
    """Make the roles of the settings that are no exports; the broker decides whether the fold is fenced."""
    wanted = [role for role in ("project", "fold") if role in settings.roles]
    if not wanted:
        return ()
    is_fenced = await _decide_fencing(settings)
    store = await _fold_store(settings) if "fold" in wanted else MemoryFoldStore()
    roles: dict[str, Callable[[], Role]] = {
        "project": lambda: ProjectRole(settings, metrics, is_idempotent=is_fenced),
        "fold": lambda: FoldRole(settings, metrics, store, is_fenced=is_fenced),
    }
    return [roles[name]() for name in wanted]


async def _fold_store(settings: Settings) -> FoldStore:
    """Make what the fold keeps its state in. Raises StartError when state_dir cannot be used, or BrokerFailed."""
    if settings.state_dir is None:
        return MemoryFoldStore()
    facts = own_topics(settings).facts
    async with open_scan(settings) as scan:
        with broker_errors(settings):
            identities = await topic_identities(scan.admin, [facts])
    topic_id = identities[facts].id if facts in identities else None
    if topic_id is None:
        # A topic made anew under the old name would not be noticed, and its state taken for that of the old one.
        _log.warning("state_not_used", topic=facts, reason="topic_without_id")
        return MemoryFoldStore()
    try:
        return local_store(settings, topic_id, PROJECTION_VERSION)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StartError(f"state_dir cannot be used: {reason}; name a directory that this user may write") from error


async def _decide_fencing(settings: Settings) -> bool:
    if settings.fencing == "off":
        is_fenced = False
    else:
        is_fenced = await has_transactions(settings)
        if not is_fenced and settings.fencing == "on":
            message = "fencing is on, and this broker has no transactions; set fencing to auto or off, or use another"
            raise StartError(message)
    if not is_fenced:
        _log.warning(
            "fold_runs_without_fencing",
            fencing=settings.fencing,
            problem="a worker that lost a partition can still write an older record after a newer one",
        )
    return is_fenced


async def _serve(worker: "_Worker", settings: Settings) -> int:
    try:
        await worker.start()
    except OSError as error:
        reason_text = error.strerror or type(error).__name__
        message = f"no pages on {settings.web_host}:{settings.web_port}: {reason_text}; choose another web_port"
        raise StartError(message) from error
    finally:
        await worker.finish(settings.limits.shutdown_drain_s + _STOP_SPARE_S)
    reason = worker.crash_reason
    if isinstance(reason, StopWorkerError | SinkRefused | StartError):
        raise reason
    if reason is not None:
        _log.error("worker_crashed", **error_fields(reason))
        return _EXIT_FAILED
    _log.info("worker_stopped")
    return _EXIT_OK


# ------------------------------------------------------------------------------------------------------------- services


def _consumer(role: Role, settings: Settings, metrics: Metrics) -> BatchConsumer:
    return BatchConsumer(role, settings.limits, metrics, reading_rules(settings, role.name))


class Pipeline(Service):
    """All roles of this worker; they start one after the other and drain side by side."""

    def __init__(
        self,
        settings: Settings,
        core: Sequence[Role],
        metrics: Metrics,
        serving: Serving,
        bound: Binding,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._bound = bound
        self.metrics = metrics
        self.rates = Rates()
        self._settings = settings
        self._serving = serving
        self._exports = self._export_consumers()
        self._core = [_consumer(role, settings, metrics) for role in core]
        metrics.watch("lag_messages", self._lags)
        metrics.watch("corrupt_partitions", self._corrupt)
        for gauge, read in _ROLE_GAUGES.items():
            metrics.watch(gauge, functools.partial(self._per_role, read))

    def on_init_dependencies(self) -> Iterable[ServiceT]:
        notices = SupervisorNotices(Supervisor(), lambda: all(role.is_ready for role in self.readiness().values()))
        watches = [
            GenerationWatch(self._settings, self._serving, self._serving_changed),
            TopicsWatch(self._settings, self._bound),
        ]
        return [notices, *self._consumers, *watches]

    @property
    def _consumers(self) -> list[BatchConsumer]:
        return [*self._core, *self._exports]

    def _export_consumers(self) -> list[BatchConsumer]:
        roles = make_exports(self._settings, self.metrics, self._serving)
        return [_consumer(role, self._settings, self.metrics) for role in roles]

    @Service.timer(_LOG_ENDS_S)
    async def _look_at_log_ends(self) -> None:
        for consumer in self._consumers:
            try:
                await consumer.look_at_ends()
            except KafkaError as error:
                # The lag stays what it was; whoever reads from these brokers finds out by itself.
                _log.warning("log_ends_unknown", role=consumer.role.name, **error_fields(error))

    @Service.timer(_RATES_S)
    async def _sample_rates(self) -> None:
        roles = [consumer.role.name for consumer in self._consumers]
        self.rates.sample(time.monotonic(), roles, self.metrics.families())

    async def _serving_changed(self) -> None:
        """Let the exports go and take them up again, each where its generation now has its rows."""
        await asyncio.gather(*(consumer.stop() for consumer in self._exports))
        self._exports = self._export_consumers()
        for consumer in self._exports:
            await self.add_runtime_dependency(consumer)

    async def on_stop(self) -> None:
        await asyncio.gather(*(consumer.drain() for consumer in self._consumers))

    def readiness(self) -> Mapping[str, Readiness]:
        """Give the readiness of every role that runs here."""
        return {
            consumer.role.name: Readiness(
                consumer.is_ready(),
                *consumer.partition_counts(),
                consumer.paused_partitions(),
                consumer.stopped_partitions(),
                consumer.standing_partitions(),
            )
            for consumer in self._consumers
        }

    def _per_role(self, read: Callable[[BatchConsumer], float]) -> list[tuple[tuple[str, ...], float]]:
        return [((consumer.role.name,), read(consumer)) for consumer in self._consumers]

    def _corrupt(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for consumer in self._consumers:
            for topic, partition in consumer.corrupt_partitions():
                yield (consumer.role.name, topic, str(partition)), 1.0

    def _lags(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for consumer in self._consumers:
            for (topic, partition), lag in consumer.lag_messages().items():
                yield (consumer.role.name, topic, str(partition)), lag


_ROLE_GAUGES: Final[Mapping[GaugeName, Callable[[BatchConsumer], float]]] = {
    "oldest_in_flight_seconds": lambda consumer: consumer.oldest_in_flight_s(),
    "commit_standstill_seconds": lambda consumer: consumer.standstill_s(),
    "assigned_partitions": lambda consumer: consumer.partition_counts()[0],
    "ready_partitions": lambda consumer: consumer.partition_counts()[1],
    "paused_partitions": lambda consumer: consumer.paused_partitions(),
}


class _PagesOnly(BootStrategy):
    """Starts Faust without its Kafka clients: no consumer, no producer, no tables, no leader election."""

    enable_kafka = False


class _App(faust.App):
    """A Faust app around the pipeline."""

    BootStrategy = _PagesOnly

    def __init__(self, *args: Any, pipeline: Pipeline, **options: Any) -> None:
        self._pipeline = pipeline
        super().__init__(*args, **options)

    def on_init_dependencies(self) -> Iterable[ServiceT]:
        # After the pages, so that a restore that takes long can be watched; and stopped before them.
        return [*super().on_init_dependencies(), self._pipeline]

    async def on_first_start(self) -> None:
        """Make no directories: Faust keeps tables there, and there are none."""


class _Worker(faust.Worker):
    """Faust's worker with the two signals that stop it, and none that opens a debugger."""

    def install_signal_handlers(self) -> None:
        self.loop.add_signal_handler(signal.SIGINT, self._schedule_shutdown, signal.SIGINT)
        self.loop.add_signal_handler(signal.SIGTERM, self._schedule_shutdown, signal.SIGTERM)

    async def finish(self, timeout_s: float) -> None:
        """Stop all services, or wait for the stop that a signal began; not longer than this."""
        stopping = self._signal_stop_future or asyncio.ensure_future(self.stop())
        done, _ = await asyncio.wait([stopping], timeout=timeout_s)
        if not done:
            _log.error("stop_timed_out", duration_s=timeout_s)


def make_app(settings: Settings, pipeline: Pipeline, pages: RecordPages | None = None) -> AppT:
    """Make the Faust app of a worker: its services and its pages."""
    app = _App(
        settings.app_id,
        pipeline=pipeline,
        broker=[f"kafka://{server}" for server in settings.bootstrap_servers.split(",")],
        autodiscover=False,
        web_host=settings.web_host,
        web_bind=settings.web_host,
        web_port=settings.web_port,
        web_in_thread=False,
        web_router_enabled=False,
        web_tables_enabled=False,
    )
    add_pages(app, pipeline, settings.web_token)
    if pages is not None:
        pages.add_to(app, pipeline, Letters(settings))
    return app
