"""Transcript files as messages of the transcripts topic, and the records that a set of messages comes to."""

import base64
from typing import Any

import orjson

from tests.worlds.cluster import Cluster


def line_messages(source: dict[str, Any], data: bytes, *, numbered: bool = False) -> list[bytes]:
    """Give one message value per line of a file; ``source`` names the conversation, source id and format."""
    values = []
    offset = 0
    for number, line in enumerate(data.split(b"\n")):
        if line:
            values.append(line_message(source, offset, line, number if numbered else None))
        offset += len(line) + 1
    return values


def line_message(source: dict[str, Any], offset: int, line: bytes, ordinal: int | None = None) -> bytes:
    """Give the message value of one line; bytes that are no UTF-8 travel as base64."""
    value: dict[str, Any] = {"source": source, "byteOffset": offset}
    try:
        value["line"] = line.decode()
    except UnicodeDecodeError:
        value["lineB64"] = base64.b64encode(line).decode()
    if ordinal is not None:
        value["ordinal"] = ordinal
    return orjson.dumps(value)


def project_lines(values: list[bytes], *, unbound: str = "standalone") -> Cluster:
    """Project transcript messages in the given order."""
    cluster = Cluster(2, unbound=unbound)
    for offset, value in enumerate(values):
        cluster.project(("transcripts", None, value, 0, offset))
    cluster.drain()
    return cluster


def records_of(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """Give the records of one kind."""
    return [record for data in cluster.records.values() if (record := orjson.loads(data))["kind"] == kind]
