"""Conversations of agents as their harnesses write them, line by line: Claude Code sessions and Codex rollouts.

Lines have the fields, blocks and sizes (0.5 to 4 KB) of real ones; their texts are cut out of one seeded corpus.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple, Protocol

import orjson

LINE_BYTES = range(500, 4_097)

Json = dict[str, Any]

_EPOCH_S = int(datetime(2026, 10, 1, tzinfo=UTC).timestamp())
_CORPUS_CHARS = 256 * 1024
_TEXT_CHARS_MAX = 2_500
_PROSE = (
    "the retry of a step keeps its key so that a late record finds it again when the worker reads from the start and "
    "every partition has one owner which writes what follows from its facts while tests hold both sides to one table "
    "naïve größe résumé → ✓ ledger fence lease offset batch commit snapshot revision timeout backoff queue reader"
)
_CODE = (
    'def settle(self, batch: Batch) -> None:\n    """Count what a batch gave."""\n    self._book[batch.key] += 1\n',
    'diff --git a/src/ledger.py b/src/ledger.py\n@@ -41,7 +41,9 @@\n-    return "open"\n+    return state or "open"\n',
    "$ pytest -q tests/test_ledger.py\n.........F..\n\tAssertionError: assert 'a\\b' == \"a/b\"\n1 failed, 11 passed\n",
    '{"status": "failed", "step": "verify", "exit": 1, "log": "C:\\\\build\\\\out.txt"}\n',
    "- [x] read the log\n- [ ] hold the offset until the write has returned\n\n",
)


def time_text(at_s: float) -> str:
    """Give an instant of the traffic as sources write it."""
    whole_s = int(at_s)
    return f"{_second_text(whole_s)}.{int((at_s - whole_s) * 1000):03d}Z"


@lru_cache(maxsize=4_096)
def _second_text(whole_s: int) -> str:
    return datetime.fromtimestamp(_EPOCH_S + whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Texts:
    """Prose, code and output of any length, cut out of one corpus."""

    def __init__(self, seed: int) -> None:
        random, words = Random(seed), _PROSE.split()
        parts: list[str] = []
        size = 0
        while size < _CORPUS_CHARS + _TEXT_CHARS_MAX:
            parts.append(" ".join(random.choices(words, k=random.randrange(8, 60))).capitalize() + ".\n")
            if random.random() < 0.4:
                parts.append(random.choice(_CODE))
            size += len(parts[-1])
        self._corpus = "".join(parts)

    def cut(self, random: Random, median: int, chars_min: int = 0, chars_max: int = _TEXT_CHARS_MAX) -> str:
        """Cut a text whose length is log-normal around the median, between the two bounds."""
        length = min(chars_max, max(chars_min, int(median * random.lognormvariate(0, 0.7))))
        start = int(random.random() * _CORPUS_CHARS)
        return self._corpus[start : start + length]


def uuid_text(random: Random) -> str:
    """Make an id as harnesses make them."""
    digits = f"{random.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def short_id(random: Random, label: str) -> str:
    """Make an id with a label in front."""
    return f"{label}_{random.getrandbits(96):024x}"


class TimedLine(NamedTuple):
    """One message value of the transcripts topic, and when it was written."""

    at_s: float
    value: bytes


class Conversation(Protocol):
    """A conversation that may go on in several attempts."""

    identity: Json

    @property
    def ref(self) -> str:
        """The conversation's id, which is the key of its messages."""

    def talk(self, at_s: float, calls: int) -> Iterator[TimedLine]:
        """Go on with one prompt and so many calls of models and tools together."""


class _File:
    """A transcript file that grows: each line becomes a message with its byte offset."""

    def __init__(self, identity: Json, source_id: str) -> None:
        source = {**identity, "sourceId": source_id, "format": identity["harness"]}
        self._source = orjson.Fragment(orjson.dumps(source))
        self._offset = 0

    def append(self, at_s: float, line: Json) -> TimedLine:
        text = orjson.dumps(line)
        value = orjson.dumps({"source": self._source, "byteOffset": self._offset, "line": text.decode()})
        self._offset += len(text) + 1
        return TimedLine(at_s, value)


class _Conversation:
    """What every harness has: whose the conversation is, and the file that its lines are in."""

    def __init__(self, random: Random, texts: Texts, harness: str, namespace: str, source_id: str) -> None:
        self._random = random
        self._texts = texts
        self._native = uuid_text(random)
        self.identity: Json = {"harness": harness, "namespace": namespace, "nativeId": self._native}
        self.ref = f"conversation:{harness}:{namespace}:{self._native}"
        self._file = _File(self.identity, source_id.format(namespace=namespace, native=self._native))


