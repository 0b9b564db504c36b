"""Every directory of fixtures/runs projects to its trace.jsonl, byte for byte, however its messages arrive."""

import random
from pathlib import Path

import pytest

from projections.canonical import encode_record
from projections.decode import decode_json
from projections.facts import Fact
from projections.fold import Fold
from projections.records import parse_trace_record
from projections.sources import SOURCES, project_message

RUNS = Path(__file__).resolve().parents[2] / "fixtures" / "runs"
NAMES = sorted(path.name for path in RUNS.iterdir() if path.is_dir())


def facts_of(run: Path) -> list[Fact]:
    facts: list[Fact] = []
    for partition, source in enumerate(SOURCES):
        path = run / f"{source}.jsonl"
        if path.exists():
            for offset, line in enumerate(path.read_bytes().splitlines()):
                facts += project_message(source, None, line, partition, offset).facts
    return facts


def trace_of(facts: list[Fact], batch_size: int) -> bytes:
    """Fold facts in batches, feed derived facts back behind them, and give the records as JSONL in id order."""
    fold = Fold(generation=1, unbound="hold")
    records: dict[str, bytes] = {}
    waiting, offset = list(facts), 0
    while waiting:
        batch, waiting = waiting[:batch_size], waiting[batch_size:]
        result = fold.apply(list(enumerate(batch, start=offset)))
        offset += len(batch)
        waiting += result.facts
        for change in result.changes:
            if change.record is None:
                records.pop(change.id, None)
            else:
                records[change.id] = change.record
    return b"".join(records[record_id] + b"\n" for record_id in sorted(records, key=str.encode))


@pytest.mark.parametrize("name", NAMES)
def test_the_messages_of_a_run_give_its_golden_trace(name: str, request: pytest.FixtureRequest) -> None:
    trace = trace_of(facts_of(RUNS / name), 5_000)
    golden = RUNS / name / "trace.jsonl"
    if request.config.getoption("--update-goldens", default=False):
        golden.write_bytes(trace)
    assert trace == golden.read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_shuffled_repeated_and_cut_into_small_batches_they_give_the_same_trace(name: str, seed: int) -> None:
    chance = random.Random(seed)
    facts = facts_of(RUNS / name)
    facts += chance.sample(facts, len(facts) // 3)
    chance.shuffle(facts)
    assert trace_of(facts, chance.randint(1, 9)) == (RUNS / name / "trace.jsonl").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_every_golden_record_passes_the_strict_parse_and_has_the_bytes_of_its_record(name: str) -> None:
    for line in (RUNS / name / "trace.jsonl").read_bytes().splitlines():
        assert encode_record(parse_trace_record(decode_json(line))) == line


def test_there_are_runs_to_test() -> None:
    assert {"demo", "doc-run", "example"} <= set(NAMES)
