"""What this worker does, for its page: its roles with lag and throughput, and what became of the messages it read.

All of it is out of the metrics, so the page and what Prometheus scrapes never disagree. It names topics and reasons,
and no record.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from worker.metrics import PREFIX
from worker.web.health import Readiness

SAMPLES_MAX: Final = 7
"""With one every ten seconds, the last minute."""

_DONE_BY: Final = {
    "project": ("consumed_messages", "messages"),
    "fold": ("folded_facts", "facts"),
    "export": ("written_upserts", "records"),
}
"""What a role's throughput is counted by, and what that counts."""

Labels = Mapping[str, str]
Rows = list[tuple[Labels, float]]
Numbers = Mapping[str, Rows]


class RoleRow(NamedTuple):
    """One role: a word for its state, its partitions, how far it is behind, and how much it does a second.

    ``rate`` is None until there are two samples to tell it by.
    """

    name: str
    state: str
    assigned: int
    ready: int
    paused: int
    stopped: int
    standing: int
    lag_messages: float
    rate: float | None
    unit: str


class TopicRow(NamedTuple):
    """What became of the messages of one source topic that this worker has read since it started."""

    topic: str
    consumed: float
    projected: float
    ignored: float
    dead: float
    in_flight: float


class DeadRow(NamedTuple):
    """Dead letters of one place and one reason."""

    place: str
    reason: str
    letters: float


class WorkerView(NamedTuple):
    """Everything on the page of a worker."""

    roles: tuple[RoleRow, ...]
    topics: tuple[TopicRow, ...]
    dead: tuple[DeadRow, ...]


class Rates:
    """What every role had done by some moments of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, float]]] = deque(maxlen=SAMPLES_MAX)

    def sample(self, now_s: float, roles: Iterable[str], families: Iterable[Metric]) -> None:
        """Take what every role has done by now, in seconds of a clock that only goes forward."""
        numbers = _numbers(families)
        self._samples.append((now_s, {role: _done(role, numbers) for role in roles}))

    def per_second(self, role: str) -> float | None:
        """Give how much a role did a second, over the samples there are."""
        known = [(at_s, done[role]) for at_s, done in self._samples if role in done]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def view_worker(readiness: Mapping[str, Readiness], families: Iterable[Metric], rates: Rates) -> WorkerView:
    """Lay out the state of a worker."""
    numbers = _numbers(families)
    roles = tuple(_role(name, ready, numbers, rates) for name, ready in readiness.items())
    topics = sorted({labels["topic"] for labels, _ in _rows(numbers, "consumed_messages")})
    return WorkerView(roles, tuple(_topic(topic, numbers) for topic in topics), tuple(_dead(numbers)))


def _numbers(families: Iterable[Metric]) -> Numbers:
    found: dict[str, Rows] = {}
    for family in families:
        name = family.name.removeprefix(PREFIX)
        # Of a counter there is one sample per row; one more would be the time it was made.
        found[name] = [
            (sample.labels, sample.value) for sample in family.samples if not sample.name.endswith("_created")
        ]
    return found


def _rows(numbers: Numbers, name: str) -> Rows:
    return numbers.get(name, [])


def _sum(numbers: Numbers, name: str, **wanted: str) -> float:
    return sum(value for labels, value in _rows(numbers, name) if wanted.items() <= labels.items())


def _done(role: str, numbers: Numbers) -> float:
    kind, _, export = role.partition(":")
    name, _ = _DONE_BY[kind]
    return _sum(numbers, name, **({"export": export} if export else {}))


def _role(name: str, ready: Readiness, numbers: Numbers, rates: Rates) -> RoleRow:
    return RoleRow(
        name,
        _state(ready),
        ready.assigned_partitions,
        ready.ready_partitions,
        ready.paused_partitions,
        ready.stopped_partitions,
        ready.standing_partitions,
        _sum(numbers, "lag_messages", role=name),
        rates.per_second(name),
        _DONE_BY[name.partition(":")[0]][1],
    )


def _state(ready: Readiness) -> str:
    if ready.stopped_partitions or ready.standing_partitions:
        return "stopped"
    if ready.paused_partitions:
        return "retrying"
    if not ready.is_ready:
        return "starting"
    return "working" if ready.assigned_partitions else "standing by"


def _topic(topic: str, numbers: Numbers) -> TopicRow:
    names = (
        "consumed_messages",
        "projected_messages",
        "ignored_messages",
        "dead_lettered_messages",
        "in_flight_messages",
    )
    return TopicRow(topic, *(_sum(numbers, name, topic=topic) for name in names))


def _dead(numbers: Numbers) -> list[DeadRow]:
    counts: dict[tuple[str, str], float] = {}
    for labels, count in _rows(numbers, "dead_lettered_messages"):
        counts[labels["topic"], labels["reason"]] = counts.get((labels["topic"], labels["reason"]), 0) + count
    for labels, count in _rows(numbers, "dead_lettered_facts"):
        counts["facts", labels["reason"]] = counts.get(("facts", labels["reason"]), 0) + count
    rows = [DeadRow(place, reason, count) for (place, reason), count in counts.items() if count]
    return sorted(rows, key=lambda row: (-row.letters, row.place, row.reason))
