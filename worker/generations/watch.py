"""What is watched while a worker runs: which generation serves, and that its topics are those it is bound to."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import orjson
import structlog
from aiokafka.errors import KafkaError
from mode import Service

from worker.generations.binding import names_of, refuse_topics_made_anew
from worker.generations.log import Binding, Generations, generations_topic
from worker.kafka import TopicPartition, admin_client, log_reader
from worker.logs import error_fields
from worker.settings import Settings
from worker.sink_place import Serving
from worker.topic_ids import topic_identities
from worker.topics import StartError

_log = structlog.get_logger(__name__)

_POLL_MS = 1_000
_AGAIN_S = 5.0
_LOOK_S = 5.0


class _Watch(Service):
    """Follows something on the brokers, and begins anew after errors: what workers do does not depend on it."""

    what: ClassVar[str]

    async def on_start(self) -> None:
        self.add_future(self._watch())

    async def _watch(self) -> None:
        while not self.should_stop:
            try:
                await self._follow()
            except (KafkaError, OSError) as error:
                _log.warning("not_watched", watched=self.what, **error_fields(error))
                await self.sleep(_AGAIN_S)

    async def _follow(self) -> None:
        raise NotImplementedError


class GenerationWatch(_Watch):
    """Keeps ``serving`` up to date, and calls ``on_change`` after each change, one at a time."""

    what = "generations"

    def __init__(
        self, settings: Settings, serving: Serving, on_change: Callable[[], Awaitable[None]], **options: Any
    ) -> None:
        super().__init__(**options)
        self._settings = settings
        self._serving = serving
        self._on_change = on_change

    async def _follow(self) -> None:
        """Read the history from its beginning, and then whatever is added."""
        generations = Generations()
        place = TopicPartition(generations_topic(self._settings), 0)
        reader = log_reader(self._settings)
        try:
            await reader.start()
            reader.assign([place])
            reader.seek(place, (await reader.beginning_offsets([place]))[place])
            # Until all of the history is read it may still name an earlier generation.
            end = (await reader.end_offsets([place]))[place]
            while not self.should_stop:
                for message in (await reader.getmany(place, timeout_ms=_POLL_MS)).get(place, []):
                    generations.apply(orjson.loads(message.value))
                if await reader.position(place) >= end:
                    await self._notice(generations)
        finally:
            await asyncio.wait_for(reader.stop(), _AGAIN_S)

    async def _notice(self, generations: Generations) -> None:
        if generations.serving is None or generations.serving == self._serving.generation:
            return
        self._serving.generation = generations.serving
        _log.info("generation_serves", serving=generations.serving, generation=self._settings.generation)
        await self._on_change()


class TopicsWatch(_Watch):
    """Ends the worker when a topic of its generation was deleted and made anew: its offsets would be taken for others.

    A group's committed offsets go with the topic, or reach into the new one: either way nobody who reads notices.
    """

    what = "topics"

    def __init__(self, settings: Settings, bound: Binding, **options: Any) -> None:
        super().__init__(**options)
        self._settings = settings
        self._bound = bound

    async def _follow(self) -> None:
        """Ask for the ids of the topics again and again."""
        names = names_of(self._bound, self._settings.roles)
        topics = [self._bound.topics[name].topic for name in names if name in self._bound.topics]
        admin = admin_client(self._settings)
        try:
            await admin.start()
            while not self.should_stop:
                identities = await topic_identities(admin, topics)
                refuse_topics_made_anew(self._bound, identities, self._settings.generation, names)
                await self.sleep(_LOOK_S)
        except StartError as error:
            await self.crash(error)
        finally:
            await admin.close()
