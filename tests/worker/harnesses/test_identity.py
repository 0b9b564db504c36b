"""Whose transcript a file is, by the rules of each harness."""

import json
import os
from pathlib import Path

import pytest

from projections.formats import FORMATS
from worker.harnesses import HARNESSES
from worker.harnesses.discovery import Found, chosen_places, discover, identify
from worker.transcripts.files import TranscriptSource

SESSION = "0fae0449-64d3-4788-8622-d3a47d82c14b"


def write_lines(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def whose(
    path: Path, harness: str, namespace: str = "n", native_id: str | None = None, *, below: Path | None = None
) -> TranscriptSource:
    """Identify a file by itself, or as one that was found below a directory."""
    found = discover(chosen_places(HARNESSES[harness], [below or path]))
    assert isinstance(found, Found)
    file = next(file for file in found.files if file.path == path)
    return identify(HARNESSES[harness], file, namespace, native_id)


def test_every_format_of_native_lines_has_a_harness_that_finds_its_files() -> None:
    # Observations are no file format: they come on the topic, already read.
    assert HARNESSES.keys() == FORMATS.keys() - {"observation"}
    assert [harness.name for harness in HARNESSES.values()] == list(HARNESSES)


def test_a_claude_code_file_named_by_its_session_has_that_native_id(tmp_path: Path) -> None:
    path = write_lines(tmp_path / f"{SESSION}.jsonl", {"sessionId": "another"})
    assert whose(path, "claude-code", "host a") == TranscriptSource(
        "claude-code", "host a", SESSION, f"claude-code:host%20a:{SESSION}", "claude-code"
    )


def test_another_claude_code_file_takes_the_session_of_its_last_line_that_names_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "session.jsonl", {"sessionId": "old"}, {"sessionId": "new"}, {"type": "summary"})
    assert whose(path, "claude-code", "n").nativeId == "new"


