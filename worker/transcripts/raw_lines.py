"""Lines as raw bytes: only 0x0A ends one, offsets count raw bytes, and no line beyond the limit is held."""

from collections.abc import Iterator
from typing import IO, NamedTuple

_CHUNK_BYTES = 1 << 20


class RawLine(NamedTuple):
    """One physical line: its first byte's offset, its bytes without the newline (None beyond the limit), its length."""

    byte_offset: int
    content: bytes | None
    size_bytes: int
    terminated: bool

    @property
    def end(self) -> int:
        """The offset of the first byte after the line and its newline."""
        return self.byte_offset + self.size_bytes + self.terminated


def read_lines(stream: IO[bytes], line_bytes_max: int, byte_offset: int = 0) -> Iterator[RawLine]:
    """Yield the lines of a binary stream that stands at a line's start, ``byte_offset`` bytes into its file.

    An over-long line is passed over in pieces and yielded without its content; only the last one may lack its newline.
    """
    while piece := stream.readline(line_bytes_max + 1):
        size = len(piece)
        content: bytes | None = piece
        while not piece.endswith(b"\n") and size > line_bytes_max:
            content = None
            piece = stream.readline(_CHUNK_BYTES)
            if not piece:
                break
            size += len(piece)
        terminated = piece.endswith(b"\n")
        bare = size - terminated
        yield RawLine(byte_offset, content if content is None else content[:bare], bare, terminated)
        byte_offset += size
