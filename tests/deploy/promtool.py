"""Prometheus' own tool, which reads rules and plays series against them; Debian has it in the package prometheus."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def promtool(*arguments: str) -> str:
    """Run the tool and give what it printed; a failure of it fails the test. Without the tool the test is skipped."""
    program = shutil.which("promtool")
    if program is None:
        # What a check run has to prove is not skipped there.
        assert not os.environ.get("CI"), "promtool is missing: apt-get install prometheus"
        pytest.skip("no promtool on PATH (apt-get install prometheus)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def play(rules: Path, series: dict[str, str], expr: str, minutes: int, expected: dict[str, float], home: Path) -> None:
    """Play series, a value a minute, and compare what an expression gives at a minute: label text to value."""
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
        ],
    }
    document = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}
    # JSON is YAML.
    (home / "series.yaml").write_text(json.dumps(document), encoding="utf-8")
    promtool("test", "rules", str(home / "series.yaml"))
