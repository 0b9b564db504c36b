"""The golden transcripts as files: `project` and `ship` make of them what the formats make of their lines."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.worlds.transcripts import project_lines
from worker.cli import run
from worker.harnesses import HARNESSES
from worker.harnesses.discovery import chosen_places
from worker.settings_sections import LimitSettings
from worker.shipping.files import ChunkLimits, Selection, ShipFiles
from worker.shipping.state import ShipState

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"


class Golden(NamedTuple):
    """A golden transcript, the place that its source id says it has, and what its harness cannot tell from it."""

    harness: str
    directory: str
    file: str
    place: str
    namespace: str
    native_id: str | None = None


GOLDENS = [
    Golden("claude-code", "transcripts/claude-code", "native.jsonl", "x.jsonl", "host a", "s-1"),
    Golden("codex", "transcripts/codex", "native.jsonl", "rollout", "host a", "th-1"),
    Golden("ct-agents", "transcripts/ct-agents", "native.jsonl", "events.jsonl", "app-1"),
    Golden("harn", "transcripts/harn", "native.jsonl", "sess-41/agent-llm/llm_transcript.jsonl", "host-a", "sess-41"),
    Golden("robota", "sessions/robota", "session.json", "session.json", "host-a"),
]


def test_every_harness_has_a_golden_file() -> None:
    assert {golden.harness for golden in GOLDENS} == set(HARNESSES)


@pytest.fixture(params=GOLDENS, ids=[golden.harness for golden in GOLDENS])
def golden(request: pytest.FixtureRequest) -> Golden:
    found: Golden = request.param
    return found


def put(golden: Golden, directory: Path) -> Path:
    path = directory / golden.place
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(FIXTURES / golden.directory / golden.file, path)
    # One file that has the place of a directory is found by the directory, as it would be in real life.
    return directory / Path(golden.place).parts[0] if "/" in golden.place else path


def test_project_gives_the_golden_trace(
    golden: Golden, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    arguments = ["project", str(put(golden, tmp_path)), "--to", "-", "--no-redact", "--harness", golden.harness]
    if golden.native_id is not None:
        arguments += ["--native-id", golden.native_id]
    run([*arguments, "--namespace", golden.namespace])
    out = capfdbinary.readouterr().out
    expected = (FIXTURES / golden.directory / "trace.jsonl").read_bytes()
    assert sorted(out.splitlines()) == sorted(expected.splitlines())


def test_ship_sends_what_gives_the_golden_trace(golden: Golden, tmp_path: Path) -> None:
    places = {golden.harness: chosen_places(HARNESSES[golden.harness], [put(golden, tmp_path)])}
    state = ShipState.open(tmp_path / "state.json")
    selection = Selection(places, golden.namespace, golden.native_id)
    files = ShipFiles(selection, state, LimitSettings(), lambda *_: None)
    (chunk,) = files.chunks(files.scan(), ChunkLimits(1 << 24, 10_000))
    state.close()
    assert {row.key.decode() for row in chunk.rows} == {conversation_of(row.value) for row in chunk.rows}
    cluster = project_lines([row.value for row in chunk.rows])
    expected = (FIXTURES / golden.directory / "trace.jsonl").read_bytes()
    assert sorted(cluster.records.values()) == sorted(expected.splitlines())


def conversation_of(value: bytes) -> str:
    source = json.loads(value)["source"]
    return f"conversation:{source['harness']}:{source['namespace'].replace(' ', '%20')}:{source['nativeId']}"
