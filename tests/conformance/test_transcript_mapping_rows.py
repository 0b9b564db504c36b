"""Rows of harn/ and ctagents/mapping_examples.jsonl: whole transcripts through the projection and the fold.

The rows are proposals; one thing differs on purpose (decisions: ct-agents gate id).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from projections.ids import conversation_ref
from tests.conformance.rows import Row, assert_rows, differs, load_rows
from tests.projections.formats.bindings import binding
from tests.worlds.cluster import Cluster, clean_pass
from tests.worlds.world import SourceMessage


def message(topic: str, value: Any) -> SourceMessage:
    return SourceMessage(topic, None, json.dumps(value).encode())


def harn_messages(row: Row) -> list[SourceMessage]:
    given = row["input"]
    source = {**given["conversation"], "sourceId": given["sourceId"], "format": "harn"}
    messages, offset = [binding(given["conversation"], given["attemptId"])], 0
    for line in given["text"].removesuffix("\n").split("\n"):
        messages.append(message("transcripts", {"source": source, "byteOffset": offset, "line": line}))
        offset += len(line.encode()) + 1
    return messages


def ct_agents_messages(row: Row) -> list[SourceMessage]:
    given = row["input"]
    events = [json.loads(text) for text in given["messages"]]
    conversation = {"harness": "ct-agents", "namespace": given["namespace"], "nativeId": events[0]["sessionId"]}
    stem = f"ct-agents:{given['namespace']}:{events[0]['sessionId']}"
    return [
        binding(conversation, given["attemptId"]),
        *(
            message(
                "transcripts",
                {
                    "source": {**conversation, "sourceId": f"{stem}#{event['seq']}", "format": "ct-agents"},
                    "byteOffset": 0,
                    "line": text,
                },
            )
            for event, text in zip(events, given["messages"], strict=True)
        ),
    ]


def with_decided_gate_id(record: dict[str, Any]) -> dict[str, Any]:
    """Give a gate the id that decisions.md overrules the rows with."""
    if record["kind"] != "gate":
        return record
    _harness, namespace, native_id, event_id = record["id"].removeprefix(f"{record['runId']}/").split(":")
    ref = conversation_ref({"harness": "ct-agents", "namespace": namespace, "nativeId": native_id})
    digest = hashlib.sha256(f"{ref}\n{event_id}".encode()).hexdigest()
    return {**record, "id": f"{record['runId']}/ct-agents:{digest}"}


def records_of(cluster: Cluster) -> dict[str, Any]:
    records = [json.loads(record) for record in cluster.records.values()]
    return {record["id"]: record for record in records if record["kind"] in ("call", "cost", "gate")}


def check(row: Row, messages: list[SourceMessage]) -> str | None:
    cluster = clean_pass(messages)
    kept = b"".join([*cluster.records.values(), *(part or b"" for log in cluster.logs for row in log for part in row)])
    leaked = [secret for secret in row["mustNotContain"] if secret.encode() in kept]
    if leaked:
        return f"keeps {leaked}"
    expected = [with_decided_gate_id(record) for record in row["expect"]["records"]]
    return differs(records_of(cluster), {record["id"]: record for record in expected})


def named(rows: list[Row]) -> list[Row]:
    return [{"name": row["id"], **row} for row in rows]


def test_harn_transcripts_give_the_records_of_each_row(vectors: Path) -> None:
    rows = named(load_rows(vectors, "harn/mapping_examples.jsonl"))
    assert_rows(rows, lambda row: check(row, harn_messages(row)))


def test_ct_agents_events_give_the_records_of_each_row(vectors: Path) -> None:
    rows = named(load_rows(vectors, "ctagents/mapping_examples.jsonl"))
    assert_rows(rows, lambda row: check(row, ct_agents_messages(row)))
