"""What `ship` reads and from where on: growing, renamed, truncated, rewritten and replaced files, and nobody's."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.worlds.native_files import NAMESPACE, native_files
from worker.harnesses import HARNESSES
from worker.harnesses.discovery import chosen_places
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.shipping.files import ChunkLimits, Selection, ShipFiles
from worker.shipping.sender import Delivery
from worker.shipping.state import ShipState, Target
from worker.source_files import find_source_files, read_messages

SESSION = "0fae0449-64d3-4788-8622-d3a47d82c14b"
ROOMY = ChunkLimits(bytes=1_000_000, lines=1_000_000)


class Harbour:
    """A directory of transcripts and the state of their shipping; a restart keeps nothing but the state's file."""

    def __init__(self, directory: Path, harness: str = "codex") -> None:
        self.directory = directory / "place"
        self.directory.mkdir()
        self.harness = harness
        self.state_path = directory / "state.json"
        self.limits = LimitSettings()
        self.native_id: str | None = None
        self.conversation: str | None = None
        self.said: list[tuple[str, str]] = []
        self.state = ShipState.open(self.state_path)
        self.files = self._files()

    def _files(self) -> ShipFiles:
        places = {self.harness: chosen_places(HARNESSES[self.harness], [self.directory])}
        selection = Selection(places, "n", self.native_id, self.conversation)
        return ShipFiles(
            selection,
            self.state,
            self.limits,
            lambda file, text: self.said.append((file.path.name, text.split(";")[0])),
        )

    def restart(self) -> None:
        self.state.aim(Target("c", "t"))
        self.state.save()
        self.state.close()
        self.state = ShipState.open(self.state_path)
        self.files = self._files()

    def ship(self, limits: ChunkLimits = ROOMY, *, chunks_max: int = 1_000_000) -> list[str]:
        """Ship what there is, or only so many chunks of it; gives the native lines."""
        lines: list[str] = []
        chunks = self.files.chunks(self.files.scan(), limits)
        for count, chunk in enumerate(chunks):
            if count == chunks_max:
                break
            self.files.settle(chunk, Delivery({0: 1}, []))
            for row in chunk.rows:
                value = json.loads(row.value)
                lines.append(value["line"])
                assert value["byteOffset"] == row.place.byte_offset
        chunks.close()
        return lines

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)
        return path

    def offset(self) -> int:
        self.restart()
        return sum(row["offset"] for row in json.loads(self.state_path.read_bytes())["files"])


@pytest.fixture
def harbour(tmp_path: Path) -> Iterator[Harbour]:
    made = Harbour(tmp_path)
    yield made
    made.state.close()


META = '{"type":"session_meta","payload":{"id":"t-1"}}'


def rows(*numbers: int) -> list[str]:
    return [f'{{"type":"x","n":{number}}}' for number in numbers]


def text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_each_line_is_shipped_once_as_its_file_grows_also_over_restarts(harbour: Harbour) -> None:
    harbour.write("rollout-1.jsonl", text(META, *rows(1)))
    assert harbour.ship() == [META, *rows(1)]
    assert harbour.ship() == []
    harbour.write("rollout-1.jsonl", text(*rows(2)) + rows(3)[0][:5])
    assert harbour.ship() == rows(2)
    assert harbour.files.tally.unfinished == 1
    harbour.restart()
    harbour.write("rollout-1.jsonl", rows(3)[0][5:] + "\n")
    assert harbour.ship() == rows(3)
    assert (harbour.said, harbour.files.tally.unfinished) == ([], 0)


def test_a_file_of_which_nobody_can_tell_yet_whose_it_is_waits_and_is_shipped_whole(harbour: Harbour) -> None:
    harbour.write("rollout-1.jsonl", META[:20])
    assert harbour.ship() == []
    assert [note.reason for note in harbour.files.tally.passed_over] == [
        "no session_meta line names a session; say --native-id"
    ]
    harbour.write("rollout-1.jsonl", META[20:] + "\n")
    assert harbour.ship() == [META]
    assert harbour.files.tally.passed_over == []


