"""Every directory of fixtures/transcripts: a native file projects to its trace.jsonl, however its lines arrive."""

import json
from pathlib import Path
from typing import Any

import pytest

from projections.records import parse_trace_record
from tests.worlds.cluster import Cluster, clean_pass, random_pass
from tests.worlds.world import SECRET_MARKER, SourceMessage

TRANSCRIPTS = Path(__file__).resolve().parents[3] / "fixtures" / "transcripts"
NAMES = sorted(path.name for path in TRANSCRIPTS.iterdir())


def source_of(name: str) -> dict[str, Any]:
    source: dict[str, Any] = json.loads((TRANSCRIPTS / name / "source.json").read_text())
    return source


def messages_of(name: str, **changes: str) -> list[SourceMessage]:
    """Make one message a line of the native file; only 0x0A ends a line."""
    source = {**source_of(name), **changes}
    messages: list[SourceMessage] = []
    offset = 0
    for line in (TRANSCRIPTS / name / "native.jsonl").read_bytes().removesuffix(b"\n").split(b"\n"):
        value = {"source": source, "byteOffset": offset, "line": line.decode()}
        messages.append(SourceMessage("transcripts", None, json.dumps(value).encode()))
        offset += len(line) + 1
    return messages


def trace_of(cluster: Cluster) -> bytes:
    return b"".join(cluster.records[record_id] + b"\n" for record_id in sorted(cluster.records))


@pytest.mark.parametrize("name", NAMES)
def test_a_native_file_gives_its_golden_trace(name: str, request: pytest.FixtureRequest) -> None:
    trace = trace_of(clean_pass(messages_of(name), unbound="standalone"))
    golden = TRANSCRIPTS / name / "trace.jsonl"
    if request.config.getoption("--update-goldens", default=False):
        golden.write_bytes(trace)
    assert trace == golden.read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(6))
def test_its_lines_shuffled_repeated_and_in_small_batches_give_the_same_trace(name: str, seed: int) -> None:
    assert (
        trace_of(random_pass(messages_of(name), seed, unbound="standalone"))
        == (TRANSCRIPTS / name / "trace.jsonl").read_bytes()
    )


@pytest.mark.parametrize("name", NAMES)
def test_two_conversations_at_once_do_not_touch_each_other(name: str) -> None:
    # In one namespace, equal lines would be history that one conversation copied from the other.
    other = messages_of(name, nativeId="another", namespace="another host", sourceId="another source")
    both = random_pass([*messages_of(name), *other], 1, unbound="standalone").records
    alone = clean_pass(messages_of(name), unbound="standalone").records
    assert both == alone | clean_pass(other, unbound="standalone").records


# A Codex thread may have several files, and nothing in a step of its counter tells a copied file from a second one.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "codex"])
def test_the_same_file_under_two_sources_counts_nothing_twice(name: str) -> None:
    again = messages_of(name, sourceId=f"{source_of(name)['sourceId']} again")
    both = clean_pass([*messages_of(name), *again], unbound="standalone").records
    assert both.keys() == clean_pass(messages_of(name), unbound="standalone").records.keys()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_is_content_reaches_a_fact_or_a_record(name: str) -> None:
    cluster = clean_pass(messages_of(name), unbound="standalone")
    logged = b"".join(part or b"" for log in cluster.logs for row in log for part in row)
    assert SECRET_MARKER in (TRANSCRIPTS / name / "native.jsonl").read_text()
    assert SECRET_MARKER.encode() not in logged + trace_of(cluster)


@pytest.mark.parametrize("name", NAMES)
def test_every_golden_record_passes_the_strict_parse(name: str) -> None:
    for line in (TRANSCRIPTS / name / "trace.jsonl").read_bytes().splitlines():
        parse_trace_record(json.loads(line))


def test_both_formats_have_a_golden() -> None:
    assert {"harn", "ct-agents"} <= set(NAMES)
