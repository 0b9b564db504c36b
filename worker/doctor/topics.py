"""Checks of topics: that they are there, and keep what they have to keep, for as long as they have to."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from worker.doctor.findings import Finding, error, kafka_tool, set_on_topic, warning
from worker.generations.log import generations_topic
from worker.settings import Settings
from worker.topic_scan import TopicScan, broker_errors, open_scan
from worker.topics import own_topics, topic_configs

_REPLICAS_WANTED: Final = 3
_DAY_MS: Final = 24 * 60 * 60 * 1000
# A message is stored with its key and headers, and the limit of the settings is on its value.
_SPARE_BYTES: Final = 1024 * 1024
# Whether less than what a topic is created with is wrong, or only something else.
_AT_LEAST: Final = frozenset({"delete.retention.ms", "max.message.bytes", "min.compaction.lag.ms"})
_WHY: Final = {
    "cleanup.policy": "what it holds is state, or is to be kept for good",
    "delete.retention.ms": "an export that stood still for longer misses deletions",
    "max.message.bytes": "what is made of a great message does not fit",
    "min.compaction.lag.ms": "a fold that is further behind restores a state that lacks facts",
    "retention.bytes": "what is forgotten comes back with the next generation",
    "retention.ms": "what is forgotten comes back with the next generation",
}


async def examine_topics(settings: Settings) -> tuple[list[Finding], list[str]]:
    """Connect and check the topics alone; gives what is wrong, the worst first, and which topics there are.

    Raises BrokerFailed.
    """
    async with open_scan(settings) as scan:
        with broker_errors(settings):
            described: Any = await scan.admin.describe_cluster()
        states = await topic_states(scan, settings)
    findings = check_topics(settings, states, len(described["brokers"]))
    return sorted(findings, key=lambda finding: (finding.severity != "error", finding.about)), sorted(states)


class TopicState(NamedTuple):
    """A topic as the brokers describe it."""

    partitions: Sequence[Mapping[str, Any]]
    configs: Mapping[str, str]


async def topic_states(scan: TopicScan, settings: Settings) -> dict[str, TopicState]:
    """Describe our topics and the sources that exist, by name. Raises BrokerFailed."""
    names = {*own_topics(settings), generations_topic(settings), *settings.source_topics.values()}
    with broker_errors(settings):
        # Listed first: describing a topic that is missing creates it on some brokers.
        present = sorted(names & set(await scan.admin.list_topics()))
        if not present:
            return {}
        described = await scan.admin.describe_topics(present)
        responses = await scan.admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in present]
        )
    configs = {
        topic: {name: value for name, value, *_ in entries}
        for response in responses
        for _code, _message, _type, topic, entries in response.resources
    }
    return {one["topic"]: TopicState(one["partitions"], configs.get(one["topic"], {})) for one in described}


def check_topics(settings: Settings, states: Mapping[str, TopicState], brokers: int) -> Iterator[Finding]:
    """Check what the brokers say of our topics and of the sources."""
    if settings.replication_factor > brokers:
        problem = f"replication_factor is {settings.replication_factor}, and there are {brokers} brokers"
        fix = f"set replication_factor = {brokers}, or add brokers"
        yield error("replication_factor", "replication_factor", problem, fix)
    for topic, wanted in topic_configs(settings).items():
        if topic in states:
            yield from _check_own(settings, topic, states[topic], wanted)
        else:
            fix = "trace-projector topics create"
            yield warning("own_topic_missing", f"topic {topic}", "it does not exist yet", fix)
    history = generations_topic(settings)
    if history in states:
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        yield from _check_configs(settings, history, states[history], kept)
    for source, topic in settings.source_topics.items():
        if source != "erasures":
            yield from _check_source(settings, source, topic, states.get(topic))
    for topic, state in states.items():
        yield from _check_replicas(settings, topic, state, brokers)


# ----------------------------------------------------------------------------------------------------------------- ours


def _check_own(settings: Settings, topic: str, state: TopicState, wanted: Mapping[str, str]) -> Iterator[Finding]:
    count = len(state.partitions)
    if count != settings.partitions and topic != own_topics(settings).erasures:
        problem = f"it has {count} partitions, and the settings say {settings.partitions}"
        fix = f"set partitions = {count}; another number is for another generation (`trace-projector rebuild`)"
        yield error("own_topic_partitions", f"topic {topic}", problem, fix)
    # How many replicas have to be in sync depends on how many there are, which is looked at with them.
    told = {name: value for name, value in wanted.items() if name in _WHY}
    yield from _check_configs(settings, topic, state, told)


def _check_configs(settings: Settings, topic: str, state: TopicState, wanted: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in wanted.items():
        # A broker may leave out what it does not know.
        has = state.configs.get(name, value)
        if has == value or (name in _AT_LEAST and int(has) >= int(value)):
            continue
        least = " at least" if name in _AT_LEAST else ""
        problem = f"{name} is {has} and has to be{least} {value}: {_WHY[name]}"
        yield error("own_topic_config", f"topic {topic}", problem, set_on_topic(settings, topic, {name: value}))


# --------------------------------------------------------------------------------------------------------------- theirs


def _check_source(settings: Settings, source: str, topic: str, state: TopicState | None) -> Iterator[Finding]:
    about, setting = f"topic {topic}", f"topics.{source.replace('-', '_')}"
    if state is None:
        fix = f"name the topic to read in {setting}, or make it: trace-projector topics create --sources"
        yield error("source_missing", about, f"the source {source} has no such topic", fix)
        return
    yield from _check_kept(settings, about, topic, state.configs)
    limit = settings.limits.message_bytes_max
    allowed = int(state.configs.get("max.message.bytes", limit))
    if allowed > limit + _SPARE_BYTES:
        problem = f"it takes messages of {allowed:,} bytes, and those above {limit:,} become dead letters"
        fix = f"set limits.message_bytes_max = {allowed}, or {set_on_topic(settings, topic, _bytes(limit))}"
        yield warning("source_message_bytes", about, problem, fix)
    line = settings.limits.transcript_line_bytes_max
    if source == "transcripts" and allowed < line:
        problem = f"it takes messages of {allowed:,} bytes at most, and a transcript's line may have {line:,}"
        fix = f"{set_on_topic(settings, topic, _bytes(limit))} (or a lower limits.transcript_line_bytes_max)"
        yield warning("source_message_bytes", about, problem, fix)


def _bytes(limit: int) -> dict[str, str]:
    return {"max.message.bytes": str(limit + _SPARE_BYTES)}


def _check_kept(settings: Settings, about: str, topic: str, configs: Mapping[str, str]) -> Iterator[Finding]:
    if "compact" in configs.get("cleanup.policy", ""):
        problem = "it is compacted, so a rebuild will not see what only older messages of a key said"
        fix = set_on_topic(settings, topic, {"cleanup.policy": "delete"})
        yield warning("source_compacted", about, problem, fix)
    days = int(configs.get("retention.ms", "-1")) / _DAY_MS
    size = int(configs.get("retention.bytes", "-1"))
    if days >= 0 or size >= 0:
        kept = f"for {days:g} days" if days >= 0 else f"as long as a partition has fewer than {size:,} bytes"
        problem = f"it keeps messages {kept}; a `rebuild` needs all of them from the generation's beginning on"
        told = set_on_topic(settings, topic, {"retention.ms": "-1", "retention.bytes": "-1"})
        yield warning("source_retention", about, problem, f"{told} (or rebuild with --from-facts when the time comes)")


# ------------------------------------------------------------------------------------------------------------- replicas


def _check_replicas(settings: Settings, topic: str, state: TopicState, brokers: int) -> Iterator[Finding]:
    about = f"topic {topic}"
    describe = kafka_tool(settings, "kafka-topics.sh", "--describe", "--topic", topic)
    without_leader = sum(one["leader"] < 0 for one in state.partitions)
    if without_leader:
        problem = f"{without_leader} of its partitions have no leader"
        yield error("topic_offline", about, problem, f"start the brokers that hold them; {describe}")
        return
    replicas = min((len(one["replicas"]) for one in state.partitions), default=0)
    in_sync = min((len(one["isr"]) for one in state.partitions), default=0)
    needed = int(state.configs.get("min.insync.replicas", "1"))
    if needed > in_sync:
        problem = f"min.insync.replicas is {needed} and {in_sync} replicas are in sync: no write is acknowledged"
        lower = set_on_topic(settings, topic, {"min.insync.replicas": str(max(1, replicas - 1))})
        fix = f"start the missing brokers ({describe})" if needed <= replicas else lower
        yield error("topic_in_sync", about, problem, fix)
    elif in_sync < replicas:
        problem = f"{in_sync} of {replicas} replicas are in sync"
        yield warning("topic_in_sync", about, problem, f"see what keeps the others back: {describe}")
    wanted = min(_REPLICAS_WANTED, brokers)
    is_ours = topic not in settings.source_topics.values() or topic == own_topics(settings).erasures
    if is_ours and replicas < wanted:
        problem = f"it has {replicas} replicas on {brokers} brokers: a broker that is lost may take it along"
        tool = kafka_tool(
            settings, "kafka-reassign-partitions.sh", "--execute", "--reassignment-json-file", "plan.json"
        )
        fix = f"set replication_factor = {wanted} before topics are made; for this one: {tool}"
        yield warning("topic_replicas", about, problem, fix)
