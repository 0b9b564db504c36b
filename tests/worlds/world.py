"""A seeded world: workflow runs with retries and gates, their ledger, and the conversations that their agents had.

One seed is one world. A world is a list of messages; nothing in it depends on a clock. Texts that no fact and no
record may hold contain ``SECRET_MARKER``; texts that a record holds and no redacted export lets out contain
``PRIVATE_MARKER``.
"""

import json
from random import Random
from typing import Any, NamedTuple

from tests.worlds.codex import add_codex_family
from tests.worlds.corners import add_corners

PRIVATE_MARKER = "ZZPRIVATEZZ"
SECRET_MARKER = "ZZSECRETZZ"

Json = dict[str, Any]


class SourceMessage(NamedTuple):
    """One message of a source topic, before it has an offset."""

    topic: str
    key: bytes | None
    value: bytes | None


def time_text(seconds: float) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, second = divmod(rest, 60)
    return f"2026-10-01T{int(hours):02d}:{int(minutes):02d}:{second:06.3f}Z"


class World:
    """Builds the messages of one world."""

    def __init__(self, seed: int, *, runs: int = 2) -> None:
        self.random = Random(seed)
        self.messages: list[SourceMessage] = []
        self.seed = seed
        self._serial = 0
        self._transcripts: list[Json] = []
        for number in range(runs):
            self._add_run(f"run-{seed}-{number}")
        self._add_resumed_history()
        add_codex_family(self)
        add_corners(self)
        if self.random.random() < 0.3:
            self._erase()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def next_id(self, label: str) -> str:
        self._serial += 1
        return f"{label}-{self.seed}-{self._serial}"

    def publish(self, topic: str, key: str | None, value: Json | None) -> None:
        data = None if value is None else json.dumps(value, ensure_ascii=self.chance(0.5)).encode()
        self.messages.append(SourceMessage(topic, None if key is None else key.encode(), data))

    def _add_run(self, run_id: str) -> None:
        clock = self.random.randrange(0, 3600)
        steps: dict[str, Json] = {}
        revisions: list[Json] = []
        base: Json = {
            "id": run_id,
            "workflowName": self.random.choice(["doc-change", "fix bug", "größe"]),
            "params": {"task": self.next_id(SECRET_MARKER)},
            "status": "running",
            "startedAt": time_text(clock),
            "completedAt": None,
            "error": None,
        }

        def snapshot(status: str, active: dict[str, Json]) -> None:
            state = {**base, "status": status, "revision": len(revisions) + 1}
            state |= {"stepResults": dict(steps), "activeSteps": active}
            if status in ("completed", "failed"):
                state["completedAt"] = time_text(clock)
            if status == "failed":
                state["error"] = f"step failed {PRIVATE_MARKER}"
            revisions.append(state)

        snapshot("running", {})
        conversation: Json | None = None
        for index in range(self.random.randrange(1, 4)):
            step = self.random.choice(["draft", "review:2", "plan step", "naïve"]) + str(index)
            kind = self.random.choice(["dispatch", "dispatch", "seed", "assisted", "authorize"])
            clock += 1
            if kind == "dispatch":
                clock, conversation = self._dispatch(run_id, step, clock, steps, snapshot, conversation)
            else:
                clock = self._instant_step(run_id, step, kind, clock, steps)
            snapshot("running", {})
        clock += 1
        snapshot(self.random.choice(["completed", "failed", "paused"]), {})
        for state in revisions:
            if self.chance(0.8) or state is revisions[-1]:
                self._publish_run(state)
        self._delete_sometimes(run_id, revisions[-1])

    def _publish_run(self, state: Json) -> None:
        shape = self.random.choice(["plain", "envelope", "schema"])
        value: Json = state
        if shape != "plain":
            value = {"before": None, "after": state, "op": "u", "source": {"lsn": self.random.randrange(100)}}
        if shape == "schema":
            value = {"schema": {"type": "struct"}, "payload": value}
        self.publish("workflow-runs", state["id"], value)

    def _delete_sometimes(self, run_id: str, newest: Json) -> None:
        roll = self.random.random()
        if roll < 0.1:
            self.publish("workflow-runs", run_id, {"before": newest, "after": None, "op": "d"})
        elif roll < 0.2:
            self.publish("workflow-runs", run_id, None)
            if self.chance(0.5):
                self._publish_run({**newest, "revision": newest["revision"] + 1})

    def _instant_step(self, run_id: str, step: str, kind: str, clock: int, steps: dict[str, Json]) -> int:
        result: Json = {"stepId": step, "iteration": 0, "agentId": None, "signal": None}
        result["completedAt"] = time_text(clock + 5)
        if self.chance(0.8):
            result["operation"] = kind
        attempt = self.attempt_id(run_id, step, 0, 0)
        if kind == "assisted":
            self._human_gate(run_id, step, clock)
        if kind == "authorize":
            gate = {
                "id": f"{attempt}#policy:F5:{self.random.choice(['R1', 'row two'])}",
                "gateKind": "policy",
                "verdict": self.random.choice(["allow", "deny", None]),
                "decidedBy": "policy:F5",
                "policyRule": {"table": "F5", "rowId": "row two", "version": 1},
                "reason": f"because {PRIVATE_MARKER}",
            }
            place = self.random.choice(["step", "record", "evidence", "both"])
            if place in ("step", "both"):
                result["data"] = {"titan.trace.gates": [gate], "secret": SECRET_MARKER}
            if place in ("record", "both"):
                record = {"schema": "titan.trace/v1", "kind": "gate", "runId": run_id, "attemptId": attempt}
                self.publish("gate-decisions", None, {**gate, **record, "at": time_text(clock + 1)})
            if place == "evidence":
                evidence = {"v": 1, "kind": "policy", "at": time_text(clock + 2), "traceId": run_id, "spanId": attempt}
                self.publish("gate-decisions", None, {**gate, **evidence})
        if kind == "seed":
            result["data"] = {"titan.trace.artifacts": self._artifacts(), "note": SECRET_MARKER}
        steps[step] = result
        return clock + 6

    def attempt_id(self, run_id: str, step: str, iteration: int, attempt: int) -> str:
        from projections.ids import attempt_id  # noqa: PLC0415  (worlds name attempts as producers do)

        return attempt_id(run_id, step, iteration, attempt)

    def _artifacts(self) -> list[Json]:
        sha = f"{self.random.randrange(3):040x}"
        repo = self.random.choice(["acme/app", "Acme/App.git", "https://github.com/acme/app.git"])
        found: list[Json] = [
            {"artifactKind": "commit", "repo": repo, "sha": sha.upper(), "branch": f"topic/{PRIVATE_MARKER}"},
            {"artifactKind": "pr", "repo": repo, "number": self.random.randrange(1, 3), "state": "open"},
            {
                "artifactKind": "file",
                "repo": repo,
                "path": f"src/{PRIVATE_MARKER}.py",
                "commit": f"commit:{repo}@{sha}",
            },
            {"artifactKind": "commit", "repo": repo, "sha": "abc1234"},
        ]
        for entry in found:
            if self.chance(0.5):
                entry["at"] = time_text(self.random.randrange(3600))
        found[1]["state"] = self.random.choice(["open", "merged", None])
        return self.random.sample(found, self.random.randrange(1, len(found) + 1))

    def _human_gate(self, run_id: str, step: str, clock: int) -> None:
        gate: Json = {
            "id": f"{run_id}/{step}".replace(" ", "%20"),
            "prompt": f"Ship {SECRET_MARKER}?",
            "createdAt": time_text(clock),
            "status": "pending",
            "payload": None,
        }
        rows = [gate]
        if self.chance(0.7):
            closed = {**gate, "status": self.random.choice(["resolved", "cancelled", "expired"])}
            closed |= {"resolvedAt": time_text(clock + 3), "payload": {"decision": "approve", "reason": PRIVATE_MARKER}}
            closed["resolvedBy"] = {"class": self.random.choice(["owner-terminal", "worker"]), "id": "an owner"}
            rows.append(closed)
            if self.chance(0.4):
                late = {**closed, "status": "resolved", "resolvedAt": time_text(clock + 4)}
                rows.append({**late, "payload": {"signal": "rejected"}})
        for row in rows:
            self.publish("gate-decisions", row["id"], row)
        if self.chance(0.1):
            self.publish("gate-decisions", gate["id"], None)
        elif self.chance(0.1):
            self.publish("gate-decisions", None, {"before": rows[-1], "after": None, "op": "d"})

    def _dispatch(
        self, run_id: str, step: str, clock: int, steps: dict[str, Json], snapshot: Any, conversation: Json | None
    ) -> tuple[int, Json | None]:
        attempts = self.random.randrange(1, 3)
        for attempt in range(attempts):
            execution = self.next_id("exec")
            request = self.attempt_id(run_id, step, 0, attempt)
            if conversation is None or self.chance(0.5):
                conversation = {"harness": "claude-code", "namespace": "host a", "nativeId": self.next_id("c")}
            outcome = "succeeded" if attempt == attempts - 1 else "failed"
            active = {"stepId": step, "iterKey": f"{step}:0", "attempt": attempt, "startedAt": time_text(clock)}
            snapshot("running", {step: {"kind": "recoverable", **active, "prompt": SECRET_MARKER}})
            self.add_ledger(execution, request, conversation, clock, outcome)
            self._talk(conversation, clock)
            clock += self.random.randrange(20, 40)
        steps[f"{step}:0"] = {
            "stepId": step,
            "iteration": 0,
            "operation": "dispatch",
            "agentId": "runner-9",
            "signal": "done",
            "completedAt": time_text(clock),
            "output": f"output {SECRET_MARKER}",
        }
        return clock, conversation

    def add_ledger(self, execution: str, request: str, conversation: Json, clock: int, outcome: str) -> None:
        from projections.lifecycle.reducer import reduce_execution_transition  # noqa: PLC0415

        fence = {"supervisorId": "sup", "generation": 1}
        terminal: Json = {"outcome": outcome}
        terminal |= (
            {"result": SECRET_MARKER}
            if outcome == "succeeded"
            else {"reason": f"exit {PRIVATE_MARKER}", "retryable": True}
        )
        running = {"runnerRef": "runner-1", "adapterExecution": {"executionId": "ad"}, "evidence": SECRET_MARKER}
        running["conversation"] = conversation
        moves: list[Json] = [
            {
                "kind": "prepare",
                "execution": {"executionId": execution, "prompt": SECRET_MARKER},
                "agent": {"agentId": "agent-a"},
                "harness": conversation["harness"],
                "requestKey": request if self.chance(0.95) else "not-a-workflow",
                "target": {"kind": "fresh", "namespace": conversation["namespace"]},
                "owner": {**fence, "leaseUntil": "2026-10-02T00:00:00.000Z"},
                "correlations": {"factory.task": self.next_id("task")},
            },
            {"kind": "begin_dispatch", "fence": fence},
            {"kind": "observe_running", "fence": fence, **running},
            {"kind": "finish", "fence": fence, "terminal": terminal},
        ]
        feed = self.random.choice(["transitions", "records", "both", "mixed"])
        record = None
        for revision, move in enumerate(moves[: self.random.randrange(2, 5)]):
            envelope = {"executionId": execution, "eventId": f"{execution}:{revision}", "expectedRevision": revision}
            move |= {**envelope, "occurredAt": time_text(clock + revision)}
            record = reduce_execution_transition(record, move)
            shape = self.random.choice(["transitions", "records", "both"]) if feed == "mixed" else feed
            row = {"transitions": move, "records": record, "both": {"transition": move, "record": record}}[shape]
            self.publish("ledger-changes", execution, row)
        if self.chance(0.05):
            self.publish("ledger-changes", execution, None)

    def _talk(self, conversation: Json, clock: int) -> None:
        if self.chance(0.2):
            self._observe(conversation, clock)
            return
        lines: list[Json] = []
        agent = self.next_id("agent") if self.chance(0.3) else None
        for turn in range(self.random.randrange(1, 3)):
            now = clock + turn * 5
            lines.append(self._line("user", now, {"content": f"do {SECRET_MARKER}"}, None))
            for _response in range(self.random.randrange(1, 3)):
                lines += self._response(now, None)
                if agent is not None:
                    lines += self._response(now + 1, agent)
        source = f"claude-code:host%20a:{conversation['nativeId']}:{clock}"
        self.ship(conversation, source, lines)

    def _line(self, kind: str, now: float, message: Json, agent: str | None) -> Json:
        line: Json = {"type": kind, "uuid": self.next_id("u"), "message": message}
        if self.chance(0.9):
            line["timestamp"] = time_text(now)
        if agent is not None:
            line |= {"isSidechain": True, "agentId": agent}
        return line

    def _response(self, now: float, agent: str | None) -> list[Json]:
        message: Json = {"id": self.next_id("msg"), "model": self.random.choice(["claude-sonnet-5", "claude-opus-5"])}
        request = {"requestId": self.next_id("req")} if self.chance(0.7) else {}
        tool = self.next_id("toolu")
        lines = []
        usage: Json = {"input_tokens": self.random.randrange(100), "cache_read_input_tokens": 5}
        usage["cache_creation_input_tokens"] = 0
        for part in range(self.random.randrange(1, 4)):
            content: list[Json] = [{"type": "text", "text": SECRET_MARKER}]
            if part == 1:
                content = [{"type": "tool_use", "id": tool, "name": "Bash", "input": {"command": SECRET_MARKER}}]
            body = {**message, "content": content, "usage": {**usage, "output_tokens": part * 10}}
            lines.append({**self._line("assistant", now + part / 10, body, agent), **request})
        if len(lines) > 1 and self.chance(0.8):
            block: Json = {"type": "tool_result", "tool_use_id": tool, "content": SECRET_MARKER}
            if self.chance(0.5):
                block["is_error"] = self.chance(0.5)
            lines.append(self._line("user", now + 0.5, {"content": [block]}, agent))
        return lines

    def ship(self, conversation: Json, source_id: str, lines: list[Json]) -> None:
        offset = 0
        source = {**conversation, "sourceId": source_id, "format": "claude-code"}
        for line in lines:
            text = json.dumps(line)
            value = {"source": source, "byteOffset": offset, "line": text}
            self._transcripts.append(value)
            self.publish("transcripts", source_id, value)
            offset += len(text.encode()) + 1

    def _observe(self, conversation: Json, clock: int) -> None:
        source_id = f"claude-code:host%20a:{conversation['nativeId']}:obs"
        turn = {"conversation": conversation, "kind": "turn", "nativeId": "u-1"}
        for index in range(self.random.randrange(1, 4)):
            line = {"sourceId": source_id, "byteOffset": index * 100, "byteLength": 99, "contentHash": f"{index:064x}"}
            base: Json = {
                "id": {"sourceId": source_id, "byteOffset": index * 100, "subrecordIndex": 0},
                "conversation": conversation,
                "turn": turn,
                "historyOrigin": None if self.chance(0.9) else {"copied": True},
                "timestamp": time_text(clock + index) if self.chance(0.8) else None,
                "evidence": {"line": {**line, "lineNumber": index, "nativeOrdinal": None}},
            }
            tokens = dict.fromkeys(("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total"))
            tokens |= {"input": 10 * (index + 1), "output": self.random.choice([None, index])}
            measurement: Json = {"model": "m", "tokens": tokens, "source": "observed"}
            measurement["cost"] = self.random.choice([None, {"usd": 0.1 * index, "kind": "estimate"}])
            if self.chance(0.5):
                native = self.next_id("r")
                measurement |= {"kind": "delta", "responseId": native}
                response = {"conversation": conversation, "kind": "response", "nativeId": native}
            else:
                measurement |= {
                    "kind": "snapshot",
                    "scope": "conversation",
                    "scopeId": "c",
                    "epoch": "e",
                    "sequence": index,
                }
                response = None
            usage = {**base, "kind": "usage", "measurement": measurement, "response": response}
            self.publish("transcripts", None, {"observation": usage})
            call = {"conversation": conversation, "kind": "call", "nativeId": f"t-{index}"}
            tool = {**base, "id": {**base["id"], "subrecordIndex": 1}, "kind": "tool_call", "call": call}
            self.publish(
                "transcripts",
                None,
                {"observation": {**tool, "name": "Edit", "namespace": None, "input": SECRET_MARKER}},
            )
            result = {
                **tool,
                "id": {**base["id"], "subrecordIndex": 2},
                "kind": "tool_result",
                "isError": self.chance(0.5),
            }
            self.publish("transcripts", None, {"observation": {**result, "output": SECRET_MARKER}})

    def _add_resumed_history(self) -> None:
        """Let a resumed conversation repeat the lines of an earlier one, its assistant lines with new times."""
        if not self._transcripts or self.chance(0.4):
            return
        source_id = self.random.choice(self._transcripts)["source"]["sourceId"]
        copied = [json.loads(row["line"]) for row in self._transcripts if row["source"]["sourceId"] == source_id]
        for line in copied:
            if line["type"] == "assistant" and "timestamp" in line:
                line["timestamp"] = time_text(50_000)
        conversation = {"harness": "claude-code", "namespace": "host a", "nativeId": self.next_id("resumed")}
        if self.chance(0.7):
            request = self.attempt_id(f"run-{self.seed}-0", "draft0", 0, 0)
            self.add_ledger(self.next_id("exec"), request, conversation, 49_000, "succeeded")
        self.ship(
            conversation, f"claude-code:host%20a:{conversation['nativeId']}", copied + self._response(50_001, None)
        )

    def _erase(self) -> None:
        if self.chance(0.5):
            self.publish("erasures", None, {"run": f"run-{self.seed}-0"})
        elif self._transcripts:
            from projections.ids import conversation_ref  # noqa: PLC0415

            self.publish(
                "erasures", None, {"conversation": conversation_ref(self.random.choice(self._transcripts)["source"])}
            )
