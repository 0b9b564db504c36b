"""Files as messages: line ends, byte offsets, limits, tombstones, and whose transcript a file is."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from projections.sources import SOURCES
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.source_files import (
    SourceFile,
    SourceFileError,
    SourceMessage,
    find_source_files,
    read_messages,
    tombstone_key,
)

SESSION = "0fae0449-64d3-4788-8622-d3a47d82c14b"


def topic_messages(path: Path, content: bytes, limits: LimitSettings | None = None) -> list[SourceMessage]:
    file = path / "workflow-runs.jsonl"
    file.write_bytes(content)
    return list(read_messages(SourceFile(file, "workflow-runs", 0, None, len(content)), limits or LimitSettings()))


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
