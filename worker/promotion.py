"""Promoting a generation, so that its records are those that readers see, and dropping one that nobody needs.

Order of a promotion: 1. the generation has caught up, exports beside their places included; 2. the history says that it
serves, and whoever writes steps aside; 3. each export that can be switched is, in one step. Interrupted after 2, the
same command goes on. Order of a drop: 1. the history says so, and no worker takes it up again; 2. its groups, its
topics and what it left beside sinks are removed.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from aiokafka.errors import KafkaError, for_code

from worker.export_policy import policy_for
from worker.generations.log import append_event, read_history
from worker.groups import open_groups
from worker.progress import passages, wait_through
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import SinkBusy, SinkRefused
from worker.sink_place import place_word
from worker.sink_switch import beside, can_be_switched, discard, policy_of, switch
from worker.state_rocks import discard_local_state
from worker.topic_scan import BrokerFailed, TopicScan, broker_errors, open_scan
from worker.topics import export_group, fold_group, own_topics, project_group

# A worker hears of a promotion within seconds and then drains what it holds.
_STEP_ASIDE_S = 60.0
_STEP_ASIDE_POLL_S = 0.5


class PromotionRefused(Exception):  # noqa: N818  (a wrong wish, not a fault of the program)
    """The generation cannot be promoted or dropped; the text says why and what to do."""


class Switched(NamedTuple):
    """What a promotion did with one export: ``is_switched``, or why its readers see records change one by one."""

    export: ExportSettings
    is_switched: bool


def _of(settings: Settings, generation: int) -> Settings:
    return settings.model_copy(update={"generation": generation})


async def promote(
    settings: Settings,
    generation: int | None,
    stalled_after_s: float,
    on_behind: Callable[[str, int], None] = lambda _role, _behind: None,
) -> tuple[int, list[Switched]]:
    """Make a generation (by default the newest) the one that serves; gives its number and what was switched.

    Raises PromotionRefused, Stalled, SinkRefused, SettingsError or BrokerFailed.
    """
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        generations = await read_history(scan, settings)
        if not generations.living:
            raise PromotionRefused("no generation was ever started")
        chosen = generations.living[-1] if generation is None else generation
        if chosen not in generations.living:
            raise PromotionRefused(f"there is no generation {chosen}; `trace-projector generations` lists them")
        target = _of(settings, chosen)
        exports = [export for export in settings.exports if can_be_switched(export.sink)]
        # Before anything is decided: a missing key would leave the promotion half done.
        digests = {export.name: policy_for(target, export).digest for export in exports}
        previous = generations.replaced if generations.serving == chosen else generations.serving
        if generations.serving != chosen:
            way = passages(target, [export.name for export in exports])
            await wait_through(scan, groups, way, stalled_after_s, on_behind)
            for export in exports:
                await _check_filled(export, chosen, digests[export.name])
            await append_event(settings, {"event": "promoted", "generation": chosen})
    for export in exports:
        await _switch(export, chosen, digests[export.name], previous)
    return chosen, [Switched(export, can_be_switched(export.sink)) for export in settings.exports]


async def _check_filled(export: ExportSettings, generation: int, digest: str) -> None:
    """Make sure that an export's rows are there to be put in place. Raises PromotionRefused."""
    filled = beside(export.sink, place_word(generation))
    deadline = time.monotonic() + _STEP_ASIDE_S
    while True:
        try:
            if digest in (await asyncio.to_thread(policy_of, filled), await asyncio.to_thread(policy_of, export.sink)):
                return
        except SinkBusy as error:
            if time.monotonic() >= deadline:
                raise PromotionRefused(f"export {export.name}: {error}, and does not let go") from error
            await asyncio.sleep(_STEP_ASIDE_POLL_S)
        else:
            raise PromotionRefused(
                f"export {export.name}: nothing of generation {generation} under its present policy stands beside its "
                "file: promote where that file is, or let a worker of the generation fill it"
            )


async def _switch(export: ExportSettings, generation: int, digest: str, previous: int | None) -> None:
    """Switch one export, waiting for writers to step aside."""
    keep = None if previous is None else place_word(previous)
    deadline = time.monotonic() + _STEP_ASIDE_S
    while True:
        try:
            await asyncio.to_thread(switch, export.sink, place_word(generation), digest, keep)
        except SinkBusy as error:
            if time.monotonic() >= deadline:
                raise PromotionRefused(
                    f"export {export.name}: {error}, and does not let go; generation {generation} serves all the same: "
                    "stop that writer and promote once more"
                ) from error
            await asyncio.sleep(_STEP_ASIDE_POLL_S)
        except SinkRefused as error:
            raise PromotionRefused(f"export {export.name}: {error}") from error
        else:
            return


# ------------------------------------------------------------------------------------------------------- dropping


class Dropped(NamedTuple):
    """What a drop removes, or would remove."""

    topics: list[str]
    groups: list[str]
    beside: list[ExportSettings]


async def drop(settings: Settings, generation: int, *, dry_run: bool) -> Dropped:
    """Remove a generation that does not serve: its topics, its groups, its rows beside sinks, its state here.

    Raises PromotionRefused, GroupInUse, SinkRefused or BrokerFailed.
    """
    old = _of(settings, generation)
    names = [project_group(old), fold_group(old), *(export_group(old, export.name) for export in settings.exports)]
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        generations = await read_history(scan, settings)
        if generation == generations.serving:
            raise PromotionRefused(f"generation {generation} serves: promote another one first")
        if generation not in generations.bindings:
            raise PromotionRefused(f"there is no generation {generation}; `trace-projector generations` lists them")
        for name in names:
            await groups.require_empty(name, f"dropping generation {generation}")
        own = own_topics(old)
        topics = sorted(await scan.partition_counts([own.facts, own.records]))
        switchable = [export for export in settings.exports if can_be_switched(export.sink)]
        if dry_run:
            return Dropped(topics, names, switchable)
        if generation not in generations.dropped:
            await append_event(settings, {"event": "dropped", "generation": generation})
        gone = [name for name in names if await groups.delete(name)]
        await _delete_topics(scan, settings, topics)
    await asyncio.to_thread(discard_local_state, old)
    removed = [export for export in switchable if discard(export.sink, place_word(generation))]
    return Dropped(topics, gone, removed)


async def _delete_topics(scan: TopicScan, settings: Settings, topics: list[str]) -> None:
    if not topics:
        return
    with broker_errors(settings):
        response = await scan.admin.delete_topics(topics)
    for topic, code in response.topic_error_codes:
        error: type[KafkaError] = for_code(code)
        if code and error.__name__ != "UnknownTopicOrPartitionError":
            raise BrokerFailed(f"topic {topic} cannot be deleted: {error.__name__}")
