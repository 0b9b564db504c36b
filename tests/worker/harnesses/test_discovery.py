"""Where transcripts are looked for: found, not written yet, unavailable; no link is followed, no pipe waited for."""

import os
import stat
from pathlib import Path

import pytest

from worker.harnesses import HARNESSES
from worker.harnesses.contract import Wanted
from worker.harnesses.discovery import (
    Found,
    NotWritten,
    Unavailable,
    chosen_places,
    default_places,
    discover,
    find_conversation,
)
from worker.transcripts.files import open_transcript

SESSION = "0fae0449-64d3-4788-8622-d3a47d82c14b"
CLAUDE, CODEX = HARNESSES["claude-code"], HARNESSES["codex"]


def write(path: Path, text: str = '{"sessionId":"s"}\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def found_in(*paths: Path, harness: str = "claude-code") -> Found:
    found = discover(chosen_places(HARNESSES[harness], paths))
    assert isinstance(found, Found)
    return found


# ------------------------------------------------------------------------------------------------------- default places


def test_claude_code_is_looked_for_where_it_writes_subagents_included(home: Path) -> None:
    places = default_places(CLAUDE, {})
    assert not isinstance(places, Unavailable)
    assert discover(places) == NotWritten((home / ".claude/projects/**/*.jsonl",))
    main = write(home / ".claude/projects/-src-a" / f"{SESSION}.jsonl")
    sub = write(home / ".claude/projects/-src-a" / SESSION / "subagents/agent-1.jsonl")
    write(home / ".claude/history.jsonl")
    write(home / ".claude/projects/-src-a/memory.md")
    found = discover(places)
    assert isinstance(found, Found)
    assert sorted(file.path for file in found.files) == sorted([main, sub])


def test_codex_is_looked_for_where_it_writes_and_where_it_moves_old_sessions(home: Path) -> None:
    places = default_places(CODEX, {})
    assert not isinstance(places, Unavailable)
    expected = [home / ".codex" / name / "**/rollout-*.jsonl" for name in ("sessions", "archived_sessions")]
    assert discover(places) == NotWritten(tuple(expected))
    paths = [
        write(home / ".codex/sessions/2026/10/01/rollout-1.jsonl"),
        write(home / ".codex/archived_sessions/rollout-0.jsonl"),
    ]
    write(home / ".codex/sessions/index.jsonl")
    write(home / ".codex/history.jsonl")
    found = discover(places)
    assert isinstance(found, Found)
    assert [file.path for file in found.files] == paths


@pytest.mark.parametrize(
    ("name", "variable", "below"),
    [("claude-code", "CLAUDE_CONFIG_DIR", "projects"), ("codex", "CODEX_HOME", "sessions")],
)
def test_the_variable_of_the_program_moves_its_place(tmp_path: Path, name: str, variable: str, below: str) -> None:
    places = default_places(HARNESSES[name], {variable: str(tmp_path)})
    assert not isinstance(places, Unavailable)
    assert places[0].path == tmp_path / below
    unavailable = default_places(HARNESSES[name], {variable: str(tmp_path / "none")})
    assert unavailable == Unavailable(f"{variable} names no directory")


@pytest.mark.parametrize("name", ["harn", "ct-agents", "robota"])
def test_the_other_harnesses_are_found_by_path_only(name: str) -> None:
    unavailable = default_places(HARNESSES[name], {})
    assert isinstance(unavailable, Unavailable)
    assert "no place of its own" in unavailable.reason


def test_without_a_home_directory_it_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    assert default_places(CLAUDE, {}) == Unavailable("there is no home directory to look in")


# -------------------------------------------------------------------------------------------------------- chosen places


def test_a_chosen_file_is_a_transcript_whatever_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "session.txt")
    assert [file.path for file in found_in(path).files] == [path]


def test_the_files_of_a_harn_run_are_found_and_no_others(tmp_path: Path) -> None:
    paths = [write(tmp_path / "run" / name) for name in ("agent-llm/llm_transcript.jsonl", "agent-result.json")]
    write(tmp_path / "run/other.json")
    assert [file.path for file in found_in(tmp_path, harness="harn").files] == paths


def test_a_file_that_two_places_share_is_listed_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a/x.jsonl")
    assert [file.path for file in found_in(tmp_path, tmp_path / "a", path).files] == [path]


def test_a_place_that_is_not_there_and_an_empty_one_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = discover(chosen_places(CLAUDE, [tmp_path / "none", tmp_path / "empty"]))
    assert found == NotWritten((tmp_path / "none/**/*.jsonl", tmp_path / "empty/**/*.jsonl"))


def test_a_place_that_cannot_be_read_is_unavailable_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "closed/x.jsonl")
    refuse_scandir(monkeypatch, tmp_path / "closed")
    found = discover(chosen_places(CLAUDE, [tmp_path / "closed"]))
    assert found == Unavailable(f"{tmp_path / 'closed'}: Permission denied")


