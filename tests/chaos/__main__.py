"""Runs chaos by hand: ``python -m tests.chaos --cycles 20 --seed 7``; other scenarios: scale, outage, soak."""

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.brokers.broker import BrokerUnavailableError
from tests.chaos.plan import QUICK, THOROUGH, plan
from tests.chaos.rig import Rig, cluster_of
from tests.chaos.storm import Outcome, run_scaling, run_storm
from tests.integration.pipeline import KEY, KEY_VARIABLE

_SCENARIOS = ("storm", "scale")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one scenario; 0 when it passed."""
    options = _parser().parse_args(arguments)
    if options.seed is None:
        options.seed = secrets.randbelow(10_000)
    os.environ[KEY_VARIABLE] = KEY
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="trace-projector-chaos-"))
    try:
        outcome = _run(options, directory)
    except BrokerUnavailableError as error:
        _say(str(error))
        shutil.rmtree(directory)
        return 1
    for line in outcome.figures:
        _say(line)
    if outcome.failed:
        for problem in outcome.problems:
            _say(f"problem: {problem}")
        _say(f"seed {options.seed} failed; again: {command(options)}")
        _say(f"logs and files are kept in {directory}")
    else:
        shutil.rmtree(directory)
    _say(f"{outcome.passed} passed, {outcome.failed} failed")
    return 1 if outcome.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenario", nargs="?", choices=_SCENARIOS, default="storm")
    parser.add_argument("--cycles", type=int, default=5, help="storm: how many faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="storm, scale: which faults and messages (default: a new one)")
    parser.add_argument("--quick", action="store_true", help="storm: do not wait for recovery between faults")
    parser.add_argument("--nodes", type=int, default=3, help="storm, scale: how many brokers (default: %(default)s)")
    return parser


def command(options: argparse.Namespace) -> str:
    """Give the command that runs the same once more."""
    words = [os.path.relpath(sys.executable), "-m", "tests.chaos", options.scenario, f"--seed {options.seed}"]
    if options.scenario == "storm":
        words += [f"--cycles {options.cycles}", *(["--quick"] if options.quick else [])]
    return " ".join(words)


def _run(options: argparse.Namespace, directory: Path) -> Outcome:
    with cluster_of(options.nodes) as cluster:
        _say(f"{cluster.name}; seed {options.seed}; {directory}")
        rig = Rig(cluster, "chaos", directory)
        try:
            rig.prepare()
            if options.scenario == "scale":
                return run_scaling(rig, options.seed, _say, stage_s=5.0)
            pace = QUICK if options.quick else THOROUGH
            faults = plan(options.seed, options.cycles, pace)
            return run_storm(rig, faults, options.seed, _say, awaits_recovery=pace.awaits_recovery)
        except AssertionError as error:
            return Outcome(failed=1, problems=[str(error)])
        finally:
            rig.close()
            rig.keep_broker_logs()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
