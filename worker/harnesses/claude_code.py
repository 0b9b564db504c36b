"""Claude Code: one file a session below ``projects``, one directory a working directory; subagents have their own."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import IO, Final

from projections.text import encode_component
from worker.harnesses.contract import (
    UUID,
    Harness,
    Place,
    Wanted,
    home,
    is_text,
    objects_from_end,
    objects_from_start,
)
from worker.transcripts.files import TranscriptSource

_NAMES: Final = ("*.jsonl",)
_AGENT: Final = "agent-"
_SUBAGENTS: Final = "subagents"
_NOT_KEPT = re.compile(r"[^A-Za-z0-9]")


def _identify(stream: IO[bytes], relative: PurePath, namespace: str, native_id: str | None) -> TranscriptSource:
    agent = _agent_of(stream, relative)
    native = native_id or _native_id(stream, relative, is_agent=agent is not None)
    source_id = f"claude-code:{encode_component(namespace)}:{encode_component(native)}"
    if agent is not None:
        # A subagent's file belongs to the main session, and its byte offsets must never meet that session's own.
        source_id += f":{encode_component(agent)}"
    return TranscriptSource("claude-code", namespace, native, source_id, "claude-code")


def _native_id(stream: IO[bytes], relative: PurePath, *, is_agent: bool) -> str:
    if not is_agent and UUID.fullmatch(relative.stem):
        return relative.stem
    for line in objects_from_end(stream):
        if is_text(line.get("sessionId")):
            return str(line["sessionId"])
    raise ValueError("no line names a session; say --native-id")


def _agent_of(stream: IO[bytes], relative: PurePath) -> str | None:
    """Give the agent id of a subagent's file: one whose every line is a sidechain's of one agent, as its first is."""
    first = next((line for line in objects_from_start(stream) if is_text(line.get("sessionId"))), {})
    if first.get("isSidechain") is True and is_text(first.get("agentId")):
        return str(first["agentId"])
    # A file that only its name or its place makes a subagent's must not pass for the session's own either.
    if relative.name.startswith(_AGENT) or _SUBAGENTS in relative.parent.parts:
        return relative.stem.removeprefix(_AGENT)
    return None


def _default_places(environ: Mapping[str, str]) -> list[Place]:
    return [Place(home(environ, "CLAUDE_CONFIG_DIR", ".claude") / "projects", _NAMES)]


def _directory_of(cwd: str) -> str:
    return _NOT_KEPT.sub("-", cwd)


def _expected(wanted: Wanted) -> str:
    directory = "*" if wanted.cwd is None else _directory_of(wanted.cwd)
    return f"{directory}/{wanted.native_id}.jsonl"


def _is_near(relative: PurePath, wanted: Wanted) -> bool:
    return wanted.cwd is not None and relative.parts[0] == _directory_of(wanted.cwd)


HARNESS: Final = Harness(
    name="claude-code",
    names=_NAMES,
    identify=_identify,
    default_places=_default_places,
    expected=_expected,
    is_near=_is_near,
)
