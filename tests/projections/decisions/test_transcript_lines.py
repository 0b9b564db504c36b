"""Decisions about the lines of a transcript file: padding, broken bytes, and what is kept of them."""

import base64
import json
from typing import Any

import orjson

from projections.canonical import sha256_hex
from projections.sources import project_message
from tests.worlds.cluster import Cluster
from tests.worlds.messages import (
    CLAUDE,
    assistant,
    attempt_of,
    file_messages,
    ledger,
    message,
    project,
    records,
    source_of,
    spent,
    tool_result,
    user,
)
from tests.worlds.world import SourceMessage

S = attempt_of("s")
BOUND = ledger("e1", S, conversation=CLAUDE)
SCOPE = "claude-code:host:c-1"
Json = dict[str, Any]


def _line(line: Json) -> bytes:
    return json.dumps(line).encode()


def raw(line: bytes, offset: int = 0) -> SourceMessage:
    return message("transcripts", {"source": source_of(CLAUDE), "byteOffset": offset, "line": line.decode()})


def test_nuls_after_a_line_are_ignored_and_kept_in_its_span_and_a_line_of_nuls_is_skipped() -> None:
    line = _line(assistant("u1", "m1", 10))
    found = records([BOUND, raw(line + b"\0" * 64)])
    span = found[f"response:{SCOPE}:m1"]["span"]
    assert (span["byteLength"], span["contentHash"]) == (len(line) + 64, sha256_hex(line + b"\0" * 64))
    assert project_message("transcripts", None, raw(b"\0" * 200).value, 0, 0).ignored == "nul_line"
    assert project_message("transcripts", None, raw(b"").value, 0, 0).ignored == "blank_line"


def test_a_glued_line_is_refused_alone() -> None:
    glued = b'{"type":"assistant","uu{"type":"user","uuid":"u2"}'
    found = records([BOUND, *file_messages([glued, assistant("u4", "m4", 10)])], dead=["line_invalid_json"])
    assert set(found) == {S, f"response:{SCOPE}:m4"}


def test_a_carriage_return_and_a_byte_order_mark_belong_to_the_line() -> None:
    line = _line(assistant("u1", "m1", 10))
    for variant in (line + b"\r", b"\xef\xbb\xbf" + line, b"\xef\xbb\xbf" + line + b"\r"):
        span = records([BOUND, raw(variant)])[f"response:{SCOPE}:m1"]["span"]
        assert (span["byteLength"], span["contentHash"]) == (len(variant), sha256_hex(variant))


def test_bytes_that_are_no_utf8_travel_as_base64_and_spoil_only_their_own_field() -> None:
    line = _line(assistant("u1", "m1", 10, calls=["t"])).replace(b'"Bash"', b'"Ba\xe2\x82sh"')
    value = {"source": source_of(CLAUDE), "byteOffset": 7, "lineB64": base64.b64encode(line).decode()}
    found = records([BOUND, message("transcripts", value)])
    call = found[f"call:{SCOPE}:t"]
    assert call["name"] == "Ba\ufffddce2\ufffddc82sh"
    assert call["span"] == {
        "sourceId": SCOPE,
        "byteOffset": 7,
        "byteLength": len(line),
        "contentHash": sha256_hex(line),
    }
    broken = line.replace(b'"u1"', b'"u\xff"')
    value |= {"lineB64": base64.b64encode(broken).decode()}
    records([message("transcripts", value)], dead=["lone_surrogate"])


def test_only_a_newline_byte_ends_a_line() -> None:
    found = records([BOUND, *file_messages([user("u\u2028\u0085\u2029", 1), assistant("u1", "m1", 2)])])
    assert found[f"response:{SCOPE}:m1"]["turn"] == f"turn:{SCOPE}:u%E2%80%A8%C2%85%E2%80%A9"


def test_lines_without_news_are_counted_and_say_nothing() -> None:
    for line in ({"type": "summary"}, {"type": "system", "uuid": "u"}, {"no": "type"}):
        (value,) = file_messages([line])
        assert project_message("transcripts", None, value.value, 0, 0).ignored == "no_trace_line"


def test_a_held_conversation_is_counted_until_it_is_bound_and_after_a_restart() -> None:
    cluster = Cluster(1)
    for offset, (topic, key, value) in enumerate(
        file_messages([user("t1", 10), assistant("u1", "m1", 11, usage=spent(), calls=["a"])])
    ):
        cluster.project((topic, key, value, 0, offset))
    cluster.drain()
    assert cluster.folds[0].held_counts()["conversation"] == 1
    cluster.crash(0)
    assert cluster.folds[0].held_counts()["conversation"] == 1
    cluster.project(("ledger-changes", None, BOUND.value, 0, 9))
    cluster.drain()
    assert cluster.folds[0].held_counts()["conversation"] == 0
    cluster.crash(0)
    assert cluster.folds[0].held_counts()["conversation"] == 0
    assert len(cluster.records) == 4


def test_no_text_of_a_transcript_enters_a_fact() -> None:
    secret = "ZZSECRETZZ"
    line = assistant("u1", "m1", 1, calls=["t"], usage={**spent(), "secret": secret}, secret=secret)
    line["message"]["content"] += [{"type": "text", "text": secret}, {"type": "thinking", "thinking": secret}]
    line["message"]["content"][0]["input"] = {"command": secret}
    result = tool_result("u2", "t", 2)
    result["message"]["content"][0]["content"] = [{"type": "text", "text": secret}]
    cluster = project(file_messages([user("u0", 0, secret), line, result]))
    kept = orjson.dumps([[key.decode(), (value or b"").decode()] for log in cluster.logs for key, value in log])
    assert secret.encode() not in kept