def test_a_file_that_moves_goes_on_where_it_was_with_the_source_it_had(harbour: Harbour) -> None:
    path = harbour.write("sessions/rollout-1.jsonl", text(META, *rows(1)))
    harbour.ship()
    harbour.restart()
    (harbour.directory / "archived").mkdir()
    path.rename(harbour.directory / "archived/rollout-1.jsonl")
    harbour.write("archived/rollout-1.jsonl", text(*rows(2)))
    assert harbour.ship() == rows(2)
    assert harbour.said == []


def test_a_file_that_a_copy_of_it_replaced_goes_on_where_it_was(harbour: Harbour) -> None:
    path = harbour.write("rollout-1.jsonl", text(META, *rows(1)))
    harbour.ship()
    harbour.restart()
    copy = harbour.write("copy", text(META, *rows(1), *rows(2)))
    copy.rename(path)
    assert harbour.ship() == rows(2)
    assert harbour.said == []


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("content", "notice"),
    [
        ([META], "is shorter than what was shipped of it"),
        ([META, *rows(7, 8, 9)], "no longer begins with what was shipped of it"),
        ([META.replace("t-1", "t-2"), *rows(1, 2, 3)], "no longer begins with what was shipped of it"),
    ],
)
def test_a_file_that_was_cut_or_written_anew_is_shipped_again_and_said(
    harbour: Harbour, content: list[str], notice: str, *, restarts: bool
) -> None:
    path = harbour.write("rollout-1.jsonl", text(META, *rows(1, 2)))
    harbour.ship()
    if restarts:
        harbour.restart()
    path.write_text(text(*content))
    assert harbour.ship() == content
    assert harbour.said == [("rollout-1.jsonl", notice)]
    assert harbour.ship() == []
    assert harbour.files.tally.noticed.total() == 1


def test_a_file_that_was_emptied_is_noticed_once_it_says_something_again(harbour: Harbour) -> None:
    path = harbour.write("rollout-1.jsonl", text(META, *rows(1, 2)))
    harbour.ship()
    path.write_text("")
    assert harbour.ship() == []
    harbour.write("rollout-1.jsonl", text(META))
    assert harbour.ship() == [META]
    assert harbour.said == [("rollout-1.jsonl", "is shorter than what was shipped of it")]
    harbour.write("rollout-1.jsonl", text(*rows(3)))
    assert harbour.ship() == rows(3)


def test_another_file_under_the_same_name_is_noticed(harbour: Harbour) -> None:
    path = harbour.write("rollout-1.jsonl", text(META, *rows(1)))
    harbour.ship()
    other = harbour.write("new", text(META.replace("t-1", "t-2"), *rows(5)))
    path.unlink()
    other.rename(path)
    assert harbour.ship() == [META.replace("t-1", "t-2"), *rows(5)]
    assert harbour.said == [("rollout-1.jsonl", "is another file than the one that was shipped")]


def test_a_new_file_that_was_given_the_inode_of_a_gone_one_is_a_new_file(harbour: Harbour) -> None:
    path = harbour.write("rollout-1.jsonl", text(META, *rows(1)))
    harbour.ship()
    # Renamed and written anew is what a reused inode looks like from outside.
    path.rename(harbour.directory / "rollout-2.jsonl")
    content = [META.replace("t-1", "t-2"), *rows(4, 5)]
    (harbour.directory / "rollout-2.jsonl").write_text(text(*content))
    assert harbour.ship() == content
    assert harbour.said == []


def test_two_files_with_one_source_are_both_shipped_and_said(harbour: Harbour) -> None:
    harbour.write("a/rollout-1.jsonl", text(META))
    harbour.write("b/rollout-1.jsonl", text(META, *rows(1)))
    assert harbour.ship() == [META, META, *rows(1)]
    assert harbour.said == [("rollout-1.jsonl", "has the source id of another file")]


def test_a_rename_between_two_looks_is_no_second_file(harbour: Harbour) -> None:
    path = harbour.write("a/rollout-1.jsonl", text(META))
    harbour.ship()
    (harbour.directory / "b").mkdir()
    path.rename(harbour.directory / "b/rollout-1.jsonl")
    harbour.write("b/rollout-1.jsonl", text(*rows(1)))
    assert harbour.ship() == rows(1)
    assert harbour.said == []


