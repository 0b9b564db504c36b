"""Messages per second through a whole worker: four topics on a real broker, all roles in one process, rows in DuckDB.

Beside it stands the floor (`tests.bench.floor`): the least that any such worker must do with the same bytes. Processor
time is what counts there, because broker and publisher share these cores; only ratios travel.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench import floor
from tests.bench.course import Groups, Run, create_topics, run_course, run_sync
from tests.bench.place import KEY_VARIABLE, OWN_PARTITIONS, SOURCE_PARTITIONS, Place
from tests.bench.site import one_broker
from tests.bench.traffic import figures, make_traffic
from tests.brokers.apache_kafka import KafkaCluster
from tests.chaos.watch import parse, total
from tests.integration.pipeline import KEY, REPOSITORY, WorkerProcess
from tests.worlds.world import SourceMessage
from worker.settings import load_settings
from worker.topics import prepare_topics

_WARM_UP = 1_000


class WorkerSite:
    """A worker with one redacted export to DuckDB, started and ready, on topics of its own."""

    def __init__(self, cluster: KafkaCluster, directory: Path, app_id: str) -> None:
        self.place = Place.on(cluster.bootstrap_servers, app_id, directory)
        self._config = directory / f"{app_id}.toml"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_PROJECTOR_")}
        self.worker = WorkerProcess(self._config, app_id, environ | {"PYTHONPATH": str(REPOSITORY)})

    def __enter__(self) -> Self:
        place = self.place
        names = (f'{source.replace("-", "_")} = "{topic}"' for source, topic in place.topics.sources.items())
        lines = [
            f'app_id = "{place.app_id}"',
            f'bootstrap_servers = "{place.servers}"',
            f"partitions = {OWN_PARTITIONS}",
            "[topics]",
            *names,
            "[[exports]]",
            'name = "plain"',
            f'sink = "duckdb:{place.duckdb_path}"',
            f'key_env = "{KEY_VARIABLE}"',
        ]
        self._config.write_text("\n".join(lines) + "\n")
        run_sync(create_topics(place.servers, dict.fromkeys(place.topics.sources.values(), SOURCE_PARTITIONS)))
        run_sync(prepare_topics(load_settings(self._config), ()))
        self.worker.start()
        try:
            self.worker.wait_ready()
        except BaseException:
            self.worker.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.worker.is_running:
            return
        if kind is not None:
            self.worker.kill()
        else:
            assert self.worker.stop() == 0, "the worker ends well"

    @property
    def groups(self) -> Groups:
        topics, prefix = self.place.topics, f"{self.place.app_id}-g1"
        return {
            f"{prefix}-project": topics.source_partitions,
            f"{prefix}-fold": topics.fact_partitions,
            f"{prefix}-export-plain": topics.record_partitions,
        }

    def run(self, messages: Sequence[SourceMessage], warm_up: int) -> Run:
        """Let the worker take all messages, the first of them before the clock starts."""
        process = self.worker._process
        assert isinstance(process, subprocess.Popen), "the bench measures the program itself"
        return run_course(self.place, self.groups, process, messages, warm_up, self.worker.log_path)


def measure_all(message_count: int) -> dict[str, dict[str, float]]:
    """Measure the worker, and the floor of what it read and wrote, on one broker."""
    os.environ[KEY_VARIABLE] = KEY
    messages = make_traffic(_WARM_UP + message_count)
    with one_broker() as (cluster, directory), WorkerSite(cluster, directory, "bench-worker") as site:
        run = site.run(messages, _WARM_UP)
        samples = parse(site.worker.get("/metrics")[1].decode())
        writes = int(total(samples, "settled_batches_total", role="export:plain"))
        upserts = total(samples, "written_upserts_total")
        least = floor.measure(site.place, writes)
    row = run.figures() | {
        "upserts_per_s": upserts / (_WARM_UP + message_count) * run.messages / run.took_s,
        "bytes_mean": figures(messages)["bytes_mean"],
        "cpu_to_floor": run.cpu_s / run.messages * 1e6 / least["cpu_us_per_message"],
    }
    return {"duckdb": row, "floor": {**least, "cpu_to_floor": 1.0}}
