"""Waiting until what is in the topics now has gone all the way: projected, folded and exported.

Meant for commands that did something and want to know when it shows; the work itself is done by workers.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from worker.groups import GroupsClient
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.topic_scan import TopicScan
from worker.topics import export_group, fold_group, own_topics, project_group

# A fact may make its aggregate tell another one, and that one a third (binding, usage, run): each is one round more.
_FOLD_ROUNDS = 4


class Stalled(Exception):  # noqa: N818  (a state of the world, not a fault of the program)
    """A group made no progress for as long as was waited; the text names it and what may be the matter."""


class Passage(NamedTuple):
    """What has to be passed: a group, and the topics whose present ends it has to reach."""

    role: str
    group: str
    topics: tuple[str, ...]


def passages(settings: Settings, exports: Iterable[str]) -> list[Passage]:
    """Give all that a message of the sources passes on its way into the sinks of some exports, in order."""
    own = own_topics(settings)
    return [
        Passage("project", project_group(settings), tuple(settings.source_topics.values())),
        *[Passage("fold", fold_group(settings), (own.facts,))] * _FOLD_ROUNDS,
        *[Passage(f"export:{name}", export_group(settings, name), (own.records,)) for name in exports],
    ]


async def wait_through(
    scan: TopicScan,
    groups: GroupsClient,
    passages: Iterable[Passage],
    timeout_s: float,
    on_behind: Callable[[str, int], None] = lambda _role, _behind: None,
) -> None:
    """Wait until each group has passed the ends that its topics have when its turn comes. Raises Stalled."""
    for role, group, topics in passages:
        spans = await scan.spans(await scan.partitions(topics))
        targets: dict[TopicPartition, int] = {place: span.end for place, span in spans.items() if span.length}
        if not await groups.wait_until(group, targets, timeout_s, lambda behind, role=role: on_behind(role, behind)):  # type: ignore[misc]
            members = await groups.member_count(group)
            hint = "has no member: start a worker with this role" if not members else "makes no progress: see its log"
            raise Stalled(f"group {group} ({role}) {hint}")
