"""Native transcript files of a seed: sessions of Claude Code and Codex as these programs lay them out on disk."""

import json
import uuid
from pathlib import PurePath
from random import Random
from typing import Any, NamedTuple

Json = dict[str, Any]

NAMESPACE = "host a"

# What a reader that counts characters, or ends lines at more than 0x0A, gets wrong.
_TEXTS = ("plain", "größe \U0001f600", "a\u2028b\u0085c", 'tab\tand \\ and "quotes"', "日本語")


class NativeFile(NamedTuple):
    """One transcript file: where it is below its harness's place, its bytes, and the source that its lines have."""

    harness: str
    path: PurePath
    data: bytes
    source: Json


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seed = seed
        self._clock = 0

    def next_uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def next_time(self) -> str:
        self._clock += 1
        minutes, seconds = divmod(self._clock, 60)
        hours, minutes = divmod(minutes, 60)
        return f"2026-10-01T{hours:02d}:{minutes:02d}:{seconds:02d}.000Z"

    def lines(self, rows: list[Json]) -> bytes:
        ending = self.random.choice(["\n", "\r\n"])
        parts = []
        for row in rows:
            parts.append((json.dumps(row, ensure_ascii=self.random.random() < 0.3) + ending).encode())
            if self.random.random() < 0.02:
                # Half a character: the line is still one, and only its text is broken.
                parts.append(b'{"type":"system","text":"\xe2\x82"}' + ending.encode())
        return b"".join(parts)


def native_files(seed: int, *, turns: int) -> list[NativeFile]:
    """Make the files of one seed: two Claude Code sessions, a subagent of one, a Codex thread and a fork of it."""
    writer = _Writer(seed)
    files = []
    for number in range(2):
        session = writer.next_uuid()
        directory = PurePath(f"-home-me-project-{number}")
        rows = _claude_turns(writer, session, turns, None)
        files.append(_claude_file(writer, directory / f"{session}.jsonl", session, rows, None))
        if number == 0:
            rows = _claude_turns(writer, session, turns // 2, "a1b2")
            path = directory / session / "subagents" / "agent-a1b2.jsonl"
            files.append(_claude_file(writer, path, session, rows, "a1b2"))
    return files + _codex_files(writer, turns)


def _claude_file(writer: _Writer, path: PurePath, session: str, rows: list[Json], agent: str | None) -> NativeFile:
    source_id = f"claude-code:host%20a:{session}" + (f":{agent}" if agent else "")
    return NativeFile("claude-code", path, writer.lines(rows), _source("claude-code", session, source_id))


def _source(harness: str, native_id: str, source_id: str) -> Json:
    return {
        "harness": harness,
        "namespace": NAMESPACE,
        "nativeId": native_id,
        "sourceId": source_id,
        "format": harness,
    }


def _claude_turns(writer: _Writer, session: str, turns: int, agent: str | None) -> list[Json]:
    rows = []
    for _turn in range(turns):
        common: Json = {"sessionId": session, "isSidechain": agent is not None}
        if agent is not None:
            common["agentId"] = agent
        text = writer.random.choice(_TEXTS)
        rows.append(_claude_row(writer, common, "user", {"role": "user", "content": text}))
        message = writer.next_uuid()
        request = writer.next_uuid()
        for part in range(writer.random.randrange(1, 4)):
            tool = {"type": "tool_use", "id": f"toolu_{message[:8]}_{part}", "name": "Bash", "input": {"x": text}}
            usage = {"input_tokens": 7, "output_tokens": 3 + part, "cache_read_input_tokens": 90}
            body = {"id": message, "role": "assistant", "model": "big-4", "content": [tool], "usage": usage}
            rows.append(_claude_row(writer, {**common, "requestId": request}, "assistant", body))
            result = {"type": "tool_result", "tool_use_id": tool["id"], "content": text}
            rows.append(_claude_row(writer, common, "user", {"role": "user", "content": [result]}))
    return rows


def _claude_row(writer: _Writer, common: Json, kind: str, message: Json) -> Json:
    return {**common, "type": kind, "uuid": writer.next_uuid(), "timestamp": writer.next_time(), "message": message}


def _codex_files(writer: _Writer, turns: int) -> list[NativeFile]:
    parent, fork = writer.next_uuid(), writer.next_uuid()
    history = _codex_turns(writer, turns, 0)
    own = _codex_turns(writer, turns // 2, 1_000_000)
    return [
        _codex_file(writer, parent, {"id": parent}, history),
        _codex_file(writer, fork, {"id": fork, "forked_from_id": parent}, history + own),
    ]


def _codex_file(writer: _Writer, thread: str, meta: Json, rows: list[Json]) -> NativeFile:
    name = f"rollout-2026-10-01T12-00-00-{thread}.jsonl"
    first = {"timestamp": writer.next_time(), "type": "session_meta", "payload": meta}
    source = _source("codex", thread, f"codex-rollout:host%20a:{thread}:{name}")
    return NativeFile("codex", PurePath("2026", "10", "01", name), writer.lines([first, *rows]), source)


def _codex_turns(writer: _Writer, turns: int, total: int) -> list[Json]:
    rows = []
    for _turn in range(turns):
        context = {"turn_id": writer.next_uuid(), "model": writer.random.choice(["gpt-5", "gpt-6"])}
        rows.append({"type": "turn_context", "payload": context})
        call = writer.next_uuid()
        arguments = writer.random.choice(_TEXTS)
        item = {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": call}
        rows.append({"type": "response_item", "payload": item})
        output = {"type": "function_call_output", "call_id": call, "output": arguments}
        rows.append({"type": "response_item", "payload": output})
        step = writer.random.randrange(10, 100)
        total += step
        info = {"total_token_usage": _counter(total), "last_token_usage": _counter(step)}
        rows.append({"type": "event_msg", "payload": {"type": "token_count", "info": info}})
    return [{"timestamp": writer.next_time(), **row} for row in rows]


def _counter(total: int) -> Json:
    return {"input_tokens": total, "cached_input_tokens": total // 2, "output_tokens": 0, "total_tokens": total}
