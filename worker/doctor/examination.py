"""What is wrong with an installation: settings, machine, brokers, topics, groups and sinks, each with its remedy.

Nothing is written, created or moved anywhere. Where one part cannot be looked at, that is a finding and the others are
looked at all the same.
"""

import asyncio
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.protocol.admin import ApiVersionRequest

from projections.version import PROJECTION_VERSION
from worker.doctor.findings import Finding, error, kafka_tool, warning
from worker.doctor.groups import check_clocks, check_generations, check_groups
from worker.doctor.machine import check_machine, check_tls_files
from worker.doctor.sinks import check_sinks
from worker.doctor.topics import TopicState, check_topics, topic_states
from worker.groups import open_groups
from worker.reachable import is_listening
from worker.settings import Settings
from worker.sink import SinkRefused, split_sink_url
from worker.topic_scan import BrokerFailed, TopicScan, broker_errors, open_scan

_DISTRIBUTIONS: Final = ("trace-projector", "aiokafka", "faust-streaming", "pydantic", "orjson", "rocksdict")
_DRIVERS: Final = {
    "clickhouse": "clickhouse-connect",
    "delta": "deltalake",
    "duckdb": "duckdb",
    "otlp": "opentelemetry-proto",
    "parquet": "pyarrow",
    "postgresql": "psycopg",
}
_WAYS: Final[Mapping[str, str]] = {
    "kafka.sasl_password": "set kafka.sasl_username, and the password in TRACE_PROJECTOR_KAFKA__SASL_PASSWORD; a "
    "listener that asks for neither is kafka.security_protocol PLAINTEXT or SSL",
    "kafka.sasl_mechanism": "set kafka.sasl_mechanism to one of the broker's sasl.enabled.mechanisms",
    "kafka.ssl_ca_file": "set kafka.ssl_ca_file to the certificate of the authority that signed the broker's "
    "(`openssl s_client -connect HOST:PORT -showcerts`), and name the broker as its certificate does",
    "kafka.security_protocol": "set kafka.security_protocol to that of the broker's listener at this address "
    "(PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL)",
}
"""What the words for an unreachable broker name, to what is to be done; the first one that they name counts."""
# Of Kafka's requests, by their numbers in the protocol: whether writes can be fenced, and whether topics have ids.
_INIT_PRODUCER_ID: Final = 22
_METADATA: Final = 3
_METADATA_WITH_TOPIC_IDS: Final = 10


@dataclass
class Diagnosis:
    """All findings, errors first, and what was looked at."""

    findings: list[Finding] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    looked_at: list[str] = field(default_factory=list)
    lags: dict[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.severity == "error" for finding in self.findings)


async def examine(settings: Settings, watch_s: float) -> Diagnosis:
    """Look at everything; ``watch_s`` is for how long a group that lags is watched."""
    diagnosis = Diagnosis(versions=_versions(settings))
    diagnosis.looked_at.append("machine")
    diagnosis.findings += await asyncio.to_thread(lambda: list(check_machine(settings)))
    serving = settings.generation
    if not any(finding.severity == "error" for finding in check_tls_files(settings)):
        try:
            serving = await _examine_brokers(settings, diagnosis, watch_s)
        except BrokerFailed as problem:
            diagnosis.findings.append(_broker_finding(settings, str(problem)))
    diagnosis.looked_at.append("sinks")
    diagnosis.findings += await check_sinks(settings, serving)
    diagnosis.findings.sort(key=lambda finding: (finding.severity != "error", finding.about))
    return diagnosis


async def _examine_brokers(settings: Settings, diagnosis: Diagnosis, watch_s: float) -> int:
    """Look at everything on the brokers, and give the generation that serves. Raises BrokerFailed."""
    found = diagnosis.findings
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        diagnosis.looked_at += ["brokers", "topics", "groups", "generation", "clocks"]
        brokers = await _brokers(scan, settings)
        apis = await _api_versions(scan, settings)
        diagnosis.versions["brokers"] = str(brokers)
        diagnosis.versions["kafka metadata api"] = str(apis.get(_METADATA, 0))
        found += _check_apis(settings, apis)
        found += await _check_addresses(settings)
        states = await topic_states(scan, settings)
        found += check_topics(settings, states, brokers)
        binding, generations = await check_generations(scan, settings)
        found += binding
        readable = [topic for topic, state in states.items() if _is_readable(state)]
        if len(readable) == len(states):
            lagging, diagnosis.lags = await check_groups(scan, groups, settings, watch_s)
            found += lagging
        found += await check_clocks(scan, readable)
    return settings.generation if generations.serving is None else generations.serving


def _is_readable(state: TopicState) -> bool:
    return all(one["leader"] >= 0 for one in state.partitions)


def _broker_finding(settings: Settings, text: str) -> Finding:
    servers = settings.bootstrap_servers
    fix = next((way for named, way in _WAYS.items() if named in text), None)
    if fix is None and "no Kafka broker answers" in text:
        text = f"no Kafka broker answers at {servers}"
        fix = "start one, or correct bootstrap_servers (TRACE_PROJECTOR_BOOTSTRAP_SERVERS)"
    tool = kafka_tool(settings, "kafka-acls.sh", "--list")
    return error("broker", servers, text, fix or f"see what this user may do: {tool}")


async def _check_addresses(settings: Settings) -> list[Finding]:
    """Look at each address of a list of which one answers: another that does not fails when it is needed."""
    found = []
    for server in settings.bootstrap_servers.split(","):
        host, _, port = server.rpartition(":")
        if not await is_listening(host, port):
            fix = "start the broker, or take it out of bootstrap_servers"
            found.append(warning("broker_address", server, "nothing listens there, though other brokers answer", fix))
    return found


async def _brokers(scan: TopicScan, settings: Settings) -> int:
    with broker_errors(settings):
        described: Any = await scan.admin.describe_cluster()
    return len(described["brokers"])


# ------------------------------------------------------------------------------------------------------------ versions


def _versions(settings: Settings) -> dict[str, str]:
    versions = {"python": platform.python_version(), "projection": str(PROJECTION_VERSION)}
    for name in (*_DISTRIBUTIONS, *_drivers(settings)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _drivers(settings: Settings) -> Sequence[str]:
    schemes = []
    for export in settings.exports:
        try:
            schemes.append(split_sink_url(export.sink)[0])
        except SinkRefused:
            # The check of sinks tells it.
            continue
    return sorted({_DRIVERS[scheme] for scheme in schemes if scheme in _DRIVERS})


async def _api_versions(scan: TopicScan, settings: Settings) -> dict[int, int]:
    """Ask a broker for the newest version of every request that it knows, by the request's number."""
    with broker_errors(settings):
        # The admin client's only door for a request.
        response = await scan.admin._send_request(ApiVersionRequest())  # noqa: SLF001
    return {key: newest for key, _oldest, newest, *_ in response.api_versions}


def _check_apis(settings: Settings, apis: Mapping[int, int]) -> list[Finding]:
    found = []
    if _INIT_PRODUCER_ID not in apis and settings.fencing != "off":
        problem = "the broker has no transactions: a worker that lost a partition can still write over newer records"
        fix = 'use Apache Kafka 2.5 or later, or set fencing = "off" to accept that'
        make = error if settings.fencing == "on" else warning
        found.append(make("no_fencing", "fencing", problem, fix))
    if apis.get(_METADATA, 0) < _METADATA_WITH_TOPIC_IDS:
        problem = "the broker gives topics no ids: one that was deleted and made anew is not noticed"
        found.append(warning("no_topic_ids", settings.bootstrap_servers, problem, "use Apache Kafka 2.8 or later"))
    return found
