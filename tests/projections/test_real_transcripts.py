"""Real transcripts (where they are at hand) against truth that was counted by an independent script."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.worlds.transcripts import line_messages, project_lines, records_of

REAL = Path(os.environ.get("TRACE_PROJECTOR_REAL", Path(__file__).parents[3] / "shared" / "real"))
TRUTH: dict[str, Any] = orjson.loads((REAL / "truth.json").read_bytes()) if (REAL / "truth.json").exists() else {}
FILES = [name for name in TRUTH if not name.startswith("_")]

pytestmark = pytest.mark.skipif(not TRUTH, reason="the real transcripts are not at hand")


def _messages(name: str) -> list[bytes]:
    harness = name.split("/", maxsplit=1)[0]
    truth = TRUTH[name]
    native = truth.get("native_session_id") or truth["session_meta"][0]["id"]
    source_id = f"{harness}:host:{native}" + (":sub" if "sub" in name else "")
    source = {"harness": harness, "namespace": "host", "nativeId": native, "sourceId": source_id, "format": harness}
    return line_messages(source, (REAL / name).read_bytes())


def _tokens(records: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for record in records:
        measurement = record["measurement"]
        counts = {name: count for name, count in measurement["tokens"].items() if count is not None}
        found.setdefault(measurement["model"], Counter()).update({**counts, "responses": 1})
    return found


def _true_tokens(name: str) -> dict[str, Counter[str]]:
    if name.startswith("codex/"):
        rows = TRUTH[name]["tokens_per_model_by_steps"]
        keys = {"input_tokens": "input", "cached_input_tokens": "cachedInput", "output_tokens": "output"}
        keys |= {"reasoning_output_tokens": "reasoningOutput", "total_tokens": "total"}
        responses = TRUTH[name]["responses"]["reported_by_token_count"]
        return {
            model: Counter({**{keys[key]: count for key, count in row.items()}, "responses": responses})
            for model, row in rows.items()
        }
    found = {}
    for model, row in TRUTH[name]["tokens_per_model_last_report_wins"].items():
        if model == "<synthetic>":
            continue  # a line that the client wrote itself spent nothing and is no response (decisions)
        cached, written = row["cache_read_input_tokens"], row["cache_creation_input_tokens"]
        total_in = row["input_tokens"] + cached + written
        counts = {"input": total_in, "output": row["output_tokens"], "cachedInput": cached, "cacheWriteInput": written}
        found[model] = Counter({**counts, "total": total_in + row["output_tokens"], "responses": row["responses"]})
    return found


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("backwards", [False, True])
def test_tokens_per_model_equal_the_counted_truth(name: str, *, backwards: bool) -> None:
    messages = _messages(name)
    cluster = project_lines(messages[::-1] if backwards else messages)
    assert cluster.dead == []
    found = {model: +counts for model, counts in _tokens(records_of(cluster, "cost")).items()}
    assert found == {model: +counts for model, counts in _true_tokens(name).items()}


@pytest.mark.parametrize("name", FILES)
def test_tool_calls_and_their_results_equal_the_counted_truth(name: str) -> None:
    truth = TRUTH[name]["tool_calls"]
    calls = [call for call in records_of(project_lines(_messages(name)), "call") if call["callKind"] == "tool"]
    assert Counter(call["name"] for call in calls) == Counter(truth["by_name"])
    assert len(calls) == truth.get("distinct_ids", truth.get("distinct_call_ids"))
    if name.startswith("claude-code/"):
        errors = TRUTH[name]["tool_errors"]
        assert sum(call["isError"] is True for call in calls) == errors["distinct_calls_in_error"]
        # A result without the flag is no error: many versions write the flag only on errors (decisions).
        assert sum(call["isError"] is None for call in calls) == len(truth["without_result"])
    else:
        # Only free text tells of the errors in these files, and free text proves nothing (decisions).
        assert sum(call["isError"] is True for call in calls) == len(TRUTH[name]["tool_errors"]["by_end_events"])


def _pairs() -> Iterator[tuple[str, str]]:
    for pair in (
        ("codex/fork-parent.jsonl", "codex/fork-child.jsonl"),
        ("claude-code/resume-parent.jsonl", "claude-code/resume-child.jsonl"),
    ):
        yield pair
        yield pair[::-1]


@pytest.mark.parametrize(("first", "second"), list(_pairs()))
def test_copied_history_counts_once_whichever_file_is_read_first(first: str, second: str) -> None:
    together = project_lines(_messages(first) + _messages(second))
    child = next(name for name in (first, second) if "child" in name)
    parent = next(name for name in (first, second) if "parent" in name)
    found = _tokens(records_of(together, "cost"))
    # The child repeats everything that the parent spent, so the child alone shows the pair's total.
    assert found == _true_tokens(child)
    native = TRUTH[parent].get("native_session_id") or TRUTH[parent]["session_meta"][0]["id"]
    of_parent = [cost for cost in records_of(together, "cost") if cost["conversation"].endswith(f":{native}")]
    assert _tokens(of_parent) == _true_tokens(parent)


def test_a_subagent_file_belongs_to_its_main_conversation_and_counts_once() -> None:
    names = ("claude-code/agents-main.jsonl", "claude-code/agents-sub.jsonl")
    costs = records_of(project_lines([message for name in names for message in _messages(name)]), "cost")
    assert len({cost["conversation"] for cost in costs}) == 1
    assert len(costs) == sum(TRUTH[name]["responses"]["distinct"] for name in names)
