"""The durable history of generations: what each was bound to when it began, which one serves, and which are gone.

It is a topic of one partition that forgets nothing, and so small that whoever wants to know reads all of it. (A
compacted topic would keep the last word on a generation; what binds is the first.)
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson
from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from worker.direct_writer import open_producer
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.topic_ids import TopicIdentity
from worker.topic_scan import BrokerFailed, TopicScan, broker_errors

_VISIBLE_TRIES = 50
_VISIBLE_PAUSE_S = 0.1

Origin = Literal["sources", "facts"]


class BoundTopic(NamedTuple):
    """A topic that a generation is bound to."""

    topic: str
    id: str | None
    partitions: int

    @classmethod
    def of(cls, topic: str, identity: TopicIdentity) -> "BoundTopic":
        """Bind to a topic as it is."""
        return cls(topic, identity.id, identity.partitions)


class Binding(NamedTuple):
    """What a generation is a function of, beside the messages.

    ``topics`` are by the name of their source, or ``facts`` and ``records``. ``began`` gives, by source, the offsets at
    which its partitions began when the generation was started. ``unbound`` is what becomes of conversations that no
    execution is bound to; None until somebody who folds has said so.
    """

    projection_version: int
    topics: Mapping[str, BoundTopic]
    began: Mapping[str, tuple[int, ...]]
    origin: Origin
    unbound: str | None = None


@dataclass
class Generations:
    """What the history comes to.

    A generation serves once it was promoted; the first one ever started serves until another is. ``replaced`` is the
    one that served before it.
    """

    bindings: dict[int, Binding] = field(default_factory=dict)
    started_ms: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    serving: int | None = None
    replaced: int | None = None

    @property
    def living(self) -> list[int]:
        """The generations that were started and not dropped, in order."""
        return sorted(self.bindings.keys() - self.dropped)

    @property
    def next(self) -> int:
        """The number of the generation that was never started."""
        return max(self.bindings, default=0) + 1

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in one event; events of a kind that this release does not know say nothing to it."""
        generation = event["generation"]
        match event["event"]:
            case "started":
                if generation not in self.bindings:
                    self.bindings[generation] = _binding(event)
                    self.started_ms[generation] = event["at"]
                if self.serving is None:
                    self.serving = generation
            case "accepted":
                then, now = self.bindings[generation], _binding(event)
                began = {**now.began, **then.began}
                topics, unbound = {**then.topics, **now.topics}, then.unbound or now.unbound
                self.bindings[generation] = then._replace(topics=topics, began=began, unbound=unbound)
            case "promoted" if generation != self.serving:
                self.replaced, self.serving = self.serving, generation
            case "dropped":
                self.dropped.add(generation)


def generations_topic(settings: Settings) -> str:
    """Name the topic of the history."""
    return f"{settings.app_id}-generations"


def started(generation: int, binding: Binding, *, event: str = "started") -> dict[str, Any]:
    """Make the event that binds a generation."""
    return {
        "event": event,
        "generation": generation,
        "projectionVersion": binding.projection_version,
        "topics": {name: bound._asdict() for name, bound in binding.topics.items()},
        "began": {source: list(offsets) for source, offsets in binding.began.items()},
        "origin": binding.origin,
        "unbound": binding.unbound,
    }


def _binding(event: Mapping[str, Any]) -> Binding:
    return Binding(
        projection_version=event["projectionVersion"],
        topics={name: BoundTopic(**bound) for name, bound in event["topics"].items()},
        began={source: tuple(offsets) for source, offsets in event["began"].items()},
        origin=event["origin"],
        # Earlier releases did not say it.
        unbound=event.get("unbound"),
    )


async def make_history(admin: Any, settings: Settings) -> None:
    """Create the topic of the history when it is missing. Raises BrokerFailed."""
    topic = generations_topic(settings)
    with broker_errors(settings):
        if topic in await admin.list_topics():
            return
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        in_sync = {"min.insync.replicas": str(max(1, settings.replication_factor - 1))}
        response = await admin.create_topics(
            [NewTopic(topic, 1, settings.replication_factor, topic_configs=kept | in_sync)]
        )
    for _topic, code, *_ in response.topic_errors:
        if code and for_code(code) is not TopicAlreadyExistsError:
            raise BrokerFailed(f"cannot create topic {topic}: {for_code(code).__name__}")
    await _wait_until_visible(admin, settings, topic)


async def _wait_until_visible(admin: Any, settings: Settings, topic: str) -> None:
    # A topic is created by the controller, and known to every other broker a moment later.
    with broker_errors(settings):
        for _ in range(_VISIBLE_TRIES):
            if topic in await admin.list_topics():
                return
            await asyncio.sleep(_VISIBLE_PAUSE_S)
    raise BrokerFailed(f"created topic {topic} does not appear")


async def read_history(scan: TopicScan, settings: Settings) -> Generations:
    """Read the whole history; nothing when there is none yet. Raises BrokerFailed."""
    generations = Generations()
    for event in await _events(scan, settings):
        generations.apply(event)
    return generations


async def _events(scan: TopicScan, settings: Settings) -> Iterable[Mapping[str, Any]]:
    partitions = await scan.partitions([generations_topic(settings)])
    events = []
    async for _place, messages in scan.read(await scan.spans(partitions)):
        events += [orjson.loads(message.value) for message in messages if message.value is not None]
    return events


async def append_event(settings: Settings, event: Mapping[str, Any]) -> None:
    """Add an event to the history; it is durable when this returns. Raises BrokerFailed."""
    place = TopicPartition(generations_topic(settings), 0)
    value = orjson.dumps({**event, "at": time.time_ns() // 1_000_000})
    async with open_producer(settings) as producer:
        with broker_errors(settings):
            await producer.send_and_wait(place.topic, value, key=b"%d" % event["generation"], partition=place.partition)
