"""How far everything is: offsets and lags from the broker, and, from the workers that answer, what became of messages.

The broker knows the groups whether or not a worker runs. A worker's counts begin when it starts; those of several
workers are added up.
"""

import asyncio
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from worker.groups import GroupsClient, open_groups
from worker.kafka import TopicPartition
from worker.metrics import PREFIX
from worker.progress import Passage, passages
from worker.settings import Settings
from worker.topic_scan import TopicScan, open_scan

_ANSWER_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024


@dataclass
class Accounts:
    """What became of the messages of one source partition: consumed = projected + ignored + dead + in flight."""

    consumed: int = 0
    projected: int = 0
    ignored: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dead_lettered: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    in_flight: int = 0
    is_stopped: bool = False

    @property
    def unaccounted(self) -> int:
        """What the equation leaves over; anything but 0 is a fault of the program."""
        known = self.projected + sum(self.ignored.values()) + sum(self.dead_lettered.values()) + self.in_flight
        return self.consumed - known


class PartitionStatus(NamedTuple):
    """How far one role is with one partition; ``committed`` is None before the first commit."""

    role: str
    place: TopicPartition
    beginning: int
    end: int
    committed: int | None
    accounts: Accounts | None

    @property
    def lag(self) -> int:
        """Messages between committed offset and end."""
        return max(0, self.end - (self.beginning if self.committed is None else max(self.committed, self.beginning)))


class GroupStatus(NamedTuple):
    """A role's group, and how many members it has."""

    role: str
    group: str
    members: int


class WorkerAnswer(NamedTuple):
    """What one worker said; ``problem`` says why it said nothing."""

    url: str
    accounts: Mapping[TopicPartition, Accounts]
    problem: str | None = None


class Status(NamedTuple):
    """Everything at about one moment."""

    groups: list[GroupStatus]
    partitions: list[PartitionStatus]
    workers: list[WorkerAnswer]
    missing_topics: list[str]


def read_accounts(exposition: str) -> dict[TopicPartition, Accounts]:
    """Read the accounts of every source partition from a worker's metrics in the Prometheus text format."""
    accounts: dict[TopicPartition, Accounts] = defaultdict(Accounts)
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels = sample.labels
            if "topic" in labels and "role" not in labels:
                place = TopicPartition(labels["topic"], int(labels["partition"]))
                _enter(accounts[place], sample.name, labels, int(sample.value))
    return dict(accounts)


def _enter(accounts: Accounts, name: str, labels: Mapping[str, str], value: int) -> None:
    match name.removeprefix(PREFIX):
        case "consumed_messages_total":
            accounts.consumed += value
        case "projected_messages_total":
            accounts.projected += value
        case "ignored_messages_total":
            accounts.ignored[labels["reason"]] += value
        case "dead_lettered_messages_total":
            accounts.dead_lettered[labels["reason"]] += value
        case "in_flight_messages":
            accounts.in_flight += value
        case "stopped_partitions":
            accounts.is_stopped = accounts.is_stopped or bool(value)


def added_up(answers: Iterable[WorkerAnswer]) -> dict[TopicPartition, Accounts]:
    """Add up what several workers said."""
    total: dict[TopicPartition, Accounts] = defaultdict(Accounts)
    for answer in answers:
        for place, accounts in answer.accounts.items():
            sums = total[place]
            sums.consumed += accounts.consumed
            sums.projected += accounts.projected
            sums.in_flight += accounts.in_flight
            sums.is_stopped = sums.is_stopped or accounts.is_stopped
            for reasons, more in ((sums.ignored, accounts.ignored), (sums.dead_lettered, accounts.dead_lettered)):
                for reason, count in more.items():
                    reasons[reason] += count
    return dict(total)


async def read_status(settings: Settings, worker_urls: Sequence[str]) -> Status:
    """Ask the broker and the workers. Raises BrokerFailed; a worker that does not answer is only noted."""
    answers = await asyncio.gather(*(asyncio.to_thread(_ask_worker, url, settings.web_token) for url in worker_urls))
    accounts = added_up(answers)
    groups: list[GroupStatus] = []
    partitions: list[PartitionStatus] = []
    missing: set[str] = set()
    async with open_scan(settings) as scan, open_groups(settings) as client:
        for passage in dict.fromkeys(passages(settings, [export.name for export in settings.exports])):
            groups.append(GroupStatus(passage.role, passage.group, await client.member_count(passage.group)))
            found = await _passage_status(scan, client, passage, accounts)
            partitions += found
            missing |= set(passage.topics) - {status.place.topic for status in found}
    return Status(groups, partitions, list(answers), sorted(missing))


async def _passage_status(
    scan: TopicScan, client: GroupsClient, passage: Passage, accounts: Mapping[TopicPartition, Accounts]
) -> list[PartitionStatus]:
    places = await scan.partitions(passage.topics)
    # First how far the group is, then where the log ends: the lag may be too high by what came in between.
    committed = await client.committed(passage.group, places)
    spans = await scan.spans(places)
    is_source = passage.role == "project"
    return [
        PartitionStatus(
            role=passage.role,
            place=place,
            beginning=spans[place].start,
            end=max(spans[place].end, committed.get(place, 0)),
            committed=committed.get(place),
            accounts=accounts.get(place) if is_source else None,
        )
        for place in places
    ]


def _ask_worker(url: str, token: SecretStr | None) -> WorkerAnswer:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        return WorkerAnswer(url, {}, "is no http:// or https:// address")
    request = urllib.request.Request(f"{url.rstrip('/')}/metrics")  # noqa: S310  (checked above)
    if token is not None:
        # Not to wherever an answer might send us.
        request.add_unredirected_header("Authorization", f"Bearer {token.get_secret_value()}")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S) as response:  # noqa: S310
            text = response.read(_ANSWER_BYTES_MAX).decode()
        accounts = read_accounts(text)
    except (urllib.error.URLError, OSError) as error:
        reason: Any = getattr(error, "reason", None) or getattr(error, "strerror", None)
        return WorkerAnswer(url, {}, f"does not answer ({getattr(reason, 'strerror', None) or type(error).__name__})")
    except (ValueError, KeyError):
        return WorkerAnswer(url, {}, "answers with something that is no worker's metrics")
    return WorkerAnswer(url, accounts)
