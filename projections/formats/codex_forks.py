"""Copied history of Codex forks: how many counter rows two rollouts share from their start, told in few words.

Telling every row to every relative would cost as much as the rollout, again and again. So a rollout tells a digest of
everything before each 64th row, and the rows themselves only where it parts from a relative; each side needs one
answer to know where that is.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

CHUNK_ROWS: Final = 64

_DIGEST_BYTES: Final = 8


class Shared(NamedTuple):
    """How many rows two histories share from their start, as far as is known, and the chunk in which they part."""

    row_count: int
    chunk: int


class History:
    """The counter rows of one conversation, in source order, as relatives compare them."""

    def __init__(self) -> None:
        self._rows: list[str] = []
        self._marks: list[str] = []

    def add(self, row: Any) -> int:
        """Take the next row; gives its chunk."""
        self._rows.append(_digest(row))
        chunk, place = divmod(len(self._rows) - 1, CHUNK_ROWS)
        if place + 1 == CHUNK_ROWS:
            self._marks.append(_digest(self._marks[-1:] + self._chunk(chunk)))
        return chunk

    def tell(self, parted: Iterable[int]) -> dict[str, Any]:
        """Give ``marks``, a digest per full chunk and all before it, and ``chunks``, the rows of the chunks asked."""
        return {"marks": list(self._marks), "chunks": [[chunk, self._chunk(chunk)] for chunk in sorted(parted)]}

    def compare(self, told: dict[str, Any]) -> Shared:
        """Compare with what a relative told; it may still have to tell the rows of the chunk in which the two part."""
        chunk = _common_length(self._marks, told["marks"])
        theirs: list[str] = next((rows for number, rows in told["chunks"] if number == chunk), [])
        return Shared(chunk * CHUNK_ROWS + _common_length(self._chunk(chunk), theirs), chunk)

    def _chunk(self, number: int) -> list[str]:
        return self._rows[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS]


def _digest(value: Any) -> str:
    return blake2b(orjson.dumps(value), digest_size=_DIGEST_BYTES).hexdigest()


def _common_length(rows: list[str], others: list[str]) -> int:
    pairs = enumerate(zip(rows, others, strict=False))
    return next((index for index, (row, other) in pairs if row != other), min(len(rows), len(others)))
