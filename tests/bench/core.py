"""Messages per second and core, by transcript format and by source topic: parse, project, fold, redact.

Every figure stands beside the floor of the same bytes in the same run (`orjson.loads` and `orjson.dumps`), because
machines are noisy and only ratios travel.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import orjson

from projections.aggregates.conversation import Unbound
from projections.canonical import encode_record
from projections.errors import ProjectionError
from projections.facts import Fact
from projections.fold import Change, Fold
from projections.formats.robota import history_lines
from projections.privacy import Policy, redact
from projections.sources import project_message
from projections.sources.workflow_runs import KNOWN_STEPS
from tests.bench.conversations import Texts
from tests.bench.traffic import CONVERSATIONS, make_traffic, silent_runs
from tests.worlds.transcripts import line_message, line_messages
from worker.garbage import collect_rarely

FIXTURES = Path(__file__).parents[2] / "fixtures"
BATCH = 5_000
_CALLS = 60

Result = TypeVar("Result")


class Workload(NamedTuple):
    """Messages in order, (source topic, key, value), and what becomes of conversations that no ledger binds."""

    name: str
    messages: Sequence[tuple[str, bytes | None, bytes | None]]
    unbound: Unbound = "standalone"


def transcript_workload(name: str, message_count: int) -> Workload:
    """Repeat a native fixture in one namespace after another, so that no conversation is a copy."""
    directory = FIXTURES / "transcripts" / name
    source: dict[str, Any] = json.loads((directory / "source.json").read_text())
    data = (directory / "native.jsonl").read_bytes()
    values: list[bytes] = []
    while len(values) < message_count:
        values += line_messages({**source, "namespace": f"host {len(values)}"}, data)
    return Workload(f"transcripts/{name}", [("transcripts", None, value) for value in values])


def robota_workload(message_count: int) -> Workload:
    """Repeat the Robota session in one namespace after another."""
    session = json.loads((FIXTURES / "sessions" / "robota" / "session.json").read_text())
    values: list[bytes] = []
    while len(values) < message_count:
        namespace = f"host {len(values)}"
        source = {"harness": "robota", "namespace": namespace, "nativeId": session["id"], "format": "robota"}
        values += [
            line_message({**source, "sourceId": line.source_id}, 0, line.line, line.ordinal)
            for line in history_lines(session, namespace)
        ]
    return Workload("transcripts/robota", [("transcripts", None, value) for value in values])


def conversation_workload(name: str, message_count: int) -> Workload:
    """Let one conversation after another be held, with lines as long as real ones."""
    random, texts, make = Random(0), Texts(0), CONVERSATIONS[name]
    messages: list[tuple[str, bytes | None, bytes | None]] = []
    while len(messages) < message_count:
        conversation = make(random, texts, "host-a")
        key = conversation.ref.encode()
        messages += [("transcripts", key, line.value) for line in conversation.talk(0.0, _CALLS)]
    return Workload(f"transcripts/{name}", messages[:message_count])


def topic_workloads(message_count: int) -> list[Workload]:
    """Take runs, gates and ledger rows out of the traffic."""
    topics: dict[str, list[tuple[str, bytes | None, bytes | None]]] = {
        "workflow-runs": [],
        "gate-decisions": [],
        "ledger-changes": [],
    }
    traffic = silent_runs()
    while min(map(len, topics.values())) < message_count // 4:
        message = next(traffic)
        if message.topic in topics:
            topics[message.topic].append(message)
    return [Workload(topic, messages[:message_count]) for topic, messages in topics.items()]


def forget() -> None:
    """Empty what the core keeps between messages, else the second of two runs would find all of it done."""
    for name, module in sys.modules.items():
        if name.startswith("projections."):
            for cached in vars(module).values():
                if callable(empty := getattr(cached, "cache_clear", None)):
                    empty()
    KNOWN_STEPS.clear()


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Run something twice; gives the better CPU time in seconds and the result."""
    best, result = float("inf"), None
    for _ in range(2):
        forget()
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    assert result is not None
    return best, result


def project(workload: Workload) -> list[Fact]:
    """Project all messages."""
    facts: list[Fact] = []
    for offset, (topic, key, value) in enumerate(workload.messages):
        # The fixtures hold broken messages too, and refusing one is part of the work.
        with suppress(ProjectionError):
            facts += project_message(topic, key, value, 0, offset).facts
    return facts


def fold(facts: list[Fact], unbound: Unbound) -> list[Change]:
    """Fold all facts, and the facts that follow from them, in batches."""
    state = Fold(generation=1, unbound=unbound)
    changes: list[Change] = []
    offset = 0
    waiting = facts
    while waiting:
        following: list[Fact] = []
        for start in range(0, len(waiting), BATCH):
            batch = waiting[start : start + BATCH]
            result = state.apply(list(enumerate(batch, offset)))
            offset += len(batch)
            changes += result.changes
            following += result.facts
        waiting = following
    return changes


def measure(workload: Workload) -> dict[str, float]:
    """Measure one workload; messages per second and core for each stage, and ratios to the floor."""
    values = [value for _topic, _key, value in workload.messages if value is not None]
    count = len(workload.messages)
    floor_s, _ = timed(lambda: [orjson.dumps(orjson.loads(value)) for value in values])
    project_s, facts = timed(lambda: project(workload))
    fold_s, changes = timed(lambda: fold(facts, workload.unbound))
    policy = Policy(key="a key of more than thirty-two bytes")
    records = [change.record for change in changes if change.record is not None]
    redact_s, _ = timed(lambda: [encode_record(redact(orjson.loads(record), policy)) for record in records])
    core_s = project_s + fold_s + redact_s
    return {
        "messages": count,
        "bytes_per_message": sum(map(len, values)) / count,
        "records": len(records),
        "floor_per_s": count / floor_s,
        "project_per_s": count / project_s,
        "fold_per_s": count / fold_s,
        "redact_per_s": count / redact_s if records else float("inf"),
        "core_per_s": count / core_s,
        "core_to_floor": floor_s / core_s,
    }


def measure_all(message_count: int) -> dict[str, dict[str, float]]:
    """Measure the traffic as a whole, every transcript format and every other source topic, by name.

    Python looks for garbage as seldom as in a worker: else a third of a fold's time is that of looking for it.
    """
    names = sorted({path.name for path in (FIXTURES / "transcripts").iterdir()} - CONVERSATIONS.keys())
    collect_rarely()
    workloads = [Workload("traffic", make_traffic(message_count), "hold")]
    workloads += [conversation_workload(name, message_count) for name in CONVERSATIONS]
    workloads += [transcript_workload(name, message_count) for name in names]
    workloads += [robota_workload(message_count), *topic_workloads(message_count)]
    return {workload.name: measure(workload) for workload in workloads}
