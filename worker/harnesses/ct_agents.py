"""ct-agents: files of stored events or stream envelopes, one a line, each of which may name its own session."""

from pathlib import PurePath
from typing import IO, Any, Final

from projections.errors import ProjectionError
from projections.sources.transcripts import parse_line
from projections.text import encode_component
from worker.harnesses.contract import Harness, is_text, objects_from_start
from worker.transcripts.files import TranscriptSource

_HARNESS: Final = "ct-agents"


def _identify(stream: IO[bytes], relative: PurePath, namespace: str, native_id: str | None) -> TranscriptSource:
    native = native_id or next(filter(None, map(_session_of, objects_from_start(stream))), None)
    if native is None:
        raise ValueError("no event names a session; say --native-id")
    return _source(namespace, native, encode_component(relative.name))


def _source(namespace: str, native: str, name: str) -> TranscriptSource:
    source_id = f"{_HARNESS}:{encode_component(namespace)}:{encode_component(native)}:{name}"
    return TranscriptSource(_HARNESS, namespace, native, source_id, _HARNESS)


def _session_of(value: Any) -> str | None:
    """Give the session that an event, or the event in an envelope, names."""
    if not isinstance(value, dict):
        return None
    event = value.get("event") if "type" not in value and isinstance(value.get("event"), dict) else value
    session = event.get("sessionId") if isinstance(event, dict) else None
    return str(session) if is_text(session) else None


def _source_of_line(line: bytes, source: TranscriptSource) -> TranscriptSource:
    """Give an event to the session that it names: one file may hold the events of many."""
    try:
        session = _session_of(parse_line(line))
    except ProjectionError:
        # The projection itself will account for a broken line, as one of the file's own session.
        return source
    if session is None or session == source.nativeId:
        return source
    return _source(source.namespace, session, source.sourceId.rpartition(":")[2])


HARNESS: Final = Harness(name=_HARNESS, names=("*.jsonl",), identify=_identify, source_of_line=_source_of_line)
