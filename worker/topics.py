"""Names of topics and groups, and the checks and creations of topics that come before anything is read."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import structlog
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError, for_code

from worker.kafka import admin_client
from worker.reachable import why_unreachable
from worker.settings import Settings

_log = structlog.get_logger(__name__)

_DAY_MS: Final = 24 * 60 * 60 * 1000
_RECORD_TOMBSTONES_DAYS: Final = 30
_FACTS_UNCOMPACTED_DAYS: Final = 7
# A message of ours is made from one of the sources and can be a little larger than it.
_MESSAGE_BYTES_SPARE: Final = 1024 * 1024
_VISIBLE_TRIES: Final = 50
_VISIBLE_PAUSE_S: Final = 0.1


class StartError(Exception):
    """The worker cannot start; the text says to its operator what is missing and what to do about it."""


class OwnTopics(NamedTuple):
    """The topics that this program writes, all of them named after the application."""

    facts: str
    records: str
    dead_letters: str
    erasures: str


def own_topics(settings: Settings) -> OwnTopics:
    """Name our topics; facts and records belong to one generation."""
    generation = f"{settings.app_id}-g{settings.generation}"
    return OwnTopics(
        facts=f"{generation}-trace-facts",
        records=f"{generation}-trace-records",
        dead_letters=f"{settings.app_id}-trace-dead-letters",
        erasures=settings.source_topics["erasures"],
    )


def project_group(settings: Settings) -> str:
    """Name the group that reads the sources for one generation."""
    return f"{settings.app_id}-g{settings.generation}-project"


def fold_group(settings: Settings) -> str:
    """Name the group that reads the facts of one generation."""
    return f"{settings.app_id}-g{settings.generation}-fold"


def export_group(settings: Settings, export: str) -> str:
    """Name the group that reads the records of one generation for one export."""
    return f"{settings.app_id}-g{settings.generation}-export-{export}"


def topic_configs(settings: Settings) -> dict[str, dict[str, str]]:
    """Give the configuration that each of our topics is created with."""
    own = own_topics(settings)
    every = {
        "max.message.bytes": str(settings.limits.message_bytes_max + _MESSAGE_BYTES_SPARE),
        # With three replicas a write needs two of them: one broker may fail and nothing that was acknowledged is lost.
        "min.insync.replicas": str(max(1, settings.replication_factor - 1)),
    }
    # Small and hot: compact early, because a restart reads all of it.
    compacted = every | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"}
    return {
        own.facts: compacted
        | {
            "delete.retention.ms": str(_DAY_MS),
            # A partition's facts up to its committed offset are its state. What is projected twice is there twice, and
            # compaction keeps the later copy: that must not happen before the fold has got there, or a restored state
            # lacks the fact and whatever was to be withdrawn with it stays. So a fold may be behind for this long.
            "min.compaction.lag.ms": str(_FACTS_UNCOMPACTED_DAYS * _DAY_MS),
        },
        # A sink that stood still for less than this still learns of every deletion.
        own.records: compacted | {"delete.retention.ms": str(_RECORD_TOMBSTONES_DAYS * _DAY_MS)},
        own.dead_letters: compacted,
        # What was erased stays erased in every generation to come, so these are kept for good.
        own.erasures: every | {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    }


async def prepare_topics(settings: Settings, roles: Collection[str]) -> None:
    """Create the topics of ours that are missing, and check all that the roles need; StartError says what is wrong."""
    admin = admin_client(settings)
    try:
        await admin.start()
        existing = frozenset(await admin.list_topics())
        if "project" in roles:
            _check_sources(settings, existing)
        await _create_missing(admin, settings, existing)
        await _check_own(admin, settings)
    except KafkaConnectionError as error:
        raise StartError(await why_unreachable(settings)) from error
    except KafkaError as error:
        message = f"Kafka at {settings.bootstrap_servers} refused to prepare the topics: {type(error).__name__}"
        raise StartError(message) from error
    finally:
        await admin.close()


def _check_sources(settings: Settings, existing: Collection[str]) -> None:
    # The topics are listed and not described: describing a topic that is missing creates it on some brokers.
    missing = {
        source: topic
        for source, topic in settings.source_topics.items()
        if topic not in existing and source != "erasures"
    }
    if missing:
        named = ", ".join(f"{topic} (setting topics.{source.replace('-', '_')})" for source, topic in missing.items())
        message = f"missing source topics: {named}; create them, or name the topics to read instead"
        raise StartError(message)


async def _create_missing(admin: Any, settings: Settings, existing: Collection[str]) -> None:
    missing = {topic: configs for topic, configs in topic_configs(settings).items() if topic not in existing}
    if not missing:
        return
    response = await admin.create_topics(
        [
            NewTopic(topic, settings.partitions, settings.replication_factor, topic_configs=configs)
            for topic, configs in missing.items()
        ]
    )
    for topic, code, *_ in response.topic_errors:
        error = for_code(code)
        # Another worker of the same application may have been faster.
        if code and error is not TopicAlreadyExistsError:
            factor = settings.replication_factor
            message = f"cannot create topic {topic}: {error.__name__} (replication_factor {factor})"
            raise StartError(message)
    _log.info("topics_created", topics=sorted(missing))


async def _check_own(admin: Any, settings: Settings) -> None:
    own = own_topics(settings)
    for topic, count in (await _partition_counts(admin, own)).items():
        # Erasures are read like a source, whatever their topic was made with.
        if count != settings.partitions and topic != own.erasures:
            message = (
                f"topic {topic} has {count} partitions and the settings say {settings.partitions}: a generation keeps "
                f"its partition counts; set partitions = {count}, or start another generation"
            )
            raise StartError(message)
    for topic in (own.facts, own.records):
        policy = (await _configs(admin, topic)).get("cleanup.policy")
        # A broker may leave out what it does not know; what it does say must be right.
        if policy is not None and policy != "compact":
            message = f"topic {topic} has cleanup.policy {policy}: it must be compact, or state is lost to retention"
            raise StartError(message)
    await check_erasures_are_kept(admin, own.erasures)


async def check_erasures_are_kept(admin: Any, topic: str) -> None:
    """Refuse an erasures topic that forgets: what it forgot would come back with the next generation."""
    configs = await _configs(admin, topic)
    wrong = [
        f"{name} = {configs[name]}"
        for name, wanted in (("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1"))
        # A broker may leave out what it does not know; what it does say must be right.
        if configs.get(name, wanted) != wanted
    ]
    if wrong:
        message = (
            f"topic {topic} forgets erasures ({', '.join(wrong)}): set cleanup.policy = delete, retention.ms = -1 and "
            "retention.bytes = -1 on it"
        )
        raise StartError(message)


async def _partition_counts(admin: Any, topics: Collection[str]) -> dict[str, int]:
    # A topic is created by the controller, and known to every other broker a moment later.
    for _ in range(_VISIBLE_TRIES):
        if set(topics) <= set(await admin.list_topics()):
            counts = {
                described["topic"]: len(described["partitions"])
                for described in await admin.describe_topics(list(topics))
            }
            if all(counts.values()):
                return counts
        await asyncio.sleep(_VISIBLE_PAUSE_S)
    message = f"created topics do not appear: {', '.join(sorted(topics))}"
    raise StartError(message)


async def _configs(admin: Any, topic: str) -> Mapping[str, str]:
    responses = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {
        name: value
        for response in responses
        for _code, _message, _type, _name, entries in response.resources
        for name, value, *_ in entries
    }
