"""Traffic as factories of agents make it: workflow runs with retries and gates, their ledger, their conversations.

Seeded, endless and stable: the first n messages are the same however many are taken. Many runs go on at once, and
their messages come in the order of time. Nothing in it is broken: every message projects.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from random import Random
from statistics import mean, median
from typing import Any, NamedTuple

import orjson

from projections.ids import attempt_id, gate_id_for, memo_key, policy_gate_id
from projections.lifecycle.reducer import reduce_execution_transition
from tests.bench.conversations import (
    ClaudeCodeConversation,
    CodexConversation,
    Conversation,
    Texts,
    short_id,
    time_text,
    uuid_text,
)
from tests.worlds.world import SourceMessage

Json = dict[str, Any]

# About fifty runs are alive at once.
_BETWEEN_RUNS_S = 12.0
_LEASE_UNTIL = "2027-10-01T00:00:00.000Z"
_FENCE = {"supervisorId": "sup-1", "generation": 1}
CONVERSATIONS: dict[str, type[ClaudeCodeConversation | CodexConversation]] = {
    "claude-code": ClaudeCodeConversation,
    "codex": CodexConversation,
}
_HARNESSES = ("claude-code", "claude-code", "claude-code", "codex", "codex")


class TimedMessage(NamedTuple):
    """A message and when it was published."""

    at_s: float
    message: SourceMessage


class Shape(NamedTuple):
    """What a run is like: its steps, and how many calls an attempt makes (the median, or exactly so many)."""

    steps: tuple[str, ...] = ("load", "plan", "implement", "review", "verify", "merge", "publish")
    calls_median: int = 22
    calls: int | None = None
    harness: str | None = None
    has_retries: bool = True


SMALL = Shape(steps=("load", "implement", "merge"), calls_median=5, has_retries=False)
SILENT = Shape(calls=0)


def make_traffic(message_count: int, seed: int = 0) -> list[SourceMessage]:
    """Give the first messages of the traffic of a seed."""
    return list(itertools.islice(traffic(seed), message_count))


def traffic(seed: int = 0) -> Iterator[SourceMessage]:
    """Give messages without end; only the runs that are alive are in memory."""
    return _interleaved(seed, itertools.repeat(Shape()))


def small_runs(count: int, seed: int = 0) -> Iterator[SourceMessage]:
    """Give so many runs of one short attempt each."""
    return _interleaved(seed, itertools.repeat(SMALL, count))


def silent_runs(seed: int = 0) -> Iterator[SourceMessage]:
    """Give runs without end whose agents say next to nothing: for the topics that transcripts outnumber."""
    return _interleaved(seed, itertools.repeat(SILENT))


def one_huge_run(calls: int, seed: int = 0, harness: str = "claude-code") -> Iterator[SourceMessage]:
    """Give one run with one attempt, whose conversation has exactly so many calls of models and tools together."""
    shape = Shape(steps=("load", "implement", "publish"), calls=calls, harness=harness, has_retries=False)
    return _interleaved(seed, (shape,))


def figures(messages: Iterable[SourceMessage]) -> dict[str, float]:
    """Describe messages: how many, bytes of one (median and mean), and the share of each topic."""
    topics: Counter[str] = Counter()
    sizes: list[int] = []
    for message in messages:
        topics[message.topic] += 1
        sizes.append(len(message.value or b""))
    shares = {f"share_{topic.replace('-', '_')}": count / len(sizes) for topic, count in sorted(topics.items())}
    return {"messages": len(sizes), "bytes_median": median(sizes), "bytes_mean": mean(sizes), **shares}


def _interleaved(seed: int, shapes: Iterable[Shape]) -> Iterator[SourceMessage]:
    """Merge runs, one after the other begun, in the order of time; ties go to the older run."""
    texts = Texts(seed)
    waiting = enumerate(shapes)
    begun: list[tuple[float, int, SourceMessage, Iterator[TimedMessage]]] = []
    upcoming = next(waiting, None)
    while upcoming is not None or begun:
        if upcoming is not None and (not begun or upcoming[0] * _BETWEEN_RUNS_S <= begun[0][0]):
            number, shape = upcoming
            events = _Run(seed, number, texts, shape).events()
            _push(begun, number, events)
            upcoming = next(waiting, None)
            continue
        _at_s, number, message, events = heapq.heappop(begun)
        yield message
        _push(begun, number, events)


def _push(
    heap: list[tuple[float, int, SourceMessage, Iterator[TimedMessage]]], number: int, events: Iterator[TimedMessage]
) -> None:
    event = next(events, None)
    if event is not None:
        heapq.heappush(heap, (event.at_s, number, event.message, events))


class _Run:
    """One workflow run: its row in many revisions, its gates, its executions and what its agents said."""

    def __init__(self, seed: int, number: int, texts: Texts, shape: Shape) -> None:
        # A text seeds alike in every process; a tuple would not.
        self._random = random = Random(f"{seed}:{number}")
        self._texts = texts
        self._shape = shape
        self._now_s = number * _BETWEEN_RUNS_S
        self._number = number
        self._namespace = f"host-{random.choice('abcdef')}"
        self._is_captured = random.random() < 0.5
        self._row: Json = {
            "id": uuid_text(random),
            "workflowName": random.choice(("fix-bug", "doc-change", "größe-prüfen")),
            "params": {"task": f"TASK-{number}", "brief": texts.cut(random, 300, 80, 900)},
            "status": "running",
            "currentStep": None,
            "stepResults": {},
            "activeSteps": {},
            "revision": 0,
            "ownerGeneration": 1,
            "startedAt": time_text(self._now_s),
            "completedAt": None,
            "error": None,
        }
        self._id: str = self._row["id"]

    def events(self) -> Iterator[TimedMessage]:
        """Give the run's messages in the order of time."""
        yield self._snapshot()
        for step in self._shape.steps:
            self._row["currentStep"] = step
            is_done = True
            if step in ("load", "publish"):
                yield from self._seed(step)
            elif step == "merge":
                yield from self._authorize(step)
            else:
                is_done = yield from (self._review() if step == "review" else self._dispatch(step, 0))
            if not is_done:
                yield self._end("failed", f"step {step} failed: {self._texts.cut(self._random, 60, 20, 200)}")
                return
        yield self._end("completed", None)

    # ------------------------------------------------------------------------------------------------ the run's row

    def _wait(self, least_s: float, most_s: float) -> float:
        self._now_s += least_s + (most_s - least_s) * self._random.random()
        return self._now_s

    def _message(self, topic: str, key: str, value: Json) -> TimedMessage:
        return TimedMessage(self._now_s, SourceMessage(topic, key.encode(), orjson.dumps(value)))

    def _snapshot(self) -> TimedMessage:
        self._row["revision"] += 1
        return self._message("workflow-runs", self._id, self._captured(self._row))

    def _captured(self, row: Json) -> Json:
        if not self._is_captured:
            return row
        source = {"connector": "postgresql", "db": "factory", "lsn": int(self._now_s * 1_000)}
        return {"before": None, "after": row, "op": "u", "source": source, "ts_ms": int(self._now_s * 1_000)}

    def _end(self, status: str, error: str | None) -> TimedMessage:
        at = time_text(self._wait(0.1, 1))
        self._row |= {"status": status, "completedAt": at, "error": error, "currentStep": None, "activeSteps": {}}
        return self._snapshot()

    def _finish_step(self, kind: str, step: str, iteration: int, more: Json) -> TimedMessage:
        result: Json = {"stepId": step, "iteration": iteration, "operation": kind, "agentId": None, "signal": None}
        result |= {"completedAt": time_text(self._now_s), **more}
        self._row["stepResults"][memo_key(kind, step, iteration)] = result
        self._row["activeSteps"].pop(step, None)
        return self._snapshot()

    def _seed(self, step: str) -> Iterator[TimedMessage]:
        self._wait(0.1, 2)
        data: Json = {"task": self._row["params"]["task"]}
        if step == "publish":
            data["titan.trace.artifacts"] = self._artifacts()
        yield self._finish_step("seed", step, 0, {"data": data})

    def _artifacts(self) -> list[Json]:
        repo, sha = "acme/app", f"{self._random.getrandbits(160):040x}"
        paths = self._random.sample(("src/ledger.py", "src/fence.py", "tests/test_ledger.py", "README.md"), k=2)
        return [
            {"artifactKind": "commit", "repo": repo, "sha": sha, "branch": f"topic/task-{self._number}"},
            {"artifactKind": "pr", "repo": repo, "number": self._number + 1, "state": "open"},
            *({"artifactKind": "file", "repo": repo, "path": path, "commit": f"commit:{repo}@{sha}"} for path in paths),
        ]

    # -------------------------------------------------------------------------------------------------------- gates

    def _review(self) -> Generator[TimedMessage, None, bool]:
        """Ask a person; one time in four the answer is to do it again. Returns whether it was approved in the end."""
        is_redone = self._random.random() < 0.25
        if is_redone:
            yield from self._ask("review", 0, "needs_revision")
            if not (yield from self._dispatch("implement", 1)):
                return False
        yield from self._ask("review", int(is_redone), "approved")
        return True

    def _ask(self, step: str, iteration: int, verdict: str) -> Iterator[TimedMessage]:
        memo = memo_key("assisted", step, iteration)
        gate: Json = {"id": gate_id_for(self._id, memo), "prompt": self._texts.cut(self._random, 400, 80, 1_500)}
        gate |= {"status": "pending", "payload": None, "createdAt": time_text(self._now_s), "resolvedAt": None}
        yield self._message("gate-decisions", gate["id"], self._captured(gate))
        self._row["status"] = "paused"
        yield self._snapshot()
        gate |= {"status": "resolved", "resolvedAt": time_text(self._wait(30, 400))}
        gate["payload"] = {"signal": verdict, "reason": self._texts.cut(self._random, 80, 10, 300)}
        gate["resolvedBy"] = {"class": "owner-terminal", "id": "an owner", "channel": "cli"}
        yield self._message("gate-decisions", gate["id"], self._captured(gate))
        self._row["status"] = "running"
        yield self._finish_step("assisted", step, iteration, {"signal": verdict, "data": gate["payload"]})

    def _authorize(self, step: str) -> Iterator[TimedMessage]:
        self._wait(0.1, 1)
        attempt = attempt_id(self._id, step, 0, 0)
        gate: Json = {"id": policy_gate_id(attempt, "F5", "MRG-OT"), "gateKind": "policy", "verdict": "allow"}
        gate |= {"decidedBy": "policy:F5", "policyRule": {"table": "F5", "rowId": "MRG-OT", "version": 1}}
        gate["reason"] = "every check has passed"
        at = time_text(self._now_s)
        evidence = {"v": 1, "kind": "policy", "at": at, "traceId": self._id, "spanId": attempt, **gate}
        yield self._message("gate-decisions", gate["id"], evidence)
        whole = {"schema": "titan.trace/v1", "kind": "gate", "runId": self._id, "attemptId": attempt, "at": at, **gate}
        data = {"verdict": "allow", "ruleId": "MRG-OT", "titan.trace.gates": [whole]}
        yield self._finish_step("authorize", step, 0, {"data": data})

    # --------------------------------------------------------------------------------------------------- dispatching

    def _dispatch(self, step: str, iteration: int) -> Generator[TimedMessage, None, bool]:
        """Let an agent do a step, again when it fails; returns whether it was done in the end."""
        conversation: Conversation | None = None
        for attempt in range(3):
            is_failing = self._shape.has_retries and self._random.random() < 0.2
            resumes = conversation is not None and self._random.random() < 0.5
            if conversation is None or not resumes:
                harness = self._shape.harness or self._random.choice(_HARNESSES)
                conversation = CONVERSATIONS[harness](self._random, self._texts, self._namespace)
            yield from self._attempt(step, iteration, attempt, conversation, resumes=resumes, is_failing=is_failing)
            if not is_failing:
                more = {"agentId": "runner-1", "signal": "done", "output": self._texts.cut(self._random, 500, 50)}
                yield self._finish_step("dispatch", step, iteration, more)
                return True
        return False

    def _attempt(
        self, step: str, iteration: int, attempt: int, conversation: Conversation, *, resumes: bool, is_failing: bool
    ) -> Iterator[TimedMessage]:
        self._wait(0.2, 3)
        request = attempt_id(self._id, step, iteration, attempt)
        execution, prompt = uuid_text(self._random), self._texts.cut(self._random, 900, 200)
        ledger = _Ledger(self, execution)
        active: Json = {"kind": "recoverable", "stepId": step, "iterKey": f"{step}:{iteration}", "attempt": attempt}
        active |= {"startedAt": time_text(self._now_s), "executionId": execution, "requestKey": request}
        self._row["activeSteps"][step] = {**active, "prompt": prompt}
        yield self._snapshot()
        yield ledger.prepare(request, prompt, conversation.identity, resumes=resumes)
        self._wait(0.1, 0.4)
        yield ledger.move("begin_dispatch", {})
        self._wait(0.3, 2)
        running = {"runnerRef": f"runner-{attempt}", "adapterExecution": {"executionId": short_id(self._random, "ad")}}
        running |= {"conversation": conversation.identity, "evidence": "the harness has answered"}
        yield ledger.move("observe_running", running)
        key = conversation.ref.encode()
        for at_s, value in conversation.talk(self._now_s, self._calls()):
            self._now_s = max(self._now_s, at_s)
            yield TimedMessage(self._now_s, SourceMessage("transcripts", key, value))
        self._wait(0.2, 2)
        reason = {"outcome": "failed", "reason": "the harness ended with 1", "retryable": True}
        done = {"outcome": "succeeded", "result": {"kind": "text", "text": self._texts.cut(self._random, 300, 20)}}
        yield ledger.move("finish", {"terminal": reason if is_failing else done})

    def _calls(self) -> int:
        if self._shape.calls is not None:
            return self._shape.calls
        return 1 + int(self._shape.calls_median * self._random.lognormvariate(0, 0.6))


