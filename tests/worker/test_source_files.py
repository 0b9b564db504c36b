"""Files as messages: line ends, byte offsets, limits, tombstones, and whose transcript a file is."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from projections.sources import SOURCES
from worker.settings import LimitSettings, Settings
from worker.source_files import (
    RawLine,
    SourceFile,
    SourceFileError,
    SourceMessage,
    find_source_files,
    read_lines,
    read_messages,
    tombstone_key,
)
from worker.transcript_files import TranscriptSource, find_transcript_source

SESSION = "0fae0449-64d3-4788-8622-d3a47d82c14b"


def lines_of(data: bytes, line_bytes_max: int = 100) -> list[RawLine]:
    return list(read_lines(io.BytesIO(data), line_bytes_max))


def topic_messages(path: Path, content: bytes, limits: LimitSettings | None = None) -> list[SourceMessage]:
    file = path / "workflow-runs.jsonl"
    file.write_bytes(content)
    return list(read_messages(SourceFile(file, "workflow-runs", 0, None, len(content)), limits or LimitSettings()))


def test_only_byte_0a_ends_a_line_and_offsets_count_raw_bytes() -> None:
    parts = ["a\u2028b".encode(), "c\u0085d\u2029".encode(), b"\xe2\x82", b"e\rf", "\U0001f600".encode()]
    lines = lines_of(b"\n".join(parts) + b"\n")
    assert [line.content for line in lines] == parts
    offset = 0
    for line, part in zip(lines, parts, strict=True):
        assert (line.byte_offset, line.size_bytes, line.terminated) == (offset, len(part), True)
        offset += len(part) + 1


def test_a_carriage_return_before_the_newline_is_part_of_the_line() -> None:
    assert [line.content for line in lines_of(b"a\r\nb\r\n")] == [b"a\r", b"b\r"]


def test_an_empty_stream_has_no_lines() -> None:
    assert lines_of(b"") == []


@pytest.mark.parametrize("size", [10, 11, 12, 5_000_000])
@pytest.mark.parametrize("terminated", [True, False])
def test_a_line_is_kept_up_to_the_limit_and_passed_over_beyond_it(size: int, *, terminated: bool) -> None:
    end = b"\n" if terminated else b""
    lines = lines_of(b"x" * size + end + (b"next" if terminated else b""), line_bytes_max=10)
    assert lines[0].size_bytes == size
    assert lines[0].terminated is terminated
    assert (lines[0].content is not None) is (size <= 10)
    if terminated:
        assert lines[1] == RawLine(size + 1, b"next", 4, terminated=False)


def test_a_line_beyond_the_limit_is_refused_and_the_next_one_read(tmp_path: Path) -> None:
    limits = LimitSettings(message_bytes_max=8)
    first, second = topic_messages(tmp_path, b'{"a":"xxxxxxxx"}\n{}\n', limits)
    assert (first.refused, first.value, first.size_bytes) == ("message_too_large", None, 16)
    assert second.value == b"{}"


def test_blank_lines_are_skipped_and_an_unfinished_last_line_waits(tmp_path: Path) -> None:
    messages = topic_messages(tmp_path, b'{}\n \t\r\n{"a":')
    assert [message.skipped for message in messages] == [None, "blank_line", "unfinished_line"]


def test_a_last_line_without_newline_is_taken_when_it_parses(tmp_path: Path) -> None:
    (message,) = topic_messages(tmp_path, b'{"a":1}')
    assert (message.value, message.skipped) == (b'{"a":1}', None)


def test_the_offset_of_a_message_is_its_line_and_its_place_names_both(tmp_path: Path) -> None:
    second = topic_messages(tmp_path, b"{}\n{}\n")[1]
    assert second.offset == 1
    assert second.place == f"{tmp_path}/workflow-runs.jsonl:2"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"key":"r1","value":null}', b"r1"),
        (b' { "value" : null , "key" : "r 1" } ', b"r 1"),
        (b'{"key":{"id":"r1"},"value":null}', b'{"id":"r1"}'),
        (b'{"key":"","value":null}', b""),
        (b'{"key":"r1","value":{}}', None),
        (b'{"key":"r1","value":null,"x":1}', None),
        (b'{"key":"r1"}', None),
        (b'{"key":"r1","value":null', None),
        (b'["key",null]', None),
    ],
)
def test_a_line_with_just_a_key_and_a_null_value_is_a_tombstone(line: bytes, key: bytes | None) -> None:
    assert tombstone_key(line) == key


def test_a_directory_gives_its_topic_files_in_the_order_of_the_sources(tmp_path: Path) -> None:
    for name in ("transcripts", "workflow-runs", "erasures", "other"):
        (tmp_path / f"{name}.jsonl").write_text("")
    (tmp_path / "readme.txt").write_text("")
    files, passed_over = find_source_files([tmp_path], Settings(), harness=None, namespace=None)
    assert [file.source for file in files] == [
        source for source in SOURCES if source in {"transcripts", "workflow-runs", "erasures"}
    ]
    assert [path.name for path, _ in passed_over] == ["other.jsonl"]


def test_files_may_be_named_after_the_topics_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "prod.runs.jsonl").write_text("")
    settings = Settings.model_validate({"topics": {"workflow_runs": "prod.runs"}})
    files, _ = find_source_files([tmp_path / "prod.runs.jsonl"], settings, harness=None, namespace=None)
    assert [file.source for file in files] == ["workflow-runs"]


def test_each_file_is_a_partition_of_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "workflow-runs.jsonl").write_text("")
    files, _ = find_source_files([tmp_path / "a", tmp_path / "b"], Settings(), harness=None, namespace=None)
    assert len({file.partition for file in files}) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "none", "no such file"),
        (lambda path: path, "holds no topic file"),
        (lambda path: _touch(path / "foo.jsonl"), "not named after a topic"),
    ],
)
def test_a_path_with_nothing_to_read_is_a_usage_error_with_a_hint(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    with pytest.raises(SourceFileError, match=words) as caught:
        find_source_files([make(tmp_path)], Settings(), harness=None, namespace=None)
    assert caught.value.usage


def _touch(path: Path) -> Path:
    path.touch()
    return path


def test_transcripts_need_a_namespace(tmp_path: Path) -> None:
    path = _touch(tmp_path / f"{SESSION}.jsonl")
    with pytest.raises(SourceFileError, match="--namespace"):
        find_source_files([path], Settings(), harness="claude-code", namespace=None)


def test_one_native_id_cannot_name_two_files(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        _touch(tmp_path / name)
    with pytest.raises(SourceFileError, match="--native-id"):
        find_source_files([tmp_path], Settings(), harness="claude-code", namespace="n", native_id="x")


def test_a_transcript_of_nobody_among_others_is_passed_over_and_alone_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"sessionId": "s"})
    empty = _touch(tmp_path / "b.jsonl")
    files, passed_over = find_source_files([tmp_path], Settings(), harness="claude-code", namespace="n")
    assert [file.path.name for file in files] == ["a.jsonl"]
    assert passed_over == [(empty, "no line names a session; say --native-id")]
    with pytest.raises(SourceFileError, match="no line names a session"):
        find_source_files([empty], Settings(), harness="claude-code", namespace="n")


def test_a_directory_without_transcripts_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(SourceFileError, match=r"holds no \.jsonl file"):
        find_source_files([tmp_path], Settings(), harness="claude-code", namespace="n")


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_claude_code_file_named_by_its_session_has_that_native_id(tmp_path: Path) -> None:
    path = write_lines(tmp_path / f"{SESSION}.jsonl", {"sessionId": "another"})
    assert find_transcript_source(path, "claude-code", "host a") == TranscriptSource(
        "claude-code", "host a", SESSION, f"claude-code:host%20a:{SESSION}", "claude-code"
    )


def test_another_claude_code_file_takes_the_session_of_its_last_line_that_names_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "session.jsonl", {"sessionId": "old"}, {"sessionId": "new"}, {"type": "summary"})
    assert find_transcript_source(path, "claude-code", "n").nativeId == "new"


def test_a_torn_last_line_does_not_hide_the_session(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(b'{"sessionId":"s"}\n{"sessionId":"t"')
    assert find_transcript_source(path, "claude-code", "n").nativeId == "s"


def test_a_subagents_file_belongs_to_the_main_session_with_a_source_id_of_its_own(tmp_path: Path) -> None:
    row = {"sessionId": "main", "isSidechain": True, "agentId": "a/1"}
    path = write_lines(tmp_path / "agent-x.jsonl", row, row)
    found = find_transcript_source(path, "claude-code", "n")
    assert (found.nativeId, found.sourceId) == ("main", "claude-code:n:main:a%2F1")


def test_a_sidechain_inside_the_main_file_does_not_make_it_a_subagents_file(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "m.jsonl", {"sessionId": "main"}, {"sessionId": "main", "isSidechain": True, "agentId": "a"}
    )
    assert find_transcript_source(path, "claude-code", "n").sourceId == "claude-code:n:main"


def test_a_codex_file_takes_the_id_of_its_session_meta(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollout 1.jsonl", {"type": "session_meta", "payload": {"id": "t-1"}})
    found = find_transcript_source(path, "codex", "n")
    assert (found.nativeId, found.sourceId) == ("t-1", "codex-rollout:n:t-1:rollout%201.jsonl")


@pytest.mark.parametrize("harness", ["claude-code", "codex", "harn"])
def test_a_file_that_names_no_conversation_asks_for_a_native_id(tmp_path: Path, harness: str) -> None:
    path = write_lines(tmp_path / "x.jsonl", {"type": "user"})
    with pytest.raises(ValueError, match="--native-id"):
        find_transcript_source(path, harness, "n")
    assert find_transcript_source(path, harness, "n", "given").nativeId == "given"


def test_native_lines_are_wrapped_with_their_byte_offset_and_invalid_utf8_travels_as_base64(tmp_path: Path) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    path.write_bytes(b'{"a":"\xe2\x82"}\n' + '{"b":"\u2028"}\n'.encode())
    (file,), _ = find_source_files([path], Settings(), harness="claude-code", namespace="n")
    first, second = (json.loads(message.value or b"") for message in read_messages(file, LimitSettings()))
    assert first["byteOffset"] == 0
    assert base64.b64decode(first["lineB64"]) == b'{"a":"\xe2\x82"}'
    assert second["byteOffset"] == 11
    assert second["line"] == '{"b":"\u2028"}'
    assert second["source"]["nativeId"] == SESSION
