"""Rebuilding: the next generation, with logs and groups of its own, filled while the one that serves goes on.

Order: 1. its topics are made; 2. the history says that it was started, and as what; 3. (from facts) the source facts of
the serving one are copied, then its project group is set to where that one stood before the copying; 4. the roles run
here until they have caught up. Interrupted anywhere, the same command goes on.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from projections.fact_kinds import is_from_source
from projections.facts import decode_fact, partition_of
from projections.version import PROJECTION_VERSION
from worker.app import core_roles, make_exports
from worker.consumer import BatchConsumer
from worker.direct_writer import open_producer
from worker.generations.binding import OWN, binding_now, mismatches
from worker.generations.log import Binding, Origin, append_event, make_history, read_history, started
from worker.groups import GroupsClient, open_groups
from worker.kafka import BatchWriter, Message
from worker.metrics import Metrics
from worker.progress import Stalled, passages, wait_through
from worker.reading import reading_rules
from worker.settings import Settings
from worker.sink_place import Serving
from worker.topic_scan import BrokerFailed, TopicScan, broker_errors, open_scan
from worker.topics import StartError, own_topics, prepare_topics, project_group

_CRASH_POLL_S = 0.5
_PURPOSE = "starting a generation from facts"


class LossRefused(Exception):  # noqa: N818  (a state of the world, not a fault of the program)
    """A source no longer holds all that the serving generation was made from; the text says what and the ways out."""


class Rebuilding(NamedTuple):
    """The generation that is being built, the one that serves, and whether the former is new."""

    settings: Settings
    serving: int
    origin: Origin
    is_new: bool


async def begin(settings: Settings, *, accept_loss: bool, from_facts: bool) -> Rebuilding:
    """Start the next generation, or find the one that was started and is still to be filled.

    Raises LossRefused, StartError or BrokerFailed.
    """
    async with open_scan(settings) as scan:
        generations = await read_history(scan, settings)
        serving = generations.serving
        if serving is None:
            raise StartError("no generation was ever started: start a worker, which begins the first one")
        unfinished = [
            one
            for one in generations.living
            if one > serving
            and generations.bindings[one].projection_version == PROJECTION_VERSION
            and generations.bindings[one].unbound in (None, settings.unbound)
        ]
        if unfinished:
            origin = generations.bindings[unfinished[-1]].origin
            return Rebuilding(_of(settings, unfinished[-1]), serving, origin, is_new=False)
        old = _of(settings, serving)
        now = await binding_now(scan, old)
        problems = list(_losses(generations.bindings[serving], now, from_facts=from_facts))
        if problems and not accept_loss:
            raise LossRefused(_loss_text(problems, serving, from_facts=from_facts))
    fresh = _of(settings, generations.next)
    origin = "facts" if from_facts else "sources"
    await prepare_topics(fresh, ("project",))
    async with open_scan(fresh) as scan:
        await make_history(scan.admin, fresh)
        bound = (await binding_now(scan, fresh, origin))._replace(unbound=fresh.unbound)
        await append_event(fresh, started(fresh.generation, bound))
    return Rebuilding(fresh, serving, origin, is_new=True)


def _of(settings: Settings, generation: int) -> Settings:
    return settings.model_copy(update={"generation": generation})


def _losses(bound: Binding, now: Binding, *, from_facts: bool) -> Iterator[str]:
    """Say what the serving generation was made from and cannot be read again."""
    if from_facts:
        yield from mismatches(bound, now, OWN)
        return
    for source, began in bound.began.items():
        topic = bound.topics[source].topic
        changed = [text for text in mismatches(bound, now, [source]) if "partitions" not in text]
        if changed:
            yield changed[0]
            continue
        for number, (then, first) in enumerate(zip(began, now.began[source], strict=False)):
            if first > then:
                yield f"topic {topic} partition {number} begins at offset {first}, and began at {then}"


def _loss_text(problems: Sequence[str], serving: int, *, from_facts: bool) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    ways = "--accept-loss builds from what is left"
    if not from_facts:
        ways += ", --from-facts from the facts of the serving generation, which has all of it"
    return f"what generation {serving} was made from is not all there any more: {problems[0]}{more}; {ways}"


# ---------------------------------------------------------------------------------------------------- filling


async def fill(
    rebuilding: Rebuilding, stalled_after_s: float, on_behind: Callable[[str, int], None] = lambda _role, _behind: None
) -> None:
    """Run the roles of the new generation here until they have caught up, exports beside their places included.

    Raises Stalled, SettingsError, BrokerFailed, or what stopped a role.
    """
    settings = rebuilding.settings
    async with AsyncExitStack() as stack:
        scan = await stack.enter_async_context(open_scan(settings))
        groups = await stack.enter_async_context(open_groups(settings))
        if rebuilding.origin == "facts":
            await _copy_facts(scan, groups, rebuilding)
        metrics, serving = Metrics(), Serving(rebuilding.serving)
        exports = make_exports(settings, metrics, serving)
        roles = [*await core_roles(settings, metrics), *exports]
        consumers = [
            BatchConsumer(role, settings.limits, metrics, reading_rules(settings, role.name)) for role in roles
        ]
        stack.push_async_callback(_stop, consumers)
        for consumer in consumers:
            await consumer.start()
        way = passages(settings, [export.name.removeprefix("export:") for export in exports])
        running = {consumer.role.name for consumer in consumers}
        waiting = wait_through(scan, groups, [step for step in way if step.role in running], stalled_after_s, on_behind)
        await _unless_crashed(asyncio.ensure_future(waiting), consumers)


async def _unless_crashed(waiting: asyncio.Future[None], consumers: Sequence[BatchConsumer]) -> None:
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=_CRASH_POLL_S)
            for consumer in consumers:
                if consumer.crash_reason is not None:
                    raise consumer.crash_reason
                if consumer.stopped_partitions():
                    raise Stalled(
                        "a partition of a source stands still: too many of its messages become dead letters; see "
                        "`dead-letters stats`, or raise the limits"
                    )
        waiting.result()
    finally:
        waiting.cancel()


async def _stop(consumers: Sequence[BatchConsumer]) -> None:
    await asyncio.gather(*(consumer.drain() for consumer in consumers))
    await asyncio.gather(*(consumer.stop() for consumer in consumers))


async def _copy_facts(scan: TopicScan, groups: GroupsClient, rebuilding: Rebuilding) -> None:
    """Copy the source facts of the serving generation, unless that was done; derived ones are derived anew."""
    settings, old = rebuilding.settings, _of(rebuilding.settings, rebuilding.serving)
    sources = await scan.partitions(settings.source_topics.values())
    if await groups.committed(project_group(settings), sources):
        return
    # First where the old one stood, then its facts: whatever it commits meanwhile is read from the sources again.
    stood = await groups.committed(project_group(old), sources)
    if not stood:
        raise BrokerFailed(f"generation {old.generation} has committed nothing yet: there are no facts to build from")
    spans = await scan.spans(await scan.partitions([own_topics(old).facts]))
    async with open_producer(settings) as producer:
        writer = BatchWriter(producer)
        async for _place, messages in scan.read(spans):
            _collect(writer, messages, settings)
            with broker_errors(settings):
                await writer.flush()
    await groups.move(project_group(settings), stood, _PURPOSE)


def _collect(writer: BatchWriter, messages: Sequence[Message], settings: Settings) -> None:
    topic = own_topics(settings).facts
    for message in messages:
        if message.key is None or message.value is None:
            continue
        try:
            fact = decode_fact(message.key, message.value)
            if not is_from_source(fact):
                continue
        except (ValueError, TypeError) as error:
            raise BrokerFailed("the facts log holds a fact of a kind that is not known; build from sources") from error
        writer.append(topic, partition_of(fact.aggregate, settings.partitions), message.key, message.value)
