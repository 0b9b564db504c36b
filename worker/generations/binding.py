"""Which generation this program may work on: bound to its projection, its topics and their partitions, or refused.

A mismatch stops the worker before it reads anything, because what it would write would be a mixture of two worlds; the
refusal names the way out.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from projections.version import PROJECTION_VERSION
from worker.generations.log import (
    Binding,
    BoundTopic,
    Generations,
    Origin,
    append_event,
    make_history,
    read_history,
    started,
)
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.topic_ids import TopicIdentity, topic_identities
from worker.topic_scan import TopicScan, broker_errors, open_scan
from worker.topics import StartError, own_topics

OWN: Final = ("facts", "records")


def topics_of(settings: Settings) -> dict[str, str]:
    """Name what a generation is bound to: the topic of each source, and its own facts and records."""
    own = own_topics(settings)
    return {**settings.source_topics, "facts": own.facts, "records": own.records}


async def binding_now(scan: TopicScan, settings: Settings, origin: Origin = "sources") -> Binding:
    """Give what a generation that is started now would be bound to; topics that do not exist are left out."""
    names = topics_of(settings)
    with broker_errors(settings):
        identities = await topic_identities(scan.admin, names.values())
    bound = {name: BoundTopic.of(topic, identities[topic]) for name, topic in names.items() if topic in identities}
    sources = [name for name in bound if name not in OWN]
    spans = await scan.spans(
        TopicPartition(bound[name].topic, number) for name in sources for number in range(bound[name].partitions)
    )
    began = {
        name: tuple(spans[TopicPartition(bound[name].topic, number)].start for number in range(bound[name].partitions))
        for name in sources
    }
    return Binding(PROJECTION_VERSION, bound, began, origin)


def mismatches(bound: Binding, now: Binding, names: Collection[str]) -> Iterator[str]:
    """Say, of the topics with these names, what is not as it was when the generation was started."""
    for name in names:
        then, is_now = bound.topics.get(name), now.topics.get(name)
        if then is None or then == is_now:
            continue
        if is_now is None:
            yield f"topic {then.topic} does not exist any more"
        elif is_now.topic != then.topic:
            yield f"{name} is read from topic {is_now.topic} and was read from {then.topic}"
        elif None not in (then.id, is_now.id) and then.id != is_now.id:
            yield f"topic {then.topic} was deleted and made anew"
        elif then.partitions != is_now.partitions:
            yield f"topic {then.topic} has {is_now.partitions} partitions and had {then.partitions}"


def refuse_dropped(generations: Generations, generation: int) -> None:
    """Refuse a generation that is gone, or that nobody has started. Raises StartError."""
    serving = generations.serving
    if generation in generations.dropped:
        raise StartError(
            f"generation {generation} was dropped; generation {serving} serves: set generation = {serving}"
        )
    if generations.bindings and generation not in generations.bindings:
        message = (
            f"generation {generation} was never started, and generation {serving} serves: set generation = {serving}, "
            f"or start generation {generations.next} beside it with `trace-projector rebuild`"
        )
        raise StartError(message)


def refuse_other_version(generations: Generations, generation: int) -> None:
    """Refuse a generation of another projection. Raises StartError."""
    bound = generations.bindings.get(generation)
    if bound is None or bound.projection_version == PROJECTION_VERSION:
        return
    newer = [one for one in generations.living if generations.bindings[one].projection_version == PROJECTION_VERSION]
    way_out = (
        f"set generation = {newer[-1]}, which is of version {PROJECTION_VERSION}"
        if newer
        else f"`trace-projector rebuild` makes generation {generations.next} beside it while workers of the release "
        "that it is of go on; or run that release"
    )
    message = (
        f"generation {generation} is of projection version {bound.projection_version}, and this program's is "
        f"{PROJECTION_VERSION}: {way_out}"
    )
    raise StartError(message)


def refuse_other_topics(bound: Binding, now: Binding, generation: int, names: Collection[str]) -> None:
    """Refuse topics that are not those that the generation was started with. Raises StartError."""
    problems = list(mismatches(bound, now, names))
    if not problems:
        return
    is_own = bool(list(mismatches(bound, now, OWN)))
    accept = "" if is_own else ", or take the topics as they are now with `trace-projector generations accept`"
    message = (
        f"generation {generation} is not what it was started as: {'; '.join(problems)}: start another one with "
        f"`trace-projector rebuild`{accept}"
    )
    raise StartError(message)


def refuse_topics_made_anew(
    bound: Binding, identities: Mapping[str, TopicIdentity], generation: int, names: Collection[str]
) -> None:
    """Refuse topics that were deleted and made anew while they were read: their offsets begin once more.

    One that is away says nothing: it may be back in a moment. Raises StartError.
    """

    def as_it_is(then: BoundTopic) -> BoundTopic:
        identity = identities.get(then.topic)
        return then if identity is None else then._replace(id=identity.id)

    now = bound._replace(topics={name: as_it_is(then) for name, then in bound.topics.items()})
    refuse_other_topics(bound, now, generation, names)


def names_of(bound: Binding, roles: Collection[str]) -> Collection[str]:
    """Give the names of the topics that matter to these roles: only the one that reads sources looks at them."""
    return bound.topics.keys() if "project" in roles else OWN


def refuse_other_unbound(bound: Binding, unbound: str, generation: int) -> None:
    """Refuse another answer to what becomes of unbound conversations than the generation began with.

    A fold takes what its facts come to for what it has said before: those of before would keep the one answer, those
    of now would get the other. Raises StartError.
    """
    if bound.unbound in (None, unbound):
        return
    raise StartError(
        f'generation {generation} was started with unbound = "{bound.unbound}", and the settings say "{unbound}": set '
        "it back, or make another generation with `trace-projector rebuild`"
    )


async def check_generation(settings: Settings) -> Generations:
    """Refuse a generation that is gone or of another projection, before any topic is made for it.

    Raises StartError or BrokerFailed.
    """
    async with open_scan(settings) as scan:
        generations = await read_history(scan, settings)
    refuse_dropped(generations, settings.generation)
    refuse_other_version(generations, settings.generation)
    return generations


async def bind_generation(settings: Settings, roles: Collection[str]) -> Generations:
    """Bind the very first generation of an application, or make sure that what binds is as it was.

    The topics exist already. Sources are looked at only for the role that reads them. Raises StartError or
    BrokerFailed.
    """
    generation = settings.generation
    async with open_scan(settings) as scan:
        await make_history(scan.admin, settings)
        generations = await read_history(scan, settings)
        now = await binding_now(scan, settings)
        if "fold" in roles:
            now = now._replace(unbound=settings.unbound)
        if generation not in generations.bindings:
            # Workers that start together all say so, and what the first one said binds.
            refuse_dropped(generations, generation)
            await append_event(settings, started(generation, now))
            generations = await read_history(scan, settings)
        bound = generations.bindings[generation]
        if "project" in roles and not now.topics.keys() <= bound.topics.keys():
            # A worker that reads no sources was the first; those that it did not see are bound now.
            fresh = {name: topic for name, topic in now.topics.items() if name not in bound.topics}
            await append_event(settings, started(generation, now._replace(topics=fresh), event="accepted"))
            generations = await read_history(scan, settings)
            bound = generations.bindings[generation]
        if "fold" in roles and bound.unbound is None:
            # Nobody who was here before folds, or it was an earlier release.
            await append_event(settings, started(generation, now._replace(topics={}, began={}), event="accepted"))
            generations = await read_history(scan, settings)
            bound = generations.bindings[generation]
    refuse_dropped(generations, generation)
    refuse_other_version(generations, generation)
    if "fold" in roles:
        refuse_other_unbound(bound, settings.unbound, generation)
    refuse_other_topics(bound, now, generation, names_of(bound, roles))
    return generations


async def accept_topics(settings: Settings) -> list[str]:
    """Bind the settings' generation to its source topics as they are now, and give what is taken so.

    Raises StartError when that would hide the loss of its own topics, or BrokerFailed.
    """
    async with open_scan(settings) as scan:
        generations = await read_history(scan, settings)
        refuse_dropped(generations, settings.generation)
        bound = generations.bindings.get(settings.generation)
        if bound is None:
            raise StartError("no generation was ever started; nothing is to be accepted")
        now = await binding_now(scan, settings)
        refuse_other_topics(bound, now, settings.generation, OWN)
        taken = list(mismatches(bound, now, bound.topics))
        if taken:
            await append_event(settings, started(settings.generation, now, event="accepted"))
    return taken


async def facts_logs(scan: TopicScan, settings: Settings) -> list[BoundTopic]:
    """Give the facts logs of all living generations of this projection, for what is to reach every one of them.

    Raises StartError when the settings' generation is none of them, or BrokerFailed.
    """
    generations = await read_history(scan, settings)
    refuse_dropped(generations, settings.generation)
    refuse_other_version(generations, settings.generation)
    bindings = [generations.bindings[one] for one in generations.living]
    if not bindings:
        raise StartError("no generation was ever started: start a worker, which begins the first one")
    return [bound.topics["facts"] for bound in bindings if bound.projection_version == PROJECTION_VERSION]


async def list_generations(settings: Settings) -> Generations:
    """Connect and read the history. Raises BrokerFailed."""
    async with open_scan(settings) as scan:
        return await read_history(scan, settings)


def generation_rows(generations: Generations) -> list[Mapping[str, object]]:
    """Describe the generations for a person: number, version, when it was started and from what, and what it does."""
    rows: list[Mapping[str, object]] = []
    for generation, binding in sorted(generations.bindings.items()):
        is_serving = generation == generations.serving
        state = "dropped" if generation in generations.dropped else "serves" if is_serving else "stands by"
        rows.append(
            {
                "generation": generation,
                "state": state,
                "projectionVersion": binding.projection_version,
                "startedAt": generations.started_ms[generation],
                "origin": binding.origin,
            }
        )
    return rows
