"""Checks of what moves: groups and their lag, the generation they work on, and the clocks behind messages."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from worker.doctor.findings import Finding, error, kafka_tool, refusal, warning
from worker.generations.binding import OWN, binding_now, refuse_dropped, refuse_other_topics, refuse_other_version
from worker.generations.log import Generations, read_history
from worker.groups import GroupsClient
from worker.kafka import TopicPartition
from worker.progress import Passage, passages
from worker.settings import Settings
from worker.topic_scan import Span, TopicScan
from worker.topics import StartError

CLOCK_AHEAD_S_MAX: Final = 60.0


# -------------------------------------------------------------------------------------------------------------- groups


class _Place(NamedTuple):
    """How far a group is with one partition."""

    committed: int | None
    span: Span

    @property
    def lag(self) -> int:
        """Messages, or offsets at least, that are still to do."""
        start = self.span.start if self.committed is None else max(self.committed, self.span.start)
        return max(0, self.span.end - start)


async def check_groups(
    scan: TopicScan, groups: GroupsClient, settings: Settings, watch_s: float
) -> tuple[list[Finding], dict[str, int]]:
    """Check every role's group, watching those that lag for a while; gives each one's lag, too. Raises BrokerFailed."""
    found: list[Finding] = []
    lags: dict[str, int] = {}
    watched: list[tuple[Passage, dict[TopicPartition, _Place]]] = []
    for passage in dict.fromkeys(passages(settings, [export.name for export in settings.exports])):
        places = await _places(scan, groups, passage)
        found += _check_lost(settings, passage, places)
        lag = lags[passage.role] = sum(place.lag for place in places.values())
        if lag and await groups.member_count(passage.group):
            watched.append((passage, places))
        elif lag:
            found.append(_without_member(passage, lag))
    if watched:
        await asyncio.sleep(watch_s)
    for passage, before in watched:
        found += _check_moved(settings, passage, before, await _places(scan, groups, passage), watch_s)
    return found, lags


async def _places(scan: TopicScan, groups: GroupsClient, passage: Passage) -> dict[TopicPartition, _Place]:
    partitions = await scan.partitions(passage.topics)
    committed = await groups.committed(passage.group, partitions)
    spans = await scan.spans(partitions)
    return {place: _Place(committed.get(place), spans[place]) for place in partitions}


def _check_lost(settings: Settings, passage: Passage, places: Mapping[TopicPartition, _Place]) -> Iterator[Finding]:
    for (topic, partition), place in places.items():
        if place.committed is not None and place.committed < place.span.start:
            problem = (
                f"{topic}/{partition}: messages {place.committed} to {place.span.start - 1} were deleted before they "
                "were read"
            )
            keep = kafka_tool(settings, "kafka-configs.sh", "--describe", "--entity-type", "topics")
            fix = f'set kafka.on_missing_offsets = "skip" to go on without them; see how long it keeps messages: {keep}'
            yield error("messages_lost", f"group {passage.group}", problem, f"{fix} --entity-name {topic}")


def _without_member(passage: Passage, lag: int) -> Finding:
    problem = f"{lag:,} messages are to be read, and no worker is in the group"
    return warning(
        "group_without_member", f"group {passage.group}", problem, f"trace-projector worker --role {passage.role}"
    )


def _check_moved(
    settings: Settings,
    passage: Passage,
    before: Mapping[TopicPartition, _Place],
    after: Mapping[TopicPartition, _Place],
    watch_s: float,
) -> Iterator[Finding]:
    stuck = [
        f"{place.topic}/{place.partition}"
        for place, then in before.items()
        if then.lag and place in after and after[place].lag and after[place].committed == then.committed
    ]
    if stuck:
        named = ", ".join(stuck[:5]) + (" and more" if len(stuck) > 5 else "")
        problem = f"it has members, and its committed offset did not move for {watch_s:g} s: {named}"
        pages = f"http://{settings.web_host}:{settings.web_port}/readyz"
        fix = f"see why in the workers' logs and at {pages} of each; `trace-projector status` names stopped partitions"
        yield warning("group_stuck", f"group {passage.group}", problem, fix)


# ---------------------------------------------------------------------------------------------------------- generation


async def check_generations(scan: TopicScan, settings: Settings) -> tuple[list[Finding], Generations]:
    """Check that this program may work on the settings' generation and its topics. Raises BrokerFailed."""
    generations = await read_history(scan, settings)
    number = settings.generation
    about = f"generation {number}"
    if not generations.bindings:
        return [], generations
    try:
        refuse_dropped(generations, number)
        refuse_other_version(generations, number)
        now = await binding_now(scan, settings)
        bound = generations.bindings[number]
        refuse_other_topics(bound, now, number, bound.topics if "project" in settings.roles else OWN)
    except StartError as refused:
        return [refusal("generation", about, str(refused), "trace-projector generations")], generations
    found = []
    if generations.serving != number:
        fix = f"trace-projector promote, or set generation = {generations.serving}"
        found.append(
            warning(
                "generation_stands_by", about, f"generation {generations.serving} serves readers, not this one", fix
            )
        )
    for source, began in bound.began.items():
        starts = now.began.get(source, began)
        lost = [index for index, (then, start) in enumerate(zip(began, starts, strict=False)) if start > then]
        if lost:
            topic = bound.topics[source].topic
            partitions = ", ".join(map(str, lost))
            problem = f"it no longer reaches back to where generation {number} began (partitions {partitions})"
            fix = "the next rebuild is `trace-projector rebuild --from-facts`, or `--accept-loss`; keep messages longer"
            found.append(warning("source_forgot", f"topic {topic}", problem, fix))
    return found, generations


# -------------------------------------------------------------------------------------------------------------- clocks


async def check_clocks(scan: TopicScan, topics: Sequence[str]) -> list[Finding]:
    """Compare the newest message of each topic with this machine's clock: none can be from later. Raises BrokerFailed.

    A topic with log append times has the brokers' clock in its messages, any other its producers'.
    """
    spans = await scan.spans(await scan.partitions(topics))
    last = {place: Span(span.end - 1, span.end) for place, span in spans.items() if span.length}
    newest: dict[str, int] = {}
    async for place, messages in scan.read(last):
        times = [newest.get(place.topic, 0), *(message.timestamp for message in messages)]
        newest[place.topic] = max(times)
    found = []
    for topic, timestamp_ms in sorted(newest.items()):
        ahead_s = timestamp_ms / 1000 - time.time()
        if ahead_s > CLOCK_AHEAD_S_MAX:
            problem = (
                f"its newest message is from {ahead_s:,.0f} s after this machine's time: one of the clocks is wrong"
            )
            fix = "`chronyc tracking` here, on the brokers and where it is produced; `timedatectl set-ntp true`"
            found.append(warning("clock", f"topic {topic}", problem, fix))
    return found
