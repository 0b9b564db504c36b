"""Raw lines: only 0x0A ends one, offsets count raw bytes, and none is held beyond the limit."""

import io

import pytest

from worker.transcripts.raw_lines import RawLine, read_lines


def lines_of(data: bytes, line_bytes_max: int = 100) -> list[RawLine]:
    return list(read_lines(io.BytesIO(data), line_bytes_max))


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


def test_lines_read_from_an_offset_on_are_those_of_the_whole_from_there() -> None:
    data = "a\n\u2028\n\n\U0001f600\r\nlast".encode()
    whole = lines_of(data)
    for index, line in enumerate(whole):
        stream = io.BytesIO(data)
        stream.seek(line.byte_offset)
        assert list(read_lines(stream, 100, line.byte_offset)) == whole[index:]
        assert line.end == (whole[index + 1].byte_offset if index + 1 < len(whole) else len(data))