class ClaudeCodeConversation(_Conversation):
    """A Claude Code session: a response is streamed over one line per block, its results follow a line each."""

    _TOOLS = ("Bash", "Bash", "Read", "Edit", "Grep", "mcp__notes__search")

    def __init__(self, random: Random, texts: Texts, namespace: str) -> None:
        super().__init__(random, texts, "claude-code", namespace, "claude-code:{namespace}:{native}")
        self._model = random.choice(("claude-sonnet-5", "claude-sonnet-5", "claude-opus-5"))
        self._session = {
            "isSidechain": False,
            "userType": "external",
            "cwd": f"/home/agent/work/{short_id(random, 'tree')}",
            "sessionId": self._native,
            "version": "2.4.17",
            "gitBranch": "topic/retry-ledger",
        }
        self._parent: str | None = None
        self._cached = random.randrange(9_000, 18_000)

    def talk(self, at_s: float, calls: int) -> Iterator[TimedLine]:
        prompt = self._texts.cut(self._random, 900, 200)
        yield self._line(at_s, "user", {"role": "user", "content": prompt})
        while calls > 0:
            tools = 0 if calls == 1 else min(calls - 1, self._random.choice((1, 1, 1, 2, 3)))
            calls -= 1 + tools
            at_s += 1 + 9 * self._random.random()
            yield from self._respond(at_s, tools)

    def _line(self, at_s: float, kind: str, message: Json, more: Json | None = None) -> TimedLine:
        uuid = uuid_text(self._random)
        line = {"parentUuid": self._parent, **self._session, "type": kind, "message": message, **(more or {})}
        line |= {"uuid": uuid, "timestamp": time_text(at_s)}
        self._parent = uuid
        return self._file.append(at_s, line)

    def _respond(self, at_s: float, tools: int) -> Iterator[TimedLine]:
        random, texts = self._random, self._texts
        calls = [(short_id(random, "toolu"), random.choice(self._TOOLS)) for _tool in range(tools)]
        blocks: list[Json] = []
        if random.random() < 0.4:
            signature = f"{random.getrandbits(1_600):0400x}"
            blocks.append({"type": "thinking", "thinking": texts.cut(random, 500, 40), "signature": signature})
        if not calls or random.random() < 0.5:
            blocks.append({"type": "text", "text": texts.cut(random, 350, 40)})
        blocks += [{"type": "tool_use", "id": call, "name": name, "input": self._input(name)} for call, name in calls]
        yield from self._stream(at_s, blocks, "tool_use" if calls else "end_turn")
        for number, (call, _name) in enumerate(calls):
            yield self._result(at_s + 0.8 + number / 10, call)

    def _input(self, name: str) -> Json:
        if name == "Edit":
            old, new = (self._texts.cut(self._random, 250, 20, 1_100) for _side in range(2))
            return {"file_path": "/home/agent/work/src/ledger.py", "old_string": old, "new_string": new}
        if name == "Bash":
            return {"command": self._texts.cut(self._random, 120, 20), "description": "Run the tests of the ledger"}
        return {"pattern": "def settle", "path": "/home/agent/work/src", "output_mode": "content"}

    def _stream(self, at_s: float, blocks: list[Json], stop: str) -> Iterator[TimedLine]:
        random = self._random
        written = random.randrange(200, 2_500)
        usage = {
            "input_tokens": random.randrange(3, 60),
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": self._cached,
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
            "service_tier": "standard",
        }
        self._cached = (self._cached + written) % 160_000
        message = {"id": short_id(random, "msg"), "type": "message", "role": "assistant", "model": self._model}
        request = {"requestId": short_id(random, "req")}
        for number, block in enumerate(blocks):
            is_last = number == len(blocks) - 1
            output = random.randrange(60, 1_200) if is_last else 1 + number
            body: Json = {
                **message,
                "content": [block],
                "stop_reason": stop if is_last else None,
                "stop_sequence": None,
            }
            body["usage"] = {**usage, "output_tokens": output}
            yield self._line(at_s + number / 20, "assistant", body, request)

    def _result(self, at_s: float, call: str) -> TimedLine:
        output = self._texts.cut(self._random, 400, 20, 1_300)
        block: Json = {"tool_use_id": call, "type": "tool_result", "content": output}
        if self._random.random() < 0.6:
            block["is_error"] = self._random.random() < 0.1
        told = {"stdout": output, "stderr": "", "interrupted": False, "isImage": False}
        return self._line(at_s, "user", {"role": "user", "content": [block]}, {"toolUseResult": told})


