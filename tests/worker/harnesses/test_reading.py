"""Reading transcripts: cut anywhere, stopped anywhere and resumed, the same messages as in one go."""

import base64
import json
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.sources.transcripts import LINE_BYTES_MAX
from tests.worlds.transcripts import line_messages, project_lines, records_of
from worker.harnesses import HARNESSES
from worker.harnesses.contract import Transcript
from worker.harnesses.discovery import Found, chosen_places, discover, identify
from worker.settings_sections import LimitSettings
from worker.transcripts.files import TranscriptSource, open_transcript
from worker.transcripts.lines import BEGINNING, Checkpoint, TranscriptLine, is_continued

LIMITS = LimitSettings()
SOURCE = TranscriptSource("claude-code", "n", "s", "claude-code:n:s", "claude-code")


class Growing:
    """A transcript file that is written in pieces, and read on from a checkpoint after each."""

    def __init__(
        self,
        path: Path,
        source: TranscriptSource | None = SOURCE,
        harness: str = "claude-code",
        limits: LimitSettings = LIMITS,
    ) -> None:
        self.path = path
        self.limits = limits
        self.harness = HARNESSES[harness]
        self._source = source
        self.checkpoint = BEGINNING
        path.write_bytes(b"")

    def transcript(self) -> Transcript:
        found = discover(chosen_places(self.harness, [self.path]))
        assert isinstance(found, Found)
        (file,) = found.files
        return Transcript(file, self.harness, self._source or identify(self.harness, file, "n"))

    def write(self, piece: bytes) -> None:
        with self.path.open("ab") as stream:
            stream.write(piece)

    def read(self, *, is_closed: bool = False, at_most: int = 1_000_000) -> list[TranscriptLine]:
        """Read on from the checkpoint, no more than so many lines."""
        transcript = self.transcript()
        lines = []
        with open_transcript(transcript.file) as stream:
            assert transcript.is_document or is_continued(stream, self.checkpoint)
            reader = transcript.reader(stream, self.limits, self.checkpoint)
            for line in reader.lines(is_closed=is_closed):
                lines.append(line)
                if len(lines) >= at_most:
                    break
            self.checkpoint = reader.checkpoint()
        return lines

    def read_again(self, *, is_closed: bool = True) -> list[TranscriptLine]:
        self.checkpoint = BEGINNING
        return self.read(is_closed=is_closed)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reading")


def line_of(line: TranscriptLine) -> bytes:
    """Give the native line that a message carries."""
    value = json.loads(line.value or b"{}")
    return value["line"].encode() if "line" in value else base64.b64decode(value["lineB64"])


def values_of(lines: list[TranscriptLine]) -> list[bytes]:
    return [line.value for line in lines if line.value is not None]


# Everything that a reader of decoded text, or one that splits at more than 0x0A, gets wrong.
PIECES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [b"\xe2\x82", "\U0001f600".encode(), "a\u2028b\u0085c".encode(), b"\xef\xbb\xbf", b"\r", b"\0" * 5]
    ),
)
LINES = st.lists(
    st.tuples(st.lists(PIECES, max_size=4).map(b"".join), st.sampled_from([b"\n", b"\n", b"\r\n", b"\n\n"])).map(
        lambda parts: parts[0].replace(b"\n", b"") + parts[1]
    ),
    max_size=12,
)


