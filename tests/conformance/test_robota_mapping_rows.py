"""Rows of robota/mapping_examples.jsonl: histories through the projection and the fold. The rows are proposals."""

import json
from pathlib import Path

from tests.conformance.rows import Row, assert_rows, load_rows
from tests.conformance.test_transcript_mapping_rows import check, message, named
from tests.projections.formats.bindings import binding
from tests.worlds.world import SourceMessage


def robota_messages(row: Row) -> list[SourceMessage]:
    given = row["input"]
    conversation = {"harness": "robota", "namespace": given["namespace"], "nativeId": given["sessionId"]}
    stem = f"robota:{given['namespace']}:{given['sessionId']}"
    entries = [
        message(
            "transcripts",
            {
                "source": {**conversation, "sourceId": f"{stem}#{json.loads(text)['id']}", "format": "robota"},
                "byteOffset": 0,
                "ordinal": ordinal,
                "line": text,
            },
        )
        for ordinal, text in enumerate(given["messages"])
    ]
    return [binding(conversation, given["attemptId"]), *entries]


def test_robota_histories_give_the_records_of_each_row(vectors: Path) -> None:
    rows = named(load_rows(vectors, "robota/mapping_examples.jsonl"))
    assert_rows(rows, lambda row: check(row, robota_messages(row)))