def test_a_torn_last_line_does_not_hide_the_session(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(b'{"sessionId":"s"}\n{"sessionId":"t"')
    assert whose(path, "claude-code", "n").nativeId == "s"


def test_a_subagents_file_belongs_to_the_main_session_with_a_source_id_of_its_own(tmp_path: Path) -> None:
    row = {"sessionId": "main", "isSidechain": True, "agentId": "a/1"}
    path = write_lines(tmp_path / "agent-x.jsonl", row, row)
    found = whose(path, "claude-code", "n")
    assert (found.nativeId, found.sourceId) == ("main", "claude-code:n:main:a%2F1")


def test_a_sidechain_inside_the_main_file_does_not_make_it_a_subagents_file(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "m.jsonl", {"sessionId": "main"}, {"sessionId": "main", "isSidechain": True, "agentId": "a"}
    )
    assert whose(path, "claude-code", "n").sourceId == "claude-code:n:main"


def test_a_codex_file_takes_the_id_of_its_session_meta(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollout 1.jsonl", {"type": "session_meta", "payload": {"id": "t-1"}})
    found = whose(path, "codex", "n")
    assert (found.nativeId, found.sourceId) == ("t-1", "codex-rollout:n:t-1:rollout%201.jsonl")


@pytest.mark.parametrize("harness", ["claude-code", "codex", "harn"])
def test_a_file_that_names_no_conversation_asks_for_a_native_id(tmp_path: Path, harness: str) -> None:
    path = write_lines(tmp_path / "x.jsonl", {"type": "user"})
    with pytest.raises(ValueError, match="--native-id"):
        whose(path, harness, "n")
    assert whose(path, harness, "n", "given").nativeId == "given"


def test_a_file_that_only_its_name_makes_a_subagents_still_has_a_source_id_of_its_own(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "agent-x1.jsonl", {"sessionId": "main"})
    assert whose(path, "claude-code").sourceId == "claude-code:n:main:x1"
    path = write_lines(tmp_path / SESSION / "subagents" / "run.jsonl", {"sessionId": "main"})
    assert whose(path, "claude-code", below=tmp_path).sourceId == "claude-code:n:main:run"


def test_an_unfinished_first_line_names_nobody_yet(tmp_path: Path) -> None:
    path = tmp_path / "rollout-1.jsonl"
    path.write_bytes(b'{"type":"session_meta","payload":{"id":"t-1"')
    with pytest.raises(ValueError, match="no session_meta line"):
        whose(path, "codex")


def test_bytes_that_are_no_text_and_a_byte_order_mark_do_not_hide_whose_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "rollout-1.jsonl"
    meta = b'\xef\xbb\xbf{"type":"session_meta","payload":{"id":"t-1","cwd":"/home/\xe2\x82"}}'
    for ending in (b"\n", b"\r\n", b"\0\0\n"):
        path.write_bytes(meta + ending)
        assert whose(path, "codex").nativeId == "t-1"


def test_a_forks_copied_meta_lines_come_after_its_own(tmp_path: Path) -> None:
    metas = [{"type": "session_meta", "payload": {"id": name}} for name in ("own", "parent")]
    assert whose(write_lines(tmp_path / "rollout-1.jsonl", *metas), "codex").nativeId == "own"


@pytest.mark.parametrize(
    ("name", "source_id"),
    [
        ("run 1/agent-llm/llm_transcript.jsonl", "harn:n:run%201:agent-llm/llm_transcript.jsonl"),
        ("run 1/agent-result.json", "harn:n:run%201:agent-result.json"),
    ],
)
def test_a_harn_run_has_the_name_of_its_directory_and_its_files_their_own_source_ids(
    tmp_path: Path, name: str, source_id: str
) -> None:
    path = write_lines(tmp_path / name, {})
    found = whose(path, "harn", below=tmp_path)
    assert (found.nativeId, found.sourceId) == ("run 1", source_id)
    assert whose(path, "harn", "n", "sess/1", below=tmp_path).sourceId == source_id.replace("run%201", "sess%2F1")


def test_a_ct_agents_file_takes_the_session_of_its_first_event_also_in_an_envelope(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "e.jsonl", {"kind": "heartbeat"}, {"kind": "event", "event": {"sessionId": "s1"}})
    assert whose(path, "ct-agents").sourceId == "ct-agents:n:s1:e.jsonl"


def test_a_robota_file_is_a_session_record_or_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"id": "s 1", "history": []}')
    assert whose(path, "robota").sourceId == "robota:n:s%201"
    for text in ('{"id": "s"}', '{"id": 1, "history": []}', "[]", '{"id": "s", "history": ['):
        path.write_text(text)
        with pytest.raises(ValueError, match="no session record"):
            whose(path, "robota")
    path.write_text('{"id": " ", "history": []}')
    with pytest.raises(ValueError, match="has no id"):
        whose(path, "robota")


@pytest.mark.parametrize("harness", ["claude-code", "codex", "harn", "ct-agents"])
@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_id_in_a_file_is_none(tmp_path: Path, harness: str, blank: str) -> None:
    row = {"sessionId": blank, "type": "session_meta", "payload": {"id": blank}}
    with pytest.raises(ValueError, match="--native-id"):
        whose(write_lines(tmp_path / "x.jsonl", row), harness)


def test_an_id_that_no_ref_can_hold_is_refused_and_named_by_its_reason_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"sessionId":"cut \\ud83d"}\n')
    with pytest.raises(ValueError, match=r"^lone_surrogate$"):
        whose(path, "claude-code")


REAL = Path(os.environ.get("TRACE_PROJECTOR_REAL", Path(__file__).parents[4] / "shared" / "real"))
TRUTH = json.loads((REAL / "truth.json").read_bytes()) if (REAL / "truth.json").exists() else {}


@pytest.mark.skipif(not TRUTH, reason="the real transcripts are not at hand")
@pytest.mark.parametrize("name", [name for name in TRUTH if not name.startswith("_")])
def test_a_real_file_belongs_to_the_session_that_it_was_counted_for(name: str) -> None:
    truth = TRUTH[name]
    native_id = truth.get("native_session_id") or truth["session_meta"][0]["id"]
    harness, _, file_name = name.partition("/")
    ending = ":a4ca7529859c158c2" if "sub" in name else f":{file_name}" if harness == "codex" else ""
    prefix = "codex-rollout" if harness == "codex" else harness
    found = whose((REAL / name).resolve(), harness, "host")
    assert (found.nativeId, found.sourceId) == (native_id, f"{prefix}:host:{native_id}{ending}")
