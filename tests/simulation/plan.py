"""What a seed decides before anything runs: the world, its messages in topics, the settings, and the faults to come."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.simulation.network import Weather
from tests.simulation.site import KEY_VARIABLE, SCHEME
from tests.worlds.cluster import place
from tests.worlds.world import SourceMessage, World
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.settings_sections import ExportSettings, KafkaSettings, LimitSettings

APP_ID = "sim"
# Faults happen within this time; messages are published within the first part of it.
STORM_S = 45.0
PUBLISHING_S = 30.0

POISON = (b'{"kind":"run"', b"\xff\xfe", b"", b'["poison"]')
"""Values that no source topic's message can have: broken JSON, no UTF-8, nothing, and JSON of the wrong shape."""


@dataclass(frozen=True)
class Published:
    """One message of a source topic: where it stands, and when it gets there."""

    at_s: float
    source: str
    place: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Plan:
    """Everything that a seed decides; what happens then follows from it, and from the same seed's further numbers."""

    seed: int
    settings: Settings
    source_counts: dict[str, int]
    machine_count: int
    has_disks: bool
    # By export: whether the destination takes one writer only.
    has_one_writer: dict[str, bool]
    world: list[SourceMessage]
    messages: list[Published]
    weather: Weather
    fault_count: int
    loses_messages: bool
    replays_all: bool

    @property
    def is_fenced(self) -> bool:
        """Whether the fold writes in transactions."""
        return self.settings.fencing != "off"


def make_plan(seed: int) -> Plan:
    """Decide everything for a seed."""
    random = Random(f"plan {seed}")
    exports = _exports(random)
    # A generator of its own, so that the rest of a seed's world does not depend on it.
    state = Random(f"state {seed}")
    settings = Settings(
        app_id=APP_ID,
        partitions=random.randint(1, 4),
        exports=exports,
        # A broker without transactions is for trying things out: there workers are stopped, and not killed.
        fencing="off" if random.random() < 0.06 else "on",
        state_dir=Path("disk") if state.random() < 0.7 else None,
        limits=LimitSettings(
            state_facts_max=state.choice([1, 30, 500_000]),
            batch_messages_max=random.choice([3, 10, 40, 500]),
            batch_bytes_max=random.choice([4_000, 64_000, 16_000_000]),
            batch_wait_s=0.25,
            sink_retry_delay_max_s=2.0,
            shutdown_drain_s=random.choice([2.0, 6.0]),
        ),
        kafka=KafkaSettings(session_timeout_s=6.0, heartbeat_interval_s=random.choice([0.7, 2.0])),
    )
    counts = {topic: random.randint(1, 3) for topic in settings.source_topics.values()}
    # Worlds of one run are small enough to be many, and of two rich enough to have relatives.
    world = World(seed, runs=random.choice([1, 2, 2])).messages
    return Plan(
        seed=seed,
        settings=settings,
        source_counts=counts,
        machine_count=random.choice([1, 2, 2, 3]),
        has_disks=random.random() < 0.5,
        has_one_writer={export.name: random.random() < 0.5 for export in exports},
        world=world,
        messages=_publishing(world, settings, counts, random),
        weather=_weather(random),
        fault_count=random.choice([0, 2, 4, 6, 9]),
        loses_messages=random.random() < 0.08,
        replays_all=random.random() < 0.15,
    )


def _exports(random: Random) -> tuple[ExportSettings, ...]:
    public = ExportSettings(name="public", sink=f"{SCHEME}:public", key_env=KEY_VARIABLE)
    plain = ExportSettings(name="plain", sink=f"{SCHEME}:plain", redact=False)
    return random.choice([(public,), (plain,), (public, plain)])


def _weather(random: Random) -> Weather:
    if random.random() < 0.25:
        return Weather()
    return Weather(
        latency_s=random.choice([0.001, 0.005, 0.03]),
        spike_chance=random.choice([0.0, 0.01, 0.05]),
        spike_s=random.choice([0.3, 2.0]),
        loss_chance=random.choice([0.0, 0.01, 0.03]),
        loss_noticed_s=random.choice([0.5, 3.0]),
        late_marker_chance=random.choice([0.0, 0.1, 0.5]),
        late_marker_s=random.choice([0.5, 4.0, 30.0]),
        refusal_chance=random.choice([0.0, 0.01, 0.05]),
        poll_error_chance=random.choice([0.0, 0.0, 0.01, 0.1]),
    )


def _publishing(
    world: list[SourceMessage], settings: Settings, counts: dict[str, int], random: Random
) -> list[Published]:
    """Spread messages over partitions and time; each topic has its own pace, so topics are read in any order."""
    sources = settings.source_topics
    messages = _with_duplicates_and_poison(world, list(sources), random)
    paces = {source: random.choice([0.1, 0.5, 1.0]) for source in sources}
    starts = {source: random.uniform(0, 1 - pace) for source, pace in paces.items()}
    left = Counter(message.topic for message in messages)
    totals = Counter(left)
    offsets: Counter[TopicPartition] = Counter()
    published = []
    for source, key, value, number, _offset in place(messages, random, 1_000_000):
        topic = sources[source]
        count = counts[topic]
        # Keyed messages stay with their key, the others go anywhere.
        partition = TopicPartition(topic, number % count if key is not None else random.randrange(count))
        share = 1 - left[source] / totals[source]
        left[source] -= 1
        at_s = PUBLISHING_S * (starts[source] + paces[source] * share)
        published.append(Published(at_s, source, partition, offsets[partition], key, value))
        offsets[partition] += 1
    return sorted(published, key=lambda message: message.at_s)


def _with_duplicates_and_poison(world: list[SourceMessage], sources: list[str], random: Random) -> list[SourceMessage]:
    messages = list(world)
    # A key with a bare tombstone is read in order, so there a copy would be another message and no duplicate.
    ordered = {(message.topic, message.key) for message in world if message.value is None}
    for message in random.sample(world, random.randrange(len(world) // 4 + 1)):
        if (message.topic, message.key) not in ordered:
            messages.insert(random.randrange(len(messages) + 1), message)
    for _ in range(random.choice([0, 0, 1, 5])):
        poison = SourceMessage(random.choice(sources), random.choice([None, b"poison"]), random.choice(POISON))
        messages.insert(random.randrange(len(messages) + 1), poison)
    return messages
