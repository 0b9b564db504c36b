"""Harn: a run's directory with ``agent-llm/llm_transcript.jsonl``, and ``agent-result.json`` as one line."""

from pathlib import PurePath
from typing import IO, Final

from projections.sources.transcripts import parse_line
from projections.text import encode_component
from worker.harnesses.contract import Harness, Wanted
from worker.transcripts.files import TranscriptSource
from worker.transcripts.lines import DocumentEntry, SplitDocument

_TRANSCRIPT: Final = "llm_transcript.jsonl"
_RESULT: Final = "agent-result.json"


def _identify(_stream: IO[bytes], relative: PurePath, namespace: str, native_id: str | None) -> TranscriptSource:
    # Nothing in the files is a run's id: it is what somebody says, or else the name of the run's directory.
    depth = {_TRANSCRIPT: 2, _RESULT: 1}.get(relative.name, 1)
    native = native_id or ("" if relative.name not in (_TRANSCRIPT, _RESULT) else _directory(relative, depth))
    if not native:
        raise ValueError("a harn transcript does not name its conversation; say --native-id")
    scope = f"harn:{encode_component(namespace)}:{encode_component(native)}"
    name = "/".join(encode_component(part) for part in relative.parts[-depth:])
    return TranscriptSource("harn", namespace, native, f"{scope}:{name}", "harn")


def _directory(relative: PurePath, depth: int) -> str:
    return relative.parts[-depth - 1] if len(relative.parts) > depth else ""


def _split(relative: PurePath) -> SplitDocument | None:
    return _whole if relative.name == _RESULT else None


def _whole(data: bytes, source: TranscriptSource) -> list[DocumentEntry]:
    """Take the whole file as one line, once it is all there."""
    parse_line(data)
    return [DocumentEntry(source.sourceId, None, data)]


def _expected(wanted: Wanted) -> str:
    return f"**/{wanted.native_id}/agent-llm/{_TRANSCRIPT}"


HARNESS: Final = Harness(
    name="harn", names=(_TRANSCRIPT, _RESULT), identify=_identify, split=_split, expected=_expected
)