def test_chunks_hold_lines_of_several_files_within_their_limits(harbour: Harbour) -> None:
    for name in ("1", "2", "3"):
        harbour.write(f"rollout-{name}.jsonl", text(META.replace("t-1", name), *rows(1, 2)))
    chunks = list(harbour.files.chunks(harbour.files.scan(), ChunkLimits(bytes=1_000_000, lines=4)))
    assert [chunk.lines for chunk in chunks] == [4, 4, 1]
    assert [len(chunk.shipped) for chunk in chunks] == [2, 2, 1]
    chunks = list(harbour.files.chunks(harbour.files.scan(), ChunkLimits(bytes=1, lines=100)))
    assert [chunk.lines for chunk in chunks] == [1] * 9 + [0]


@pytest.mark.parametrize("seed", range(8))
def test_stopped_after_any_chunk_and_restarted_every_line_is_shipped_in_order_and_once(
    harbour: Harbour, seed: int
) -> None:
    random = Random(seed)
    expected = {name: [META.replace("t-1", name), *rows(*range(40))] for name in ("a", "b", "c")}
    for name, lines in expected.items():
        harbour.write(f"rollout-{name}.jsonl", text(*lines))
    shipped: list[str] = []
    for _ in range(200):
        limits = ChunkLimits(random.randrange(1, 2_000), random.randrange(1, 20))
        shipped += harbour.ship(limits, chunks_max=random.randrange(3))
        if random.random() < 0.5:
            harbour.restart()
    assert shipped + harbour.ship() == [line for lines in expected.values() for line in lines]


def test_what_was_not_settled_is_read_again(harbour: Harbour) -> None:
    harbour.write("rollout-1.jsonl", text(META, *rows(1)))
    assert [len(chunk.rows) for chunk in harbour.files.chunks(harbour.files.scan(), ROOMY)] == [2]
    assert harbour.ship() == [META, *rows(1)]


def test_lines_that_arrive_while_it_reads_wait_for_the_next_look(harbour: Harbour) -> None:
    harbour.write("rollout-1.jsonl", text(META))
    work = harbour.files.scan()
    harbour.write("rollout-1.jsonl", text(*rows(1)))
    (chunk,) = harbour.files.chunks(work, ROOMY)
    assert len(chunk.rows) == 1
    harbour.files.settle(chunk, Delivery({}, []))
    assert harbour.ship() == rows(1)


def test_a_file_that_was_swapped_or_cut_since_the_look_is_not_read_as_what_it_was(harbour: Harbour) -> None:
    path = harbour.write("rollout-1.jsonl", text(META, *rows(1)))
    harbour.ship()
    harbour.write("rollout-1.jsonl", text(*rows(2)))
    work = harbour.files.scan()
    path.write_text(text(META))
    (chunk,) = harbour.files.chunks(work, ROOMY)
    assert (chunk.rows, chunk.shipped) == ([], [])
    work = harbour.files.scan()
    path.unlink()
    (chunk,) = harbour.files.chunks(work, ROOMY)
    assert (chunk.rows, chunk.shipped) == ([], [])


def test_refused_and_skipped_lines_are_counted_once_by_place_and_reason(harbour: Harbour) -> None:
    harbour.limits = LimitSettings(transcript_line_bytes_max=100)
    harbour.restart()
    path = harbour.write("rollout-1.jsonl", text(META, "", "x" * 101, "\0\0", *rows(1)))
    for _ in range(2):
        harbour.ship()
    tally = harbour.files.tally
    assert dict(tally.skipped) == {"blank_line": 1, "nul_line": 1}
    assert dict(tally.refused) == {"line_too_large": 1}
    (line,) = tally.refused_lines
    assert (line.where, line.reason) == ((path, len(META) + 2, 101), "line_too_large")
    assert (tally.lines, tally.bytes) == (2, len(META) + len(rows(1)[0]))


def test_what_the_topic_is_too_narrow_for_is_refused_and_passed(harbour: Harbour) -> None:
    harbour.write("rollout-1.jsonl", text(META, *rows(1)))
    (chunk,) = harbour.files.chunks(harbour.files.scan(), ROOMY)
    harbour.files.settle(chunk, Delivery({1: 7}, chunk.rows[1:]))
    tally = harbour.files.tally
    assert (tally.lines, dict(tally.refused)) == (1, {"message_too_large_for_topic": 1})
    assert harbour.state.acknowledged == {1: 7}
    assert harbour.ship() == []


