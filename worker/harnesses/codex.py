"""Codex: one rollout file a thread below ``sessions/<year>/<month>/<day>``, moved to ``archived_sessions`` later."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import IO, Final

from projections.text import encode_component
from worker.harnesses.contract import Harness, Place, Wanted, home, is_text, objects_from_start
from worker.transcripts.files import TranscriptSource

_ROLLOUTS: Final = ("rollout-*.jsonl",)


def _identify(stream: IO[bytes], relative: PurePath, namespace: str, native_id: str | None) -> TranscriptSource:
    native = native_id or _native_id(stream)
    # The file's name, which the move to the archive keeps, tells the several files of one thread apart.
    parts = (encode_component(part) for part in (namespace, native, relative.name))
    return TranscriptSource("codex", namespace, native, ":".join(("codex-rollout", *parts)), "codex")


def _native_id(stream: IO[bytes]) -> str:
    for line in objects_from_start(stream):
        payload = line.get("payload")
        if line.get("type") == "session_meta" and isinstance(payload, dict) and is_text(payload.get("id")):
            return str(payload["id"])
    raise ValueError("no session_meta line names a session; say --native-id")


def _default_places(environ: Mapping[str, str]) -> list[Place]:
    directory = home(environ, "CODEX_HOME", ".codex")
    return [Place(directory / name, _ROLLOUTS) for name in ("sessions", "archived_sessions")]


def _expected(wanted: Wanted) -> str:
    return f"**/rollout-*-{wanted.native_id}.jsonl"


HARNESS: Final = Harness(
    name="codex", names=("*.jsonl",), identify=_identify, default_places=_default_places, expected=_expected
)