@given(lines=LINES, tail=PIECES, data=st.data())
def test_a_file_cut_anywhere_and_read_on_gives_what_one_reading_gives(
    directory: Path, lines: list[bytes], tail: bytes, data: st.DataObject
) -> None:
    whole = b"".join(lines) + tail.replace(b"\n", b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    file = Growing(directory / "cut.jsonl")
    read: list[TranscriptLine] = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        file.write(whole[start:end])
        read += file.read(at_most=data.draw(st.integers(1, 5)))
        end_of_line = file.checkpoint.offset
        assert end_of_line == 0 or whole[end_of_line - 1] == 0x0A
    read += file.read()
    ends = whole.rfind(b"\n") + 1
    assert file.checkpoint.offset == ends
    file.path.write_bytes(whole[:ends])
    assert read == file.read_again()


@given(lines=LINES)
def test_a_message_is_the_line_with_its_bytes_and_its_place(directory: Path, lines: list[bytes]) -> None:
    whole = b"".join(lines)
    file = Growing(directory / "places.jsonl")
    file.write(whole)
    found = file.read()
    offset = 0
    for line, raw in zip(found, whole.split(b"\n")[:-1], strict=True):
        assert (line.byte_offset, line.size_bytes) == (offset, len(raw))
        if line.value is None:
            assert line.skipped == ("nul_line" if b"\0" in raw else "blank_line")
            assert not raw.strip(b" \t\r\0")
        else:
            assert line_of(line) == raw
            assert json.loads(line.value)["byteOffset"] == offset
        offset += len(raw) + 1


ANSWER = (
    '{{"type":"assistant","uuid":"u{0}","sessionId":"s","timestamp":"2026-10-01T00:00:0{0}.000Z","message":'
    '{{"id":"m{0}","model":"big-4","content":[],"usage":{{"input_tokens":7,"output_tokens":{0}}},"text":"{1}"}}}}'
)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_offsets_and_records_do_not_drift_behind_bytes_that_are_no_text(
    tmp_path: Path, ending: str, start: str
) -> None:
    rows = [start + ANSWER.format(1, "@"), ANSWER.format(2, "plain"), ANSWER.format(3, "\U0001f600")]
    whole = "".join(row + ending for row in rows).encode().replace(b"@", b"\xe2\x82")
    emoji = whole.index("\U0001f600".encode())
    expected = project_lines(line_messages(SOURCE._asdict(), whole))
    for cuts in ([], [emoji + 2], [whole.index(b"\xe2\x82") + 1, emoji + 1, emoji + 3]):
        file = Growing(tmp_path / "x.jsonl")
        values = []
        for first, last in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            file.write(whole[first:last])
            values += values_of(file.read())
        cluster = project_lines(values)
        assert (cluster.records, cluster.dead) == (expected.records, expected.dead)
        assert len(records_of(cluster, "cost")) == 3


def test_a_killed_writers_leavings_cost_nothing_but_themselves(tmp_path: Path) -> None:
    glued = b'{"type":"assistant","uu{"type":"user","uuid":"u2"}\n'
    padded = ANSWER.format(3, "x").encode() + b"\0" * 64 + b"\n"
    good = ANSWER.format(4, "x").encode() + b"\n"
    file = Growing(tmp_path / "x.jsonl")
    file.write(glued + padded + b"\0" * 200 + b"\n" + good + good[:50])
    lines = file.read()
    assert [line.skipped for line in lines] == [None, None, "nul_line", None]
    cluster = project_lines(values_of(lines))
    assert cluster.dead == ["line_invalid_json"]
    assert [cost["span"]["byteLength"] for cost in records_of(cluster, "cost")] == [len(padded) - 1, len(good) - 1]
    assert file.read() == []
    file.write(good[50:])
    (last,) = file.read()
    assert line_of(last) == good[:-1]


def test_an_unfinished_last_line_waits_and_a_closed_file_gives_it_if_it_parses(tmp_path: Path) -> None:
    file = Growing(tmp_path / "x.jsonl")
    file.write(b'{"a":1}\n{"b":2}')
    assert [line_of(line) for line in file.read()] == [b'{"a":1}']
    (last,) = file.read(is_closed=True)
    assert line_of(last) == b'{"b":2}'
    file.write(b',"c"')
    (torn,) = [line for line in file.read_again() if line.skipped]
    assert (torn.skipped, torn.value) == ("unfinished_line", None)


def test_a_closed_files_last_line_may_hold_what_the_projection_overlooks(tmp_path: Path) -> None:
    for last in (b'\xef\xbb\xbf{"b":"\xe2\x82"}', b'{"b":2}\0\0', b'{"b":2}\r'):
        file = Growing(tmp_path / "x.jsonl")
        file.write(last)
        assert [line_of(line) for line in file.read(is_closed=True)] == [last]


def test_a_line_beyond_the_limit_is_refused_when_it_is_complete_and_hides_no_other(tmp_path: Path) -> None:
    file = Growing(tmp_path / "x.jsonl", limits=LimitSettings(transcript_line_bytes_max=20))
    file.write(b'{"a":1}\n' + b"x" * 3_000_000)
    assert len(file.read()) == 1
    file.write(b"x\n" + b'{"b":2}\n')
    refused, good = file.read()
    assert (refused.refused, refused.value, refused.byte_offset, refused.size_bytes) == (
        "line_too_large",
        None,
        8,
        3_000_001,
    )
    assert line_of(good) == b'{"b":2}'


def test_the_longest_line_fits_into_a_message_whatever_its_bytes_are(tmp_path: Path) -> None:
    for filler in (b"x", b'"', b"\0", b"\x01", b"\xff", "\U0001f600".encode()):
        file = Growing(tmp_path / "x.jsonl")
        line = b"[" + filler * ((LINE_BYTES_MAX - 2) // len(filler)) + b"]"
        file.write(line + b"\n")
        (message,) = file.read()
        assert len(message.value or b"") <= LIMITS.message_bytes_max
        assert line_of(message) == line


def test_messages_are_keyed_by_their_conversation(tmp_path: Path) -> None:
    source = SOURCE._replace(namespace="host a", nativeId="s/1")
    file = Growing(tmp_path / "x.jsonl", source)
    file.write(b"{}\n")
    assert [line.key for line in file.read()] == [b"conversation:claude-code:host%20a:s%2F1"]


# ----------------------------------------------------------------------------------------------------------- continuity


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[:0],
        lambda data: b"X" + data[1:],
        lambda data: data[:-2] + b"X" + data[-1:],
        lambda data: data[7:] + data[:7],
    ],
    ids=["cut", "emptied", "another beginning", "another end", "shifted"],
)
def test_a_file_that_is_not_what_it_was_is_noticed(tmp_path: Path, change: Any) -> None:
    file = Growing(tmp_path / "x.jsonl")
    data = b"".join(b'{"n":%d}\n' % number for number in range(1_000))
    file.write(data)
    file.read()
    file.path.write_bytes(change(data))
    with open_transcript(file.transcript().file) as stream:
        assert not is_continued(stream, file.checkpoint)


