"""The program with one fault: it is killed right behind a step on the way to durability, named by KILL_BEHIND.

``step:count`` kills it behind the step's so-and-so-many-th time with something to make durable.
"""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from worker.kafka import BatchWriter, FencedWriter, TopicPartition
from worker.state import LocalState

STEP, _, COUNT = os.environ["KILL_BEHIND"].partition(":")

_left = int(COUNT)


def _reached(step: str) -> None:
    global _left  # noqa: PLW0603  (one process, one fault)
    if step == STEP:
        _left -= 1
        if not _left:
            os.kill(os.getpid(), signal.SIGKILL)


_send, _commit, _write = BatchWriter.send, FencedWriter.commit, LocalState.write


async def _send_outputs(self: BatchWriter) -> None:
    has_outputs = not self.is_empty()
    await _send(self)
    # Those of the fold, in a transaction that is still open.
    if has_outputs and isinstance(self, FencedWriter):
        _reached("outputs-flushed")


async def _commit_offsets(self: FencedWriter, positions: Mapping[TopicPartition, int]) -> None:
    await _commit(self, positions)
    _reached("offsets-committed")


async def _write_state(self: LocalState, position: int, totals: Mapping[str, int] | None) -> None:
    has_rows = self.waiting_rows > 0
    await _write(self, position, totals)
    if has_rows:
        _reached("state-written")


def _patch(owner: Any, name: str, method: Any) -> None:
    setattr(owner, name, method)


_patch(BatchWriter, "send", _send_outputs)
_patch(FencedWriter, "commit", _commit_offsets)
_patch(LocalState, "write", _write_state)

if __name__ == "__main__":
    from worker.cli import main

    main(sys.argv[1:])
