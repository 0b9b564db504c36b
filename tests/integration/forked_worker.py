"""A worker as a fork of a process that has its modules loaded already, in the stead of a program that loads them.

Loading takes a worker a second of a processor, and the tests start hundreds. What a fork cannot show, how the program
starts from nothing, other tests show every day, and with TEST_SIZE=full every worker is the program itself.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

# What a worker has loaded when it is ready.
_LOADED = (
    "worker.app",
    "worker.commands.worker",
    "worker.sinks.duckdb_file",
    "worker.sinks.jsonl",
    "worker.threaded_sink",
    "uvloop",
    "duckdb",
    "aiohttp_cors",
    "faust.assignor.partition_assignor",
    "faust.fixups.base",
    "faust.tables.sets",
    "faust.tables.table",
    "faust.transport.drivers.aiokafka",
    "faust.web.drivers.aiohttp",
    "mode.threads",
)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, *_LOADED])


class ForkedProcess:
    """As much of subprocess.Popen as the tests use, of a process that the fork server forked."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Give the exit code, None while the process runs."""
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and give the exit code."""
        self._process.join(timeout_s)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout_s or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process."""
        self.send_signal(signal.SIGKILL)


def fork_worker(arguments: Sequence[str], environ: Mapping[str, str], log_path: Path) -> ForkedProcess:
    """Run the program with these arguments, its output appended to a file, in the file's directory."""
    # A daemon here is what does not outlive the tests.
    process = _context.Process(
        target=_run, args=(list(arguments), dict(environ), log_path), name=" ".join(arguments), daemon=True
    )
    process.start()
    return ForkedProcess(process)


def _run(arguments: list[str], environ: dict[str, str], log_path: Path) -> None:
    os.setsid()
    os.chdir(log_path.parent)
    os.environ.clear()
    os.environ.update(environ)
    for path, flags, standard in (
        (os.devnull, os.O_RDONLY, 0),
        (log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1),
        (log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 2),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, standard)
        os.close(opened)
    from worker.cli import main  # noqa: PLC0415  (the tests themselves import this module for less)

    sys.argv = ["trace-projector", *arguments]
    main(arguments)
