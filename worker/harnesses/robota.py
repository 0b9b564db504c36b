"""Robota: one JSON file a session, written anew with every change; each entry of its history is a line."""

from pathlib import PurePath
from typing import IO, Any, Final

from projections.errors import ProjectionError
from projections.formats.robota import history_lines
from projections.formats.robota_session import session_id_of
from projections.sources.transcripts import parse_line
from projections.text import encode_component, is_blank
from worker.harnesses.contract import Harness, Wanted
from worker.transcripts.files import TranscriptSource
from worker.transcripts.lines import DocumentEntry, SplitDocument

# A session that cannot even be read within this is passed over.
_SESSION_BYTES_MAX: Final = 64 << 20


def _identify(stream: IO[bytes], _relative: PurePath, namespace: str, native_id: str | None) -> TranscriptSource:
    stream.seek(0)
    try:
        native = session_id_of(_session(stream.read(_SESSION_BYTES_MAX)))
    except ProjectionError:
        raise ValueError("is no session record, or not a whole one") from None
    if is_blank(native):
        raise ValueError("its session has no id")
    if native_id is not None and native_id != native:
        raise ValueError("its session has another id than --native-id says")
    source_id = f"robota:{encode_component(namespace)}:{encode_component(native)}"
    return TranscriptSource("robota", namespace, native, source_id, "robota")


def _session(data: bytes) -> dict[str, Any]:
    record = parse_line(data)
    # Many programs keep JSON files; only a session has both.
    if not isinstance(record, dict) or "history" not in record:
        raise ProjectionError("not_a_session")
    return record


def _split(_relative: PurePath) -> SplitDocument | None:
    return _entries


def _entries(data: bytes, source: TranscriptSource) -> list[DocumentEntry]:
    record = _session(data)
    if session_id_of(record) != source.nativeId:
        raise ProjectionError("another_session")
    return [DocumentEntry(*line) for line in history_lines(record, source.namespace)]


def _expected(wanted: Wanted) -> str:
    return f"**/{wanted.native_id}.json"


HARNESS: Final = Harness(name="robota", names=("*.json",), identify=_identify, split=_split, expected=_expected)
