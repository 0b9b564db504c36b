"""Explain: the messages that make a record, and the reasons why there is none."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from projections.ids import conversation_item_ref
from worker.explain import Evidence, Explanation, Part, World, collect, explain
from worker.local_fold import Unbound
from worker.record_subject import subject_of
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.source_files import find_source_files, read_messages

RUNS = Path(__file__).resolve().parents[2] / "fixtures" / "runs"
LIMITS = LimitSettings()


def evidence_of(directory: Path, record_id: str) -> Evidence:
    files, _ = find_source_files([directory], Settings(), harness=None, namespace=None)
    return collect(
        (message for file in files for message in read_messages(file, LIMITS)), LIMITS, subject_of(record_id)
    )


def explain_one(directory: Path, record_id: str, unbound: Unbound = "hold") -> Explanation:
    (explanation,) = explain(record_id, subject_of(record_id), evidence_of(directory, record_id), unbound)
    return explanation


def lines_of(explanation: Explanation) -> list[str]:
    return [f"{part.source}:{part.place.rpartition(':')[2]}" for part in explanation.made_by]


def write_sources(directory: Path, **sources: Iterable[object]) -> Path:
    for source, rows in sources.items():
        path = directory / f"{source.replace('_', '-')}.jsonl"
        path.write_text("".join(row + "\n" if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return directory


def rows_of(run: str, source: str) -> list[str]:
    return (RUNS / run / f"{source}.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("record_id", "lines"),
    [
        ("run-7", ["workflow-runs:1", "ledger-changes:1"]),
        ("run-7/review", ["gate-decisions:1"]),
        ("workflow:run-7:review:0:0", ["workflow-runs:1", "gate-decisions:1"]),
        ("workflow:run-7:merge-authorize:0:0#policy:F5:MRG-OT", ["workflow-runs:1"]),
        (
            "workflow:run-7:draft:0:1",
            ["workflow-runs:1", *(f"ledger-changes:{line}" for line in (5, 6, 7, 8)), "transcripts:2"],
        ),
        (
            "call:claude-code:host-a:c-1:toolu_1",
            [*(f"ledger-changes:{line}" for line in (5, 6, 7)), "transcripts:1", "transcripts:3"],
        ),
    ],
)
def test_a_record_is_explained_by_the_messages_that_make_it(record_id: str, lines: list[str]) -> None:
    explanation = explain_one(RUNS / "example", record_id)
    assert lines_of(explanation) == lines
    assert explanation.is_smallest


def test_messages_that_reach_the_record_and_change_nothing_are_counted_by_source() -> None:
    explanation = explain_one(RUNS / "example", "run-7/review")
    assert explanation.idle == {"ledger-changes": 8, "transcripts": 3, "workflow-runs": 1}


def record_of(parts: list[Part], kind: str, record_id: str) -> bytes | None:
    return World(parts, "hold").records.get((kind, record_id))


@pytest.mark.parametrize("run", ["example", "doc-run"])
def test_the_named_messages_make_the_record_alone_and_none_of_them_can_be_spared(run: str) -> None:
    golden = [json.loads(line) for line in (RUNS / run / "trace.jsonl").read_text(encoding="utf-8").splitlines()]
    evidence = evidence_of(RUNS / run, "")
    whole = World(evidence.parts, "hold")
    for record in golden:
        key = record["kind"], record["id"]
        (explanation,) = explain(record["id"], None, evidence, "hold")
        assert record_of(explanation.made_by, *key) == whole.records[key]
        for index in range(len(explanation.made_by)):
            rest = explanation.made_by[:index] + explanation.made_by[index + 1 :]
            assert record_of(rest, *key) != whole.records[key]


def test_a_message_that_came_twice_is_named_once() -> None:
    lines = rows_of("demo", "transcripts")
    assert lines[-1] in lines[:-1], "the sample holds a repeated line"
    row = json.loads(lines[-1])
    message_id = json.loads(row["line"])["message"]["id"]
    source = row["source"]
    record_id = f"cost:{conversation_item_ref(source, 'response', message_id)}"
    explanation = explain_one(RUNS / "demo", record_id)
    assert explanation.kind == "cost"
    assert sum(part.source == "transcripts" for part in explanation.made_by) == 1


def unbound_conversation() -> dict[str, str]:
    row = json.loads(rows_of("demo", "transcripts")[-2])
    source: dict[str, str] = row["source"]
    return source


def test_an_item_of_an_unbound_conversation_is_held_for_want_of_a_binding() -> None:
    record_id = conversation_item_ref(unbound_conversation(), "response", "msg_demo_0701")
    (reason,) = explain_one(RUNS / "demo", record_id).reasons
    assert reason.startswith("held: no binding. 2 messages belong to conversation:claude-code:build-1:")


def test_the_same_item_is_made_when_unbound_conversations_stand_alone() -> None:
    record_id = conversation_item_ref(unbound_conversation(), "response", "msg_demo_0701")
    explanation = explain_one(RUNS / "demo", record_id, "standalone")
    assert (explanation.kind, len(explanation.made_by)) == ("call", 2)


def test_copied_history_names_the_record_that_keeps_the_item() -> None:
    lines = [json.loads(row) for row in rows_of("demo", "transcripts")]
    sources = {row["source"]["nativeId"]: row["source"] for row in lines if "msg_demo_0101" in row["line"]}
    original, copy = sources.values()
    (reason, *_) = explain_one(RUNS / "demo", conversation_item_ref(copy, "response", "msg_demo_0101")).reasons
    assert reason.startswith("copied history:")
    assert reason.endswith(conversation_item_ref(original, "response", "msg_demo_0101"))


def test_an_ignored_message_that_names_the_item_is_shown_with_its_reason() -> None:
    source = next(row["source"] for row in map(json.loads, rows_of("demo", "transcripts")) if "0503" in row["line"])
    explanation = explain_one(RUNS / "demo", conversation_item_ref(source, "response", "msg_demo_0503"))
    assert [(refusal.source, refusal.outcome) for refusal in explanation.refusals] == [
        ("transcripts", "ignored: synthetic_response")
    ]


def test_a_dead_lettered_message_that_names_the_run_is_shown_with_its_reason_and_field(tmp_path: Path) -> None:
    run = json.loads(rows_of("example", "workflow-runs")[0]) | {"revision": -1}
    write_sources(tmp_path, workflow_runs=[run, '{"id":"run-7",', {"id": "other"}])
    explanation = explain_one(tmp_path, "run-7")
    assert explanation.reasons == ["no message of these sources is about run run-7"]
    assert [(refusal.place, refusal.outcome) for refusal in explanation.refusals] == [
        (f"{tmp_path}/workflow-runs.jsonl:1", "dead-lettered: count_out_of_range (revision)"),
        (f"{tmp_path}/workflow-runs.jsonl:2", "dead-lettered: invalid_json"),
    ]


def test_a_run_without_a_snapshot_is_held_as_missing(tmp_path: Path) -> None:
    write_sources(tmp_path, gate_decisions=rows_of("example", "gate-decisions"))
    (reason, *_) = explain_one(tmp_path, "run-7").reasons
    assert reason == "held: run missing. 1 messages are about run run-7, none is a snapshot of it"


def test_an_execution_that_waits_for_a_transition_is_named(tmp_path: Path) -> None:
    rows = rows_of("example", "ledger-changes")[:4]
    write_sources(tmp_path, ledger_changes=rows[1:])
    reasons = explain_one(tmp_path, "workflow:run-7:draft:0:0").reasons
    assert f"held: the execution of {tmp_path}/ledger-changes.jsonl:1 waits for a transition that is missing" in reasons


@pytest.mark.parametrize(
    ("record_id", "erasure", "word"),
    [
        ("run-7", {"run": "run-7"}, "run"),
        (
            "call:claude-code:host-a:c-1:toolu_1",
            {"conversation": "conversation:claude-code:host-a:c-1"},
            "conversation",
        ),
    ],
)
def test_what_was_erased_says_so(tmp_path: Path, record_id: str, erasure: object, word: str) -> None:
    sources = {source: rows_of("example", source) for source in ("workflow-runs", "ledger-changes", "transcripts")}
    write_sources(tmp_path, erasures=[erasure], **sources)
    assert explain_one(tmp_path, record_id).reasons == [f"its {word} was erased by {tmp_path}/erasures.jsonl:1"]


def test_a_deleted_run_names_its_tombstone(tmp_path: Path) -> None:
    rows = [*rows_of("example", "workflow-runs"), {"key": "run-7", "value": None}]
    write_sources(tmp_path, workflow_runs=rows)
    (reason, *_) = explain_one(tmp_path, "run-7").reasons
    assert reason == f"rows about run run-7 were deleted by {tmp_path}/workflow-runs.jsonl:2"


def test_a_mistyped_id_is_shown_its_neighbours() -> None:
    reasons = explain_one(RUNS / "example", "workflow:run-7:draft:0:7").reasons
    assert "there is a record of nearly that id: workflow:run-7:draft:0:1" in reasons


@pytest.mark.parametrize("text", ["", "a b", "\n"])
def test_a_text_that_is_no_id_is_told_so(text: str) -> None:
    assert explain_one(RUNS / "example", text).reasons == ["this is no id of a trace record"]


@pytest.mark.parametrize(
    ("record_id", "kind", "run", "conversation"),
    [
        ("run-7", "run", "run-7", None),
        ("workflow:run%207:a:0:1", "attempt", "run 7", None),
        ("run-7/a:1", "gate", "run-7", None),
        ("workflow:r:a:0:1#policy:F5:X", "gate", "r", None),
        ("call:h:n:c:i", "call", None, "conversation:h:n:c"),
        ("response:h:n:c:i", "call", None, "conversation:h:n:c"),
        ("cost:response:h:n:c:i", "cost", None, "conversation:h:n:c"),
        ("cost:conversation:h:n:c:turn:t:e", "cost", None, "conversation:h:n:c"),
        (f"commit:a/b@{'0' * 40}", "artifact", None, None),
        (f"file:a/b/x y/z@{'0' * 40}", "artifact", None, None),
        ("pr:a/b#1", "artifact", None, None),
    ],
)
def test_an_id_tells_what_it_is_about(record_id: str, kind: str, run: str | None, conversation: str | None) -> None:
    subject = subject_of(record_id)
    assert subject is not None
    assert (subject.kind, subject.run, subject.conversation) == (kind, run, conversation)