def test_a_file_that_only_grew_is_the_same(tmp_path: Path) -> None:
    file = Growing(tmp_path / "x.jsonl")
    for number in range(300):
        file.write(b'{"n":%d}\n' % number)
        assert len(file.read()) == 1


# ------------------------------------------------------------------------------------------------------------ documents


def entry(number: int, text: str = "x") -> dict[str, Any]:
    return {"id": f"e{number}", "timestamp": "2026-10-01T00:00:00.000Z", "type": "user", "data": {"content": text}}


def session(*entries: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"id": "s-1", "history": list(entries), **more}).encode()


def test_a_session_gives_its_new_entries_each_time_it_is_written_anew(tmp_path: Path) -> None:
    file = Growing(tmp_path / "s.json", None, "robota")
    file.path.write_bytes(session(entry(0), entry(1)))
    first = [json.loads(value) for value in values_of(file.read())]
    assert [(value["source"]["sourceId"], value["ordinal"], value["byteOffset"]) for value in first] == [
        ("robota:n:s-1#e0", 0, 0),
        ("robota:n:s-1#e1", 1, 0),
    ]
    assert file.read() == []
    file.path.write_bytes(session(entry(0), entry(1), entry(2), updatedAt="later"))
    assert [json.loads(value)["ordinal"] for value in values_of(file.read())] == [2]


@pytest.mark.parametrize("entries", [[entry(0, "other"), entry(1), entry(2)], [entry(0)], [entry(1), entry(0)], []])
def test_a_session_with_another_history_is_given_whole(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    file = Growing(tmp_path / "s.json", None, "robota")
    file.path.write_bytes(session(entry(0), entry(1)))
    file.read()
    file.path.write_bytes(session(*entries))
    assert [json.loads(value)["ordinal"] for value in values_of(file.read())] == list(range(len(entries)))
    assert file.read() == []


@given(entries=st.lists(st.integers(0, 3), max_size=8), data=st.data())
def test_a_session_read_a_few_entries_at_a_time_gives_what_one_reading_gives(
    directory: Path, entries: list[int], data: st.DataObject
) -> None:
    file = Growing(directory / "steps.json", None, "robota")
    rows = [entry(number) for number in entries]
    read: list[TranscriptLine] = []
    for count in sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4))):
        file.path.write_bytes(session(*rows[:count]))
        read += file.read(at_most=data.draw(st.integers(1, 3)))
    file.path.write_bytes(session(*rows))
    read += file.read()
    assert values_of(read) == values_of(file.read_again())


