"""Whose transcript a file is: native id and source id by the rules of each harness."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.text import encode_component, is_blank

# Enough for the last complete line of any transcript within the limits, and for the few lines at its head.
_TAIL_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class TranscriptSource(NamedTuple):
    """The `source` of a transcripts message; the field names are those of the wire."""

    harness: str
    namespace: str
    nativeId: str  # noqa: N815  (the wire's name)
    sourceId: str  # noqa: N815  (the wire's name)
    format: str


def find_transcript_source(path: Path, harness: str, namespace: str, native_id: str | None = None) -> TranscriptSource:
    """Find out which conversation a transcript file holds, and what its lines' source id is.

    `native_id` overrides what the file says. Raises ValueError when the file tells no id, OSError when it cannot be
    read.
    """
    if is_blank(namespace):
        raise ValueError("the namespace is blank")
    if harness == "claude-code":
        return _claude_code(path, namespace, native_id)
    if harness == "codex":
        return _codex(path, namespace, native_id)
    if native_id is None:
        raise ValueError(f"a {harness} transcript does not name its conversation; say --native-id")
    source_id = f"{harness}:{encode_component(namespace)}:{encode_component(native_id)}:{encode_component(path.name)}"
    return TranscriptSource(harness, namespace, native_id, source_id, harness)


def _claude_code(path: Path, namespace: str, native_id: str | None) -> TranscriptSource:
    agent = _agent_of(path)
    native = native_id
    if native is None and agent is None and _UUID.fullmatch(path.stem):
        native = path.stem
    if native is None:
        native = next((line["sessionId"] for line in _lines_from_end(path) if _is_text(line.get("sessionId"))), None)
    if native is None:
        raise ValueError("no line names a session; say --native-id")
    source_id = f"claude-code:{encode_component(namespace)}:{encode_component(native)}"
    if agent is not None:
        # A subagent's file belongs to the main session, and its byte offsets must never meet that session's own.
        source_id += f":{encode_component(agent)}"
    return TranscriptSource("claude-code", namespace, native, source_id, "claude-code")


def _agent_of(path: Path) -> str | None:
    """Give the agent id of a subagent's file: one whose every line is a sidechain's of one agent, as its first is."""
    first = next((line for line in _lines_from_start(path) if _is_text(line.get("sessionId"))), None)
    if first is None or first.get("isSidechain") is not True or not _is_text(first.get("agentId")):
        return None
    agent: str = first["agentId"]
    return agent


def _codex(path: Path, namespace: str, native_id: str | None) -> TranscriptSource:
    native = native_id
    if native is None:
        for line in _lines_from_start(path):
            payload = line.get("payload")
            if line.get("type") == "session_meta" and isinstance(payload, dict) and _is_text(payload.get("id")):
                native = payload["id"]
                break
    if native is None:
        raise ValueError("no session_meta line names a session; say --native-id")
    source_id = ":".join(
        ("codex-rollout", encode_component(namespace), encode_component(native), encode_component(path.name))
    )
    return TranscriptSource("codex", namespace, native, source_id, "codex")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not is_blank(value)


def _lines_from_start(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as stream:
        yield from _objects(stream.read(_HEAD_BYTES).split(b"\n"))


def _lines_from_end(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _TAIL_BYTES))
        yield from _objects(reversed(stream.read().split(b"\n")))


def _objects(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            value = decode_json(line.rstrip(b"\0\r"))
        except ProjectionError:
            # A torn or foreign line tells no id; the projection itself will account for it.
            continue
        if isinstance(value, dict):
            yield value