def test_only_the_named_conversation_is_shipped(harbour: Harbour) -> None:
    harbour.conversation = "t-2"
    harbour.restart()
    other = META.replace("t-1", "t-2")
    harbour.write("rollout-1.jsonl", text(META))
    harbour.write("rollout-2.jsonl", text(other))
    assert harbour.ship() == [other]
    harbour.write("rollout-1.jsonl", text(*rows(1)))
    assert harbour.ship() == []


def test_another_native_id_or_namespace_is_another_shipping(harbour: Harbour) -> None:
    harbour.write("rollout-1.jsonl", text(META))
    assert harbour.ship() == [META]
    harbour.native_id = "given"
    harbour.restart()
    assert harbour.ship() == [META]
    harbour.restart()
    assert harbour.ship() == []
    assert harbour.said == []


def test_a_sessions_file_that_is_written_anew_gives_its_new_entries(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path, "robota")
    path = harbour.directory / "s.json"

    def write(count: int) -> None:
        # As programs do it that do not want to be caught half way.
        other = path.with_name("s.tmp")
        history = [{"id": f"e{number}"} for number in range(count)]
        other.write_text(json.dumps({"id": "s", "history": history}))
        other.rename(path)

    lines: list[str] = []
    for count in (2, 2, 3, 5):
        write(count)
        if count == 3:
            harbour.restart()
        before = harbour.files.tally.lines
        lines = harbour.ship()
        assert len(lines) == harbour.files.tally.lines - before
    assert [json.loads(line)["id"] for line in lines] == ["e3", "e4"]
    assert harbour.offset() == 5
    assert harbour.said == []
    path.write_text(json.dumps({"id": "another", "history": [{"id": "e0"}]}))
    assert len(harbour.ship()) == 1
    harbour.state.close()


def test_a_file_that_cannot_be_read_is_passed_over_until_it_changes(
    harbour: Harbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    harbour.write("rollout-1.jsonl", text(META))
    original = os.open

    def refuse(path: str, flags: int, *args: object, **kwargs: object) -> int:
        if path == "rollout-1.jsonl":
            raise PermissionError(13, "Permission denied")
        return original(path, flags, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert harbour.ship() == []
    assert [note.reason for note in harbour.files.tally.passed_over] == ["Permission denied"]
    harbour.write("rollout-1.jsonl", text(*rows(1)))
    assert harbour.ship() == [META, *rows(1)]


def test_files_that_are_gone_leave_the_state_at_the_next_start(harbour: Harbour) -> None:
    gone = harbour.write("rollout-1.jsonl", text(META))
    harbour.write("rollout-2.jsonl", text(META))
    harbour.ship()
    gone.unlink()
    harbour.restart()
    harbour.ship()
    harbour.restart()
    assert [Path(row["path"]).name for row in json.loads(harbour.state_path.read_bytes())["files"]] == [
        "rollout-2.jsonl"
    ]


def test_a_place_that_cannot_be_read_now_costs_nothing_of_the_state(harbour: Harbour) -> None:
    harbour.write("rollout-1.jsonl", text(META))
    harbour.ship()
    moved = harbour.directory.rename(harbour.directory.with_name("unmounted"))
    harbour.restart()
    assert harbour.ship() == []
    moved.rename(harbour.directory)
    assert harbour.ship() == []
    assert harbour.offset() == len(META) + 1


def test_what_is_shipped_is_what_project_reads(tmp_path: Path) -> None:
    for seed in range(4):
        for file in native_files(seed, turns=6):
            path = tmp_path / str(seed) / file.harness / file.path
            path.parent.mkdir(parents=True)
            path.write_bytes(file.data)
            found, _ = find_source_files(
                [tmp_path / str(seed) / file.harness], Settings(), harness=file.harness, namespace=NAMESPACE
            )
            projected = [message.value for source in found for message in read_messages(source, LimitSettings())]
            places = {file.harness: chosen_places(HARNESSES[file.harness], [tmp_path / str(seed) / file.harness])}
            state = ShipState.open(tmp_path / f"{seed}-{file.path.name}.json")
            files = ShipFiles(Selection(places, NAMESPACE), state, LimitSettings(), lambda *_: None)
            shipped = [row.value for chunk in files.chunks(files.scan(), ROOMY) for row in chunk.rows]
            state.close()
            assert shipped == projected
            shutil.rmtree(tmp_path / str(seed))