def test_a_session_that_is_half_written_waits(tmp_path: Path) -> None:
    file = Growing(tmp_path / "s.json", TranscriptSource("robota", "n", "s-1", "robota:n:s-1", "robota"), "robota")
    data = session(entry(0, "\U0001f600"))
    for cut in (1, data.index(b"\\ud83d") + 3, len(data) - 1):
        file.path.write_bytes(data[:cut])
        assert file.read() == []
        assert [line.refused for line in file.read(is_closed=True)] == ["invalid_json"]
    file.path.write_bytes(data)
    assert len(file.read()) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"id":"s-2","history":[]}', "another_session"),
        (b'{"id":"s-1","history":7}', "invalid_field"),
        (b'{"id":"s-1","history":[{"id":"\\ud83d"}]}', "lone_surrogate"),
        (b'{"id":"s-1"}', "not_a_session"),
    ],
)
def test_a_session_that_cannot_be_split_is_refused_by_its_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    file = Growing(tmp_path / "s.json", TranscriptSource("robota", "n", "s-1", "robota:n:s-1", "robota"), "robota")
    file.path.write_bytes(data)
    assert [(line.refused, line.value) for line in file.read()] == [(reason, None)]
    assert file.checkpoint == Checkpoint(0, "", "")


def test_a_document_or_an_entry_beyond_the_limits_is_refused(tmp_path: Path) -> None:
    file = Growing(tmp_path / "s.json", None, "robota", LimitSettings(transcript_line_bytes_max=200))
    file.path.write_bytes(session(entry(0, "x" * 300), entry(1)))
    assert [line.refused for line in file.read()] == ["line_too_large", None]
    file.limits = LimitSettings(in_flight_bytes_max=100)
    file.checkpoint = BEGINNING
    assert [line.refused for line in file.read()] == ["document_too_large"]


def test_an_agent_result_is_one_line_once_it_is_all_there(tmp_path: Path) -> None:
    source = TranscriptSource("harn", "n", "run-1", "harn:n:run-1:agent-result.json", "harn")
    file = Growing(tmp_path / "agent-result.json", source, "harn")
    result = json.dumps({"status": "ok", "llm": None}, indent=2).encode() + b"\n"
    file.write(result[:20])
    assert file.read() == []
    file.write(result[20:])
    (line,) = file.read()
    assert line_of(line) == result
    assert json.loads(line.value or b"")["source"] == source._asdict()
    assert file.read() == []
    file.path.write_bytes(result.replace(b"ok", b"no"))
    assert len(file.read()) == 1


def test_the_document_of_a_harness_is_told_by_its_name() -> None:
    assert HARNESSES["harn"].split(PurePath("run/agent-llm/llm_transcript.jsonl")) is None
    assert HARNESSES["harn"].split(PurePath("run/agent-result.json")) is not None
    assert HARNESSES["claude-code"].split(PurePath("x.json")) is None


# ------------------------------------------------------------------------------------------------- many sessions in one


def test_an_event_belongs_to_the_session_that_it_names(tmp_path: Path) -> None:
    file = Growing(tmp_path / "events.jsonl", None, "ct-agents")
    rows = [
        {"sessionId": "a", "type": "user.message"},
        {"kind": "event", "event": {"sessionId": "b", "type": "user.message"}},
        {"type": "user.message"},
        {"kind": "heartbeat"},
    ]
    file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows) + b"{torn\n" + b'{"sessionId":"\\ud83d"}\n')
    lines = file.read()
    assert [json.loads(value)["source"]["sourceId"] for value in values_of(lines)] == [
        f"ct-agents:n:{name}:events.jsonl" for name in ("a", "b", "a", "a", "a")
    ]
    assert [line.key.decode() for line in lines[:3]] == [f"conversation:ct-agents:n:{name}" for name in ("a", "b", "a")]
    assert lines[-1].refused == "lone_surrogate"
