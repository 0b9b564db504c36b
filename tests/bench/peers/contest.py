"""The worker beside Faust, Quix Streams and FastStream: the same messages, pure functions, sink, topics and broker.

Every contender is one process that commits only what is durable, and every DuckDB file must hold the rows
that one pass over its messages gives. Each framework's module says how it was used and tuned, and why.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from projections.canonical import encode_record
from tests.bench.course import Groups, Run, create_topics, run_course, run_sync
from tests.bench.peers.hops import Exporting, Header, RecordRow
from tests.bench.pipeline import WorkerSite
from tests.bench.place import KEY_VARIABLE, OWN_PARTITIONS, SOURCE_PARTITIONS, Place
from tests.bench.site import one_broker
from tests.bench.traffic import make_traffic
from tests.integration.pipeline import KEY, REPOSITORY, duckdb_records
from tests.worlds.cluster import clean_pass
from tests.worlds.world import SourceMessage
from worker.exports import KIND_HEADER, record_key

_PYTHON = REPOSITORY / "build" / "peers" / "bin" / "python"
_STOP_S = 20.0


class Peer(NamedTuple):
    """A framework: its module, the groups of its application, and its share of the messages: the slower the fewer."""

    module: str
    groups: Callable[[Place], Groups]
    share: float = 1.0


def _one_group(place: Place) -> Groups:
    topics = place.topics
    return {place.app_id: [*topics.source_partitions, *topics.fact_partitions, *topics.record_partitions]}


def _group_per_hop(place: Place) -> Groups:
    topics = place.topics
    return {
        f"{place.app_id}-project": topics.source_partitions,
        f"{place.app_id}-fold": topics.fact_partitions,
        f"{place.app_id}-export": topics.record_partitions,
    }


# Faust is the worker's own dependency, yet runs where the others do.
PEERS: dict[str, Peer] = {
    "faust": Peer("tests.bench.peers.faust_app", _one_group, 0.25),
    "quix": Peer("tests.bench.peers.quix_app", _one_group),
    "faststream": Peer("tests.bench.peers.faststream_app", _group_per_hop),
}


def measure_all(
    message_count: int, warm_up: int = 1_000, names: Sequence[str] = tuple(PEERS)
) -> dict[str, dict[str, float]]:
    """Measure the worker and its peers with the same messages on one broker, the worker before and after the others.

    So what else these cores have to do, more or less of it as time goes by, is not only one side's.
    """
    if not _PYTHON.exists():
        sys.exit("the frameworks are not installed; run: make build/peers/complete")
    os.environ[KEY_VARIABLE] = KEY
    messages = make_traffic(warm_up + message_count)
    with one_broker() as (cluster, directory):
        expected = Rows(Place.on(cluster.bootstrap_servers, "bench", directory))

        def run_worker(app_id: str) -> Run:
            with WorkerSite(cluster, directory, app_id) as site:
                run = site.run(messages, warm_up)
            expected.check(site.place, messages)
            return run

        rows: dict[str, dict[str, float]] = {"worker": {}}
        first = run_worker("bench-worker-first")
        for name in names:
            part = messages[: warm_up + int(message_count * PEERS[name].share)]
            place = Place.on(cluster.bootstrap_servers, f"bench-{name}", directory)
            rows[name] = measure(PEERS[name], place, part, warm_up).figures()
            expected.check(place, part)
        worker = rows["worker"]
        worker |= _together(first, run_worker("bench-worker-last")).figures()
    for name in names:
        worker[f"duckdb_to_{name}"] = worker["messages_per_s"] / rows[name]["messages_per_s"]
        # Other work on the same cores makes everybody slower, but not everybody's work more.
        worker[f"cpu_of_{name}_to_duckdb"] = rows[name]["cpu_us_per_message"] / worker["cpu_us_per_message"]
    return rows


def _together(one: Run, other: Run) -> Run:
    return Run(
        one.messages + other.messages,
        one.took_s + other.took_s,
        one.cpu_s + other.cpu_s,
        max(one.peak_rss_mib, other.peak_rss_mib),
    )


class Rows:
    """What every file must hold: what one pass over the messages gives, redacted by the same policy."""

    def __init__(self, place: Place) -> None:
        self._exporting = Exporting(place)
        self._wanted: dict[int, list[tuple[str, str, str]]] = {}

    def check(self, place: Place, messages: Sequence[SourceMessage]) -> None:
        """Compare a contender's file with a pass over the messages that it was given, the first ones of them all."""
        if len(messages) not in self._wanted:
            self._wanted[len(messages)] = self._of(messages)
        wanted = self._wanted[len(messages)]
        assert wanted, "messages without records show nothing"
        assert duckdb_records(place.duckdb_path) == wanted, f"{place.app_id} holds other rows than one pass gives"

    def _of(self, messages: Sequence[SourceMessage]) -> list[tuple[str, str, str]]:
        records = [orjson.loads(data) for data in clean_pass(list(messages)).records.values()]
        upserts = self._exporting.upserts(
            RecordRow(0, 0, record_key(record["kind"], record["id"]), encode_record(record), [kind_header(record)])
            for record in records
        )
        return sorted((upsert.kind, upsert.id, (upsert.json or b"").decode()) for upsert in upserts)


def kind_header(record: Mapping[str, Any]) -> Header:
    """Give the header that a record travels with."""
    return KIND_HEADER, record["kind"].encode()


def measure(peer: Peer, place: Place, messages: Sequence[SourceMessage], warm_up: int) -> Run:
    """Run one framework's process over the course."""
    topics = place.topics
    counts = dict.fromkeys(topics.sources.values(), SOURCE_PARTITIONS)
    run_sync(create_topics(place.servers, counts | {topics.facts: OWN_PARTITIONS, topics.records: OWN_PARTITIONS}))
    log_path = place.duckdb_path.with_suffix(".log")
    command = [str(_PYTHON), "-m", peer.module, place.servers, place.app_id, str(place.duckdb_path)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=place.duckdb_path.parent,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "FAUST_LOOP": "uvloop"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        return run_course(place, peer.groups(place), process, messages, warm_up, log_path)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"{peer.module} did not stop when it was asked to\n")
            process.kill()
            process.wait()
