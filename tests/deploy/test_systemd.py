"""The systemd unit: it waits for readiness, watches the worker, and leaves it the time that it needs to drain."""

import shutil
import subprocess
from pathlib import Path

import pytest

from worker.settings import Settings, variable_names

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "trace-projector.service"
# Of app: what is left to the pages once the roles have drained.
SPARE_S = 5.0


def directives(name: str) -> list[str]:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def test_it_is_up_when_the_worker_says_so_and_is_watched() -> None:
    assert directives("Type") == ["notify"]
    [watchdog] = directives("WatchdogSec")
    assert float(watchdog) >= 10
    assert directives("TimeoutStartSec") == ["infinity"]


def test_it_leaves_more_time_to_stop_than_draining_takes() -> None:
    [timeout] = directives("TimeoutStopSec")
    assert float(timeout) > Settings().limits.shutdown_drain_s + SPARE_S


def test_wrong_settings_are_not_tried_again() -> None:
    assert directives("RestartPreventExitStatus") == ["2"]


def test_its_variables_are_settings() -> None:
    known = set(variable_names())
    assert {line.partition("=")[0] for line in directives("Environment")} <= known


def test_systemd_takes_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    # The program that it starts is not installed here.
    text = UNIT.read_text(encoding="utf-8").replace("/opt/trace-projector/bin/trace-projector", "/bin/true")
    (tmp_path / UNIT.name).write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
