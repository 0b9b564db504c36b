"""A fixed number of worlds, each through its own storm of faults, and each ending like one clean pass."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.faults import FAULTS, OPERATIONS, Fault
from tests.simulation.plan import make_plan
from tests.simulation.simulation import Simulation
from tests.sizes import sized

ROOT = Path(__file__).resolve().parents[2]
# `make simulate SEEDS=1000` runs as many by hand.
SEEDS = sized(10, 1_000)
_TIMEOUT_S = 1_500
_STORMS_MAX = 200
# Storms that showed everything between them when last looked at come first; the others follow until all is seen.
_STORMS_FIRST = (8, 32, 10, 7)


def simulate(*arguments: str) -> tuple[int, list[str]]:
    """Run seeds as a person would, and give exit code and lines."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("TRACE_PROJECTOR_")},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.slow
def test_every_world_ends_like_one_clean_pass_whatever_happens_on_the_way() -> None:
    code, lines = simulate("--seeds", str(SEEDS))
    assert lines[-1:] == [f"{SEEDS} passed, 0 failed"], "\n".join(lines)
    assert code == 0


def test_a_seed_is_the_same_run_every_time() -> None:
    for seed in ("1", "15"):
        runs = [simulate("--seed", seed) for _ in range(2)]
        digests = [re.findall(r"^digest (\w+)", "\n".join(lines), re.MULTILINE) for _code, lines in runs]
        assert digests[0] == digests[1] != []


def test_a_seed_that_fails_names_the_command_that_shows_it_again() -> None:
    code, lines = simulate("--seeds", "5", "--mutant", "loses-dead-letters")
    assert code == 1
    assert re.fullmatch(r"\d+ passed, 1 failed", lines[-1])
    [again] = [line for line in lines if line.startswith("  again: ")]
    code, lines = simulate(*again.split("tests.simulation ")[1].split())
    assert code == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert any(" committed " in line for line in lines), "what happened is there to be read"


def test_the_storm_strikes_at_every_request_and_with_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    struck: Counter[Fault] = Counter()

    def watched(fault: Fault) -> Fault:
        def strike(simulation: Simulation) -> None:
            struck[fault] += 1
            fault(simulation)

        return strike

    monkeypatch.setattr("tests.simulation.faults.FAULTS", {watched(fault): weight for fault, weight in FAULTS.items()})
    for seed in dict.fromkeys((*_STORMS_FIRST, *range(_STORMS_MAX))):
        plan = make_plan(seed)
        if not plan.is_fenced:
            continue
        if set(OPERATIONS) <= seen.keys() and set(FAULTS) == struck.keys():
            break
        simulation = Simulation(plan)
        simulation.broker.network.trace = lambda name: seen.update([name])
        with simulation.site.wired():
            try:
                simulation.loop.run_until_complete(simulation.run())
            finally:
                for machine in simulation.machines:
                    machine.kill()
                simulation.loop.bury()
    assert set(OPERATIONS) <= seen.keys()
    assert set(FAULTS) == struck.keys()