class CodexConversation(_Conversation):
    """A Codex rollout: reasoning and messages, calls and their outputs, and a counter after each model request."""

    def __init__(self, random: Random, texts: Texts, namespace: str) -> None:
        super().__init__(random, texts, "codex", namespace, "codex-rollout:{namespace}:{native}:rollout")
        self._model = random.choice(("gpt-5.4", "gpt-5.5"))
        self._is_begun = False
        self._total = dict.fromkeys(
            ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens", "total_tokens"), 0
        )

    def talk(self, at_s: float, calls: int) -> Iterator[TimedLine]:
        yield from self._begin(at_s)
        while calls > 0:
            tools = 0 if calls == 1 else min(calls - 1, self._random.choice((1, 1, 1, 2)))
            calls -= 1 + tools
            at_s += 1 + 9 * self._random.random()
            yield from self._request(at_s, tools)

    def _line(self, at_s: float, kind: str, payload: Json) -> TimedLine:
        return self._file.append(at_s, {"timestamp": time_text(at_s), "type": kind, "payload": payload})

    def _begin(self, at_s: float) -> Iterator[TimedLine]:
        random, texts = self._random, self._texts
        cwd = f"/home/agent/work/{short_id(random, 'tree')}"
        if not self._is_begun:
            self._is_begun = True
            meta = {"id": self._native, "timestamp": time_text(at_s), "cwd": cwd, "originator": "codex_exec"}
            meta |= {"cli_version": "0.98.0", "source": "exec", "model_provider": "openai"}
            yield self._line(at_s, "session_meta", {**meta, "instructions": texts.cut(random, 1_500, 600)})
        turn: Json = {"turn_id": uuid_text(random), "model": self._model, "cwd": cwd, "approval_policy": "never"}
        turn |= {"sandbox_policy": {"type": "workspace-write", "network_access": False}, "effort": "medium"}
        turn |= {"summary": "auto", "user_instructions": texts.cut(random, 600, 200)}
        yield self._line(at_s + 0.1, "turn_context", turn)
        prompt = texts.cut(random, 900, 450)
        yield self._line(at_s + 0.2, "response_item", self._message("user", "input_text", prompt))
        yield self._line(at_s + 0.2, "event_msg", {"type": "user_message", "message": prompt, "images": []})

    def _message(self, role: str, kind: str, text: str) -> Json:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    def _request(self, at_s: float, tools: int) -> Iterator[TimedLine]:
        random, texts = self._random, self._texts
        if random.random() < 0.6:
            summary = [{"type": "summary_text", "text": texts.cut(random, 200, 40, 900)}]
            sealed = f"{random.getrandbits(3_200):0800x}"
            reasoning: Json = {"type": "reasoning", "summary": summary, "content": None, "encrypted_content": sealed}
            yield self._line(at_s, "response_item", reasoning)
        if tools == 0 or random.random() < 0.2:
            said = self._message("assistant", "output_text", texts.cut(random, 600, 450))
            yield self._line(at_s + 0.1, "response_item", said)
        for number in range(tools):
            yield from self._tool(at_s + 0.2 + number / 5)
        yield self._line(at_s + 0.9, "event_msg", self._counter())

    def _tool(self, at_s: float) -> Iterator[TimedLine]:
        random, texts = self._random, self._texts
        call_id = short_id(random, "call")
        is_patch = random.random() < 0.25
        label, name = ("custom_tool_call", "apply_patch") if is_patch else ("function_call", "shell")
        script = texts.cut(random, 500, 420, 1_900)
        given = {"input": script} if is_patch else {"arguments": _dumps({"command": ["bash", "-lc", script]})}
        yield self._line(at_s, "response_item", {"type": label, "name": name, "call_id": call_id, **given})
        code = 1 if random.random() < 0.1 else 0
        told = {"output": texts.cut(random, 600, 420, 1_900), "metadata": {"exit_code": code, "duration_seconds": 0.4}}
        output = {"type": f"{label}_output", "call_id": call_id, "output": _dumps(told)}
        yield self._line(at_s + 0.1, "response_item", output)

    def _counter(self) -> Json:
        random, total = self._random, self._total
        read, made = random.randrange(4_000, 60_000), random.randrange(40, 1_500)
        last = {"input_tokens": read, "cached_input_tokens": read * 3 // 4, "output_tokens": made}
        last |= {"reasoning_output_tokens": made // 3, "total_tokens": read + made}
        for name, count in last.items():
            total[name] += count
        info = {"total_token_usage": total, "last_token_usage": last, "model_context_window": 272_000}
        windows = {
            name: {"used_percent": random.randrange(90), "window_minutes": minutes, "resets_at": _EPOCH_S + 9_000}
            for name, minutes in (("primary", 300), ("secondary", 10_080))
        }
        return {"type": "token_count", "info": info, "rate_limits": {**windows, "credits": None, "plan_type": "team"}}


def _dumps(value: Json) -> str:
    return orjson.dumps(value).decode()