def test_a_directory_below_that_cannot_be_read_is_passed_over_and_the_rest_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "open/x.jsonl")
    write(tmp_path / "closed/y.jsonl")
    refuse_scandir(monkeypatch, tmp_path / "closed")
    found = found_in(tmp_path)
    assert [file.path for file in found.files] == [path]
    assert found.passed_over == ((tmp_path / "closed", "Permission denied"),)


def refuse_scandir(monkeypatch: pytest.MonkeyPatch, closed: Path) -> None:
    """Let one directory be unreadable; a test that runs as root could read it."""
    original = os.scandir

    def scandir(path: str | Path) -> object:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)


# ---------------------------------------------------------------------------------------------------------------- links


def test_links_below_a_place_are_named_and_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside/secret.jsonl")
    inside = write(tmp_path / "place/a/x.jsonl")
    (tmp_path / "place/link.jsonl").symlink_to(outside)
    (tmp_path / "place/linked").symlink_to(outside.parent)
    (tmp_path / "place/loop").symlink_to(tmp_path / "place")
    found = found_in(tmp_path / "place")
    assert [file.path for file in found.files] == [inside]
    assert sorted(note.path.name for note in found.passed_over) == ["link.jsonl", "linked", "loop"]
    assert {note.reason for note in found.passed_over} == {"is a symbolic link"}


def test_a_place_that_is_itself_a_link_is_the_place_it_leads_to(tmp_path: Path) -> None:
    path = write(tmp_path / "real/x.jsonl")
    (tmp_path / "place").symlink_to(tmp_path / "real")
    assert [file.path for file in found_in(tmp_path / "place").files] == [path]


def test_a_file_that_became_a_link_since_it_was_found_is_not_opened(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside.jsonl")
    path = write(tmp_path / "place/x.jsonl")
    (file,) = found_in(tmp_path / "place").files
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        open_transcript(file)


def test_a_directory_on_the_way_that_became_a_link_is_not_entered(tmp_path: Path) -> None:
    write(tmp_path / "outside/x.jsonl")
    write(tmp_path / "place/a/x.jsonl")
    (file,) = found_in(tmp_path / "place").files
    (tmp_path / "place/a").rename(tmp_path / "place/b")
    (tmp_path / "place/a").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        open_transcript(file)


def test_a_pipe_is_no_transcript_and_one_that_took_its_name_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    path = write(tmp_path / "x.jsonl")
    found = found_in(tmp_path)
    assert [file.path for file in found.files] == [path]
    path.unlink()
    os.mkfifo(path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    with pytest.raises(OSError, match="not a regular file"):
        open_transcript(found.files[0])


def test_a_tree_without_an_end_is_not_walked_to_its_end(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 100)
    write(deep / "x.jsonl")
    found = discover(chosen_places(CLAUDE, [tmp_path]))
    assert isinstance(found, NotWritten)
    assert [note.reason for note in found.passed_over] == ["lies too deep"]


# ----------------------------------------------------------------------------------------------------- one conversation


def test_a_conversation_has_all_of_its_files_and_the_hint_only_orders_them(tmp_path: Path) -> None:
    far = write(tmp_path / "-src-a" / f"{SESSION}.jsonl")
    sub = write(tmp_path / "-src-b" / SESSION / "subagents/agent-1.jsonl", f'{{"sessionId":"{SESSION}"}}\n')
    write(tmp_path / "-src-b/other.jsonl")
    for cwd, first in (("/src/b", sub), ("/src.b", sub), ("/src/a", far), (None, far), ("/nowhere", far)):
        found = find_conversation(CLAUDE, chosen_places(CLAUDE, [tmp_path]), Wanted(SESSION, cwd))
        assert isinstance(found, Found)
        assert {file.path for file in found.files} == {far, sub}
        assert found.files[0].path == first


@pytest.mark.parametrize(
    ("name", "cwd", "expected"),
    [
        ("claude-code", None, "*/s-1.jsonl"),
        ("claude-code", "/home/me/a.b", "-home-me-a-b/s-1.jsonl"),
        ("codex", "/home/me", "**/rollout-*-s-1.jsonl"),
        ("harn", None, "**/s-1/agent-llm/llm_transcript.jsonl"),
        ("ct-agents", None, "**/*.jsonl"),
        ("robota", None, "**/s-1.json"),
    ],
)
def test_a_conversation_that_nobody_wrote_yet_is_expected_somewhere(
    tmp_path: Path, name: str, cwd: str | None, expected: str
) -> None:
    write(tmp_path / "d/other.jsonl")
    write(tmp_path / "d/empty.jsonl", "")
    found = find_conversation(HARNESSES[name], chosen_places(HARNESSES[name], [tmp_path]), Wanted("s-1", cwd))
    assert found == NotWritten((tmp_path / expected,))


def test_a_conversation_in_a_place_that_cannot_be_read_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_scandir(monkeypatch, tmp_path)
    assert isinstance(find_conversation(CLAUDE, chosen_places(CLAUDE, [tmp_path]), Wanted("s")), Unavailable)
