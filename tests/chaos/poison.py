"""Messages that can never be projected, among good ones: how long each of them holds up its partition."""

import asyncio
import itertools
import time
from statistics import median

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.chaos.bounded import changing_runs
from tests.chaos.rig import Rig, wait_until
from tests.chaos.storm import Outcome, Say

BLOCKED_S_MAX = 1.0

_POISON = (b'{"kind":"run"', b"\xff\xfe", b"", b"[]", b"1e999", b'{"id":7}')
_ROUNDS = 8
_LOOK_S = 0.01
_PATIENCE_S = 60.0


def run_poison(rig: Rig, say: Say) -> Outcome:
    """Publish one poisoned message at a time, with good ones before and after it, and watch the committed offset."""
    outcome = Outcome()
    [worker] = rig.add_workers(1)
    worker.wait_ready()
    assert wait_until(lambda: rig.what_lags() is None, _PATIENCE_S)
    waits = asyncio.run(_measure(rig))
    good, poisoned = waits[True], waits[False]
    letters = len(rig.dead_letters())
    if letters < len(poisoned):
        outcome.problems.append(f"{len(poisoned)} poisoned messages gave {letters} dead letters")
    if max(poisoned) > BLOCKED_S_MAX:
        outcome.problems.append(f"a poisoned message held its partition up for {max(poisoned):.2f} s")
    outcome.problems += rig.stop_workers()
    say("from the acknowledgement of a message to the committed offset behind it and all good ones that follow it:")
    for name, seconds in (("good", good), ("poisoned", poisoned)):
        outcome.figures.append(
            f"{name}: {len(seconds)} messages, median {median(seconds):.3f} s, at most {max(seconds):.3f} s"
        )
    outcome.passed, outcome.failed = int(not outcome.problems), int(bool(outcome.problems))
    return outcome


async def _measure(rig: Rig) -> dict[bool, list[float]]:
    """Give the waiting times behind good (True) and behind poisoned messages."""
    place = TopicPartition(rig.topic("workflow-runs"), 0)
    chunks = changing_runs(20)
    waits: dict[bool, list[float]] = {True: [], False: []}
    member = rig._group_member("project")
    await member.start()
    producer = AIOKafkaProducer(bootstrap_servers=rig.kafka.bootstrap_servers, acks="all")
    await producer.start()
    try:
        for poison, is_good in itertools.product(_POISON * _ROUNDS, (True, False)):
            rows = [message.value for message in next(chunks)]
            # Somewhere among the good ones.
            rows.insert(len(rows) // 2, rows[0] if is_good else poison)
            deliveries = [await producer.send(place.topic, value=row, partition=place.partition) for row in rows]
            end = max([(await delivery).offset for delivery in deliveries]) + 1
            waits[is_good].append(await _wait_committed(member, place, end))
    finally:
        await producer.stop()
        await member.stop()
    return waits


async def _wait_committed(member: AIOKafkaConsumer, place: TopicPartition, end: int) -> float:
    started = time.monotonic()
    while (await member.committed(place) or 0) < end:
        assert time.monotonic() - started < _PATIENCE_S, "the partition stands still"
        await asyncio.sleep(_LOOK_S)
    return time.monotonic() - started
