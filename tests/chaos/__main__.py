"""Runs chaos by hand: ``python -m tests.chaos --cycles 20 --seed 7``; other scenarios: scale, outage, poison, soak."""

import argparse
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.brokers.broker import BrokerUnavailableError
from tests.chaos.outage import run_outage
from tests.chaos.plan import QUICK, THOROUGH, plan
from tests.chaos.poison import run_poison
from tests.chaos.rig import Rig, broker_of, cluster_of
from tests.chaos.soak import run_soak
from tests.chaos.storm import Outcome, run_scaling, run_storm
from tests.integration.pipeline import KEY, KEY_VARIABLE

_SCENARIOS = ("storm", "scale", "outage", "poison", "soak")
# These are about one worker and not about brokers.
_ON_ONE_NODE = ("outage", "poison", "soak")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one scenario; 0 when it passed."""
    options = _parser().parse_args(arguments)
    if options.seed is None:
        options.seed = secrets.randbelow(10_000)
    os.environ[KEY_VARIABLE] = KEY
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="trace-projector-chaos-"))
    # What clients of this process complain of while brokers are down is kept beside the logs of the others.
    logging.basicConfig(filename=directory / "chaos.log", format="%(asctime)s %(name)s %(message)s")
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
        _say(f"again: {command(options)}")
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
    parser.add_argument("--seconds", type=float, default=60, help="outage: how long (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="soak: how long (default: %(default)s)")
    parser.add_argument(
        "--rate", type=int, default=1_000, help="outage, soak: messages a second (default: %(default)s)"
    )
    return parser


def command(options: argparse.Namespace) -> str:
    """Give the command that runs the same once more."""
    words = [os.path.relpath(sys.executable), "-m", "tests.chaos", options.scenario]
    words += {
        "storm": [f"--seed {options.seed}", f"--cycles {options.cycles}", *(["--quick"] if options.quick else [])],
        "scale": [f"--seed {options.seed}"],
        "outage": [f"--seconds {options.seconds:g}", f"--rate {options.rate}"],
        "poison": [],
        "soak": [f"--minutes {options.minutes:g}", f"--rate {options.rate}"],
    }[options.scenario]
    return " ".join(words)


def _run(options: argparse.Namespace, directory: Path) -> Outcome:
    with cluster_of(1 if options.scenario in _ON_ONE_NODE else 3) as cluster:
        _say(f"{cluster.name}; {command(options)}; {directory}")
        rig = Rig(broker_of(cluster), cluster.nodes, "chaos", directory)
        try:
            rig.prepare()
            return _play(rig, options)
        except (AssertionError, TimeoutError) as error:
            return Outcome(failed=1, problems=[f"{type(error).__name__}: {error}"])
        finally:
            rig.close()
            rig.keep_broker_logs()


def _play(rig: Rig, options: argparse.Namespace) -> Outcome:
    match options.scenario:
        case "scale":
            return run_scaling(rig, options.seed, _say, stage_s=5.0)
        case "outage":
            return run_outage(rig, _say, seconds=options.seconds, warm_up_s=20.0, messages_per_s=options.rate)
        case "poison":
            return run_poison(rig, _say)
        case "soak":
            return run_soak(rig, _say, minutes=options.minutes, messages_per_s=options.rate)
        case _:
            pace = QUICK if options.quick else THOROUGH
            faults = plan(options.seed, options.cycles, pace)
            return run_storm(rig, faults, options.seed, _say, awaits_recovery=pace.awaits_recovery)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
