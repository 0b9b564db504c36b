"""The state of `ship`: replaced whole, held by one process, bound to one topic, found again by path and by inode."""

import json
import os
import stat
from pathlib import Path, PurePath

import pytest

from worker.shipping.state import Shipped, ShipState, ShipStateError, Target
from worker.transcripts.files import TranscriptFile, TranscriptSource
from worker.transcripts.lines import Checkpoint

TARGET = Target("cluster", "transcripts")
SOURCE = TranscriptSource("codex", "n", "s", "codex:n:s", "codex")


def shipped(path: str = "/x/a.jsonl", inode: int = 7, offset: int = 10, source: TranscriptSource = SOURCE) -> Shipped:
    return Shipped(path, (1, inode), source, Checkpoint(offset, "head", "tail"))


def file(path: str = "/x/a.jsonl", inode: int = 7) -> TranscriptFile:
    return TranscriptFile(Path(path).parent, PurePath(Path(path).name), 0, 0, 1, inode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "ship.json"


def reopened(state: ShipState, path: Path) -> ShipState:
    state.save()
    state.close()
    return ShipState.open(path)


def test_what_was_noted_is_there_after_a_restart(path: Path) -> None:
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped())
    state.acknowledged[2] = 41
    state = reopened(state, path)
    assert state.target == TARGET
    assert state.acknowledged == {2: 41}
    assert state.at_path("codex", "n", file(inode=99)) == shipped()
    assert state.renamed_or_same("codex", "n", file("/y/b.jsonl")) == shipped()
    assert state.at_path("codex", "other namespace", file()) is None
    assert state.renamed_or_same("claude-code", "n", file()) is None


def test_a_renamed_file_is_kept_under_its_new_path_only(path: Path) -> None:
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped())
    state.note(shipped("/x/archived.jsonl", offset=20))
    state = reopened(state, path)
    assert state.at_path("codex", "n", file()) is None
    assert state.at_path("codex", "n", file("/x/archived.jsonl")) == shipped("/x/archived.jsonl", offset=20)


def test_a_file_that_took_anothers_place_takes_it_in_the_state_too(path: Path) -> None:
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped(inode=7))
    state.note(shipped(inode=8, offset=1))
    state = reopened(state, path)
    assert state.renamed_or_same("codex", "n", file(inode=7)) is None
    assert state.at_path("codex", "n", file()) == shipped(inode=8, offset=1)


def test_files_that_are_gone_are_forgotten_but_only_below_places_that_were_looked_into(
    path: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here.jsonl"
    here.touch()
    names = (here, tmp_path / "gone.jsonl", tmp_path / "moved.jsonl", Path("/elsewhere/gone.jsonl"))
    state = ShipState.open(path)
    for inode, name in enumerate(names):
        state.note(shipped(str(name), inode))
    state.drop_gone([tmp_path], {(1, 2)})
    kept = [name.name for name in names if state.at_path("codex", "n", file(str(name))) is not None]
    assert kept == ["here.jsonl", "moved.jsonl", "gone.jsonl"]


def test_a_path_of_any_bytes_is_kept(path: Path) -> None:
    name = os.fsdecode(b"/x/\xff\xfe.jsonl")
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped(name))
    assert reopened(state, path).at_path("codex", "n", file(name)) == shipped(name)


def test_it_is_private(path: Path) -> None:
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped())
    state.save()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()} == {0o600}


def test_two_processes_cannot_have_it(path: Path) -> None:
    state = ShipState.open(path)
    with pytest.raises(ShipStateError, match="in use by another") as caught:
        ShipState.open(path)
    assert caught.value.usage
    state.close()
    ShipState.open(path).close()


@pytest.mark.parametrize("other", [Target("cluster", "others"), Target("other", "transcripts")])
def test_a_state_about_another_topic_or_cluster_is_refused(path: Path, other: Target) -> None:
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped())
    state = reopened(state, path)
    with pytest.raises(ShipStateError, match="another topic or cluster; say --state") as caught:
        state.aim(other)
    assert caught.value.usage


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":2}', b'{"version":1}', b"\xff"])
def test_a_damaged_state_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ShipStateError, match="is no state of `ship`"):
        ShipState.open(path)
    assert path.read_bytes() == content
    # The refusal lets go of the lock.
    path.unlink()
    ShipState.open(path).close()


def test_a_failed_save_leaves_the_last_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped())
    state.save()
    before = path.read_bytes()
    state.note(shipped(offset=20))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ShipStateError, match=r"cannot write .*: No space left on device"):
            state.save()
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.tmp"))
    state.save()
    assert json.loads(path.read_bytes())["files"][0]["offset"] == 20


def test_nothing_is_written_when_nothing_has_changed(path: Path) -> None:
    state = ShipState.open(path)
    state.aim(TARGET)
    state.note(shipped())
    state.save()
    written = path.stat().st_ino
    state.note(shipped())
    state.save()
    assert path.stat().st_ino == written


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShipStateError, match=r"cannot open .*ship\.json: Not a directory|File exists"):
        ShipState.open(tmp_path / "file" / "ship.json")