class _Ledger:
    """The ledger's rows of one execution: transitions, or each with the record that it made."""

    def __init__(self, run: _Run, execution: str) -> None:
        self._run = run
        self._execution = execution
        self._revision = 0
        self._record: Json | None = None
        self._has_records = run._random.random() < 0.5

    def prepare(self, request: str, prompt: str, identity: Json, *, resumes: bool) -> TimedMessage:
        """Begin an execution in a new conversation, or in one that is there."""
        execution: Json = {"executionId": self._execution, "prompt": prompt}
        target: Json = {"kind": "fresh", "namespace": identity["namespace"]}
        if resumes:
            execution["conversation"] = identity
            target = {"kind": "resume", "conversation": identity}
        transition: Json = {
            "execution": execution,
            "agent": {"agentId": "agent-a"},
            "harness": identity["harness"],
            "requestKey": request,
            "target": target,
            "owner": {**_FENCE, "leaseUntil": _LEASE_UNTIL},
            "correlations": {"factory.task": self._run._row["params"]["task"]},
        }
        return self._publish("prepare", transition)

    def move(self, kind: str, more: Json) -> TimedMessage:
        """Make a later transition."""
        return self._publish(kind, {"fence": _FENCE, **more})

    def _publish(self, kind: str, body: Json) -> TimedMessage:
        event_id = f"{self._execution}:{self._revision}"
        transition: Json = {"kind": kind, "executionId": self._execution, "eventId": event_id}
        transition |= {"expectedRevision": self._revision, "occurredAt": time_text(self._run._now_s), **body}
        self._revision += 1
        if not self._has_records:
            return self._run._message("ledger-changes", self._execution, transition)
        self._record = reduce_execution_transition(self._record, transition)
        return self._run._message("ledger-changes", self._execution, {"transition": transition, "record": self._record})
