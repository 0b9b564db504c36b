"""The OTLP sink against a real HTTP server, its requests read by the official classes."""

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from projections.privacy import Policy, redact
from tests.worker.sinks.destinations import DOC_RUN, POLICY, deletion, run_record, upsert
from worker import otlp_spans
from worker.otlp_spans import span_id, span_of, trace_id
from worker.settings import MASK, load_settings
from worker.settings_sections import ExportSettings, SettingsError
from worker.settings_text import describe_settings
from worker.sink import Pricing, SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sink_setup import configure_sink
from worker.sink_switch import can_be_switched, instead_of_switching
from worker.sinks import otlp
from worker.sinks.otlp import OtlpSink, parsed_headers, retry_delay_s, traces_url

MARK = "ZZMARKZZ"
DONE = run_record("r1", status="completed", completedAt="2026-09-28T11:00:00.000Z")
NOW = datetime(2026, 9, 28, 12, tzinfo=UTC)


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> ExportTraceServiceRequest:
        message = ExportTraceServiceRequest()
        message.ParseFromString(gzip.decompress(self.body))
        return message

    @property
    def spans(self) -> list[Span]:
        return [
            span for resource in self.message.resource_spans for scope in resource.scope_spans for span in scope.spans
        ]


class Answer(NamedTuple):
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012
    body: bytes = b""


def accepted(rejected: int = 0) -> Answer:
    told = ExportTracePartialSuccess(rejected_spans=rejected, error_message=MARK if rejected else "")
    body = ExportTraceServiceResponse(partial_success=told).SerializeToString()
    return Answer(200, {"Content-Type": "application/x-protobuf"}, body)


class Receiver:
    """Takes whatever is posted; answers what it is told to, and then that all is well."""

    def __init__(self, port: int) -> None:
        self.location = f"http://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self.answers: list[Answer] = []

    @property
    def spans(self) -> list[Span]:
        return [span for request in self.requests for span in request.spans]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append(Request(self.path, dict(self.headers), body))
            answer = found.answers.pop(0) if found.answers else accepted()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(server.server_port)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def use(receiver: Receiver, work: Callable[[OtlpSink], Any]) -> None:
    async def run() -> None:
        sink = open_sink(f"otlp:{receiver.location}", POLICY)
        assert isinstance(sink, OtlpSink)
        await sink.open()
        try:
            await work(sink)
        finally:
            await sink.close()

    asyncio.run(run())


def write(receiver: Receiver, *batches: Sequence[Upsert]) -> None:
    async def work(sink: OtlpSink) -> None:
        for batch in batches:
            await sink.write(batch)

    use(receiver, work)


def attributes(span: Span) -> dict[str, Any]:
    return {item.key: getattr(item.value, str(item.value.WhichOneof("value"))) for item in span.attributes}


def record_of(kind: str, **fields: Any) -> dict[str, Any]:
    """Give the first record of a kind that a run in the fixtures has, with other fields."""
    return {**next(record for record in DOC_RUN if record["kind"] == kind), **fields}


def made(record: dict[str, Any]) -> Span:
    span = span_of(upsert(record, 1))
    assert span is not None
    return span


# ------------------------------------------------------------------------------------------------------------ spans


def test_a_run_is_a_trace_whose_spans_find_their_parents(receiver: Receiver) -> None:
    write(receiver, [upsert(record, offset) for offset, record in enumerate(DOC_RUN)])
    spans = {span.span_id: span for span in receiver.spans}
    assert len(spans) == len(receiver.spans) == len(DOC_RUN)
    assert {span.trace_id for span in spans.values()} == {trace_id(DOC_RUN[0]["runId"])}
    roots = [span for span in spans.values() if not span.parent_span_id]
    assert [root.span_id for root in roots] == [span_id("run", DOC_RUN[0]["id"])]
    assert all(span.parent_span_id in spans for span in spans.values() if span.parent_span_id)
    for record in DOC_RUN:
        above = span_id("attempt", record["attemptId"]) if "attemptId" in record else roots[0].span_id
        if record["kind"] != "run":
            assert spans[span_id(record["kind"], record["id"])].parent_span_id == above


def test_a_request_is_gzipped_protobuf_and_names_the_policy(receiver: Receiver) -> None:
    write(receiver, [upsert(DONE, 1)])
    [request] = receiver.requests
    assert request.path == "/v1/traces"
    assert request.headers["Content-Type"] == "application/x-protobuf"
    assert request.headers["Content-Encoding"] == "gzip"
    [resource] = request.message.resource_spans
    told = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert told == {"service.name": "trace-projector", "titan.policy": POLICY}
    assert resource.schema_url == otlp_spans.SCHEMA_URL


def test_a_second_export_is_the_same_bytes(receiver: Receiver) -> None:
    batch = [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]
    write(receiver, batch)
    write(receiver, batch)
    first, second = receiver.requests
    assert first.body == second.body


def test_ids_are_digests_that_no_two_kinds_share() -> None:
    assert (len(trace_id("r1")), len(span_id("run", "r1"))) == (16, 8)
    assert len({trace_id("r1"), trace_id("r2")}) == 2
    assert len({span_id("run", "r1"), span_id("gate", "r1"), span_id("run", "r2")}) == 3


def test_a_run_lasts_from_its_start_to_its_end() -> None:
    span = made(run_record("r1", at="1970-01-01T00:00:01.5Z", completedAt="1970-01-01T00:01:00.000000001Z"))
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_500_000_000, 60_000_000_001)
    assert (span.name, span.parent_span_id) == ("invoke_workflow doc-change", b"")
    assert attributes(span)["gen_ai.workflow.name"] == "doc-change"


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_time_that_otlp_has_no_number_for_is_the_nearest(at: str) -> None:
    assert made(run_record("r1", at=at, status="failed")).start_time_unix_nano in (0, 2**64 - 1)


def test_an_end_before_the_start_is_no_negative_length() -> None:
    span = made(run_record("r1", completedAt="2026-09-28T09:00:00.000Z"))
    assert span.end_time_unix_nano == span.start_time_unix_nano


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("run", {"status": "running", "completedAt": None}),
        ("run", {"status": "paused", "completedAt": None}),
        ("attempt", {"completedAt": None, "outcome": None}),
        ("attempt", {"completedAt": None, "outcome": "recovery_required"}),
        ("gate", {"gateKind": "human", "status": "pending", "resolvedAt": None}),
    ],
)
def test_what_is_open_waits(receiver: Receiver, kind: str, fields: dict[str, Any]) -> None:
    write(receiver, [upsert(record_of(kind, **fields), 1)])
    assert receiver.requests == []


def test_what_was_open_is_sent_when_it_closes(receiver: Receiver) -> None:
    write(receiver, [upsert(run_record("r1"), 1)], [upsert(DONE, 2)])
    assert [span.span_id for span in receiver.spans] == [span_id("run", "r1")]


@pytest.mark.parametrize(
    ("kind", "fields"), [("run", {"status": "cancelled", "completedAt": None}), ("attempt", {"outcome": "failed"})]
)
def test_what_ended_at_an_unknown_time_has_no_length(kind: str, fields: dict[str, Any]) -> None:
    span = made(record_of(kind, **{"completedAt": None, **fields}))
    assert span.end_time_unix_nano == span.start_time_unix_nano


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("run", {"status": "completed"}, Status.STATUS_CODE_OK),
        ("run", {"status": "failed"}, Status.STATUS_CODE_ERROR),
        ("run", {"status": "cancelled"}, Status.STATUS_CODE_UNSET),
        ("attempt", {"outcome": "succeeded"}, Status.STATUS_CODE_OK),
        ("attempt", {"outcome": "failed"}, Status.STATUS_CODE_ERROR),
        ("attempt", {"outcome": None}, Status.STATUS_CODE_UNSET),
        ("call", {"isError": True}, Status.STATUS_CODE_ERROR),
        ("call", {"isError": False}, Status.STATUS_CODE_OK),
        ("call", {"isError": None}, Status.STATUS_CODE_UNSET),
    ],
)
def test_how_it_went_is_the_status(kind: str, fields: dict[str, Any], code: int) -> None:
    span = made(record_of(kind, completedAt="2026-09-28T11:00:00.000Z", **fields))
    assert (span.status.code, span.status.message) == (code, "")


def test_a_dispatched_attempt_is_an_agent_and_another_is_its_step() -> None:
    agent = made(record_of("attempt", stepKind="dispatch", stepId="draft", agentId="a-1", model="m-1"))
    told = attributes(agent)
    assert (agent.name, agent.kind) == ("invoke_agent draft", Span.SPAN_KIND_CLIENT)
    assert [told[f"gen_ai.{name}"] for name in ("operation.name", "agent.id", "request.model")] == [
        "invoke_agent",
        "a-1",
        "m-1",
    ]
    seed = made(record_of("attempt", stepKind="seed", stepId="load-task"))
    assert (seed.name, seed.kind) == ("load-task", Span.SPAN_KIND_INTERNAL)


def test_a_call_has_the_names_of_the_conventions() -> None:
    model = made(record_of("call", callKind="model", name="claude-x"))
    assert (model.name, model.kind) == ("chat claude-x", Span.SPAN_KIND_CLIENT)
    assert attributes(model)["gen_ai.request.model"] == "claude-x"
    tool = made(record_of("call", callKind="tool", name="Edit"))
    assert tool.name == "execute_tool Edit"
    assert attributes(tool)["gen_ai.tool.name"] == "Edit"
    assert tool.start_time_unix_nano == tool.end_time_unix_nano


def test_a_tool_whose_name_does_not_leave_has_none() -> None:
    record = record_of("call", callKind="tool")
    del record["name"]
    span = made(record)
    assert span.name == "execute_tool"
    assert "gen_ai.tool.name" not in attributes(span)


def test_a_gate_lasts_as_long_as_it_was_waited_for_and_its_ends_are_events() -> None:
    times = {"at": "1970-01-01T00:00:10Z", "resolvedAt": "1970-01-01T00:00:40Z"}
    span = made(record_of("gate", gateKind="human", status="resolved", verdict="allow", **times))
    assert span.end_time_unix_nano - span.start_time_unix_nano == 30 * 10**9
    assert [(event.name, event.time_unix_nano) for event in span.events] == [
        ("gate.opened", span.start_time_unix_nano),
        ("gate.decided", span.end_time_unix_nano),
    ]
    assert span.events[1].attributes[0].value.string_value == "allow"


def test_a_gate_that_expired_ended_when_it_was_to() -> None:
    span = made(
        record_of("gate", gateKind="human", status="expired", resolvedAt=None, expiresAt="2026-09-29T00:00:00Z")
    )
    assert span.end_time_unix_nano - span.start_time_unix_nano > 10**9


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"gateKind": "policy", "status": None, "verdict": "deny"}, ["gate.decided"]),
        ({"gateKind": "human", "status": "cancelled"}, ["gate.opened", "gate.cancelled"]),
        ({"gateKind": "human", "status": "expired"}, ["gate.opened", "gate.expired"]),
    ],
)
def test_what_became_of_a_gate_is_an_event(fields: dict[str, Any], names: list[str]) -> None:
    assert [event.name for event in made(record_of("gate", resolvedAt=None, **fields)).events] == names


TOKENS = {
    "input": 10,
    "output": 4,
    "cachedInput": 3,
    "cacheWriteInput": 2,
    "reasoningOutput": None,
    "total": 14,
}


def _cost(**measurement: Any) -> dict[str, Any]:
    return record_of("cost", measurement={"model": "m-1", "tokens": TOKENS, "cost": None, "source": "s", **measurement})


def test_what_a_response_used_are_usage_attributes_and_an_unknown_count_is_none() -> None:
    told = attributes(made(_cost(kind="delta", responseId="resp-1")))
    assert {name: value for name, value in told.items() if name.startswith("gen_ai.")} == {
        "gen_ai.conversation.id": told["titan.conversation"],
        "gen_ai.response.id": "resp-1",
        "gen_ai.response.model": "m-1",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_creation.input_tokens": 2,
    }


def test_a_reading_of_a_counter_is_no_usage_that_anybody_sums() -> None:
    told = attributes(made(_cost(kind="snapshot", scope="turn", scopeId="t", epoch="e", sequence=1)))
    assert not [name for name in told if name.startswith("gen_ai.usage")]
    assert told["titan.input_tokens"] == 10


def test_what_an_attempt_used_is_not_counted_beside_its_costs() -> None:
    told = attributes(made(record_of("attempt", usage={"costUsd": 0.5, "inputTokens": 7}, outcome="failed")))
    assert not [name for name in told if name.startswith("gen_ai.usage")]
    assert (told["titan.input_tokens"], told["titan.cost_usd"]) == (7, 0.5)


def test_what_an_amount_rests_on_stands_beside_it() -> None:
    item = upsert(_cost(kind="delta", responseId="r"), 1)._replace(pricing=Pricing("estimate", None, "7"))
    span = span_of(item)
    assert span is not None
    told = attributes(span)
    assert (told["titan.price_basis"], told["titan.price_table_version"]) == ("estimate", "7")
    assert "titan.price_reason" not in told


def test_the_greatest_counts_stay_whole_numbers() -> None:
    told = attributes(made(_cost(kind="delta", responseId="r", tokens={**TOKENS, "input": 2**53 - 1})))
    assert told["gen_ai.usage.input_tokens"] == 2**53 - 1


def test_an_artifact_is_a_span_with_all_its_columns() -> None:
    record = next(record for record in DOC_RUN if record.get("artifactKind") == "file")
    span = made(record)
    told = attributes(span)
    assert span.name == "artifact file"
    assert (told["titan.path"], told["titan.lines"]) == (record["path"], "40-58")


def test_texts_that_protobuf_does_not_take_are_escaped() -> None:
    record = run_record("a\ud83d\x00", workflowName="cut \ud83d", status="failed")
    span = span_of(upsert(record, 1, json_bytes=json.dumps(record).encode()))
    assert span is not None
    assert Span.FromString(span.SerializeToString()).name == span.name
    assert span.trace_id == trace_id(attributes(span)["titan.run_id"])


@pytest.mark.parametrize("record", DOC_RUN, ids=[f"{n}-{record['kind']}" for n, record in enumerate(DOC_RUN)])
def test_nothing_private_is_in_the_span_of_a_redacted_record(record: dict[str, Any]) -> None:
    marked = {**record, "secretField": MARK}
    for field in ("error", "reason", "conversation", "executionId", "runnerRef", "agentId", "repo", "branch", "path"):
        if field in record:
            marked[field] = MARK
    if "correlations" in record:
        marked["correlations"] = {"factory.task": MARK}
    item = upsert(redact(marked, Policy("k" * 32)), 1)
    span = span_of(item)
    assert span is not None
    assert MARK.encode() not in span.SerializeToString()


# ------------------------------------------------------------------------------------------------------ what is sent


def test_the_same_again_is_not_sent_again(receiver: Receiver) -> None:
    write(receiver, [upsert(DONE, 2)], [upsert(DONE, 2)], [upsert(DONE, 3)], [upsert(run_record("r1"), 1)])
    assert len(receiver.spans) == 1


def test_a_span_that_changed_is_sent_again_under_its_ids(receiver: Receiver) -> None:
    write(receiver, [upsert(DONE, 2)], [upsert({**DONE, "status": "failed"}, 3)])
    first, second = receiver.spans
    assert (first.trace_id, first.span_id) == (second.trace_id, second.span_id)
    assert (first.status.code, second.status.code) == (Status.STATUS_CODE_OK, Status.STATUS_CODE_ERROR)


def test_an_older_version_is_not_sent_after_a_newer(receiver: Receiver) -> None:
    write(receiver, [upsert(DONE, 7)], [upsert({**DONE, "status": "failed"}, 3)])
    assert len(receiver.spans) == 1


def test_a_deletion_sends_nothing_and_an_older_record_after_it_neither(receiver: Receiver) -> None:
    write(receiver, [upsert(DONE, 2)], [deletion(DONE, 5)], [upsert({**DONE, "status": "failed"}, 4)])
    assert len(receiver.spans) == 1


def test_what_was_forgotten_is_sent_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "RECORDS_REMEMBERED", 1)
    other = run_record("r2", status="failed")
    write(receiver, [upsert(DONE, 1)], [upsert(other, 2)], [upsert(DONE, 1)])
    assert len(receiver.spans) == 3


@pytest.mark.parametrize(("name", "limit"), [("REQUEST_SPANS_MAX", 2), ("REQUEST_BYTES_MAX", 900)])
def test_a_large_batch_is_several_requests(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(otlp, name, limit)
    write(receiver, [upsert(run_record(f"r{n}", status="failed"), n) for n in range(5)])
    assert len(receiver.spans) == 5
    assert len(receiver.requests) == 3


def test_what_was_sent_before_a_failure_is_not_sent_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "REQUEST_SPANS_MAX", 1)
    batch = [upsert(run_record(f"r{n}", status="failed"), n) for n in range(3)]
    receiver.answers = [accepted(), Answer(500)]

    async def work(sink: OtlpSink) -> None:
        with pytest.raises(SinkFailed):
            await sink.write(batch)
        await sink.write(batch)

    use(receiver, work)
    sent = [span.span_id for span in receiver.spans]
    assert sent == [span_id("run", name) for name in ("r0", "r1", "r1", "r2")]


# ----------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_receiver_is_asked_again_when_it_says(receiver: Receiver, status: int) -> None:
    receiver.answers = [Answer(status, {"Retry-After": "17"}, MARK.encode())]

    async def work(sink: OtlpSink) -> None:
        with pytest.raises(SinkBusy) as caught:
            await sink.write([upsert(DONE, 1)])
        assert caught.value.delay_s == 17
        assert MARK not in str(caught.value)
        await sink.write([upsert(DONE, 1)])

    use(receiver, work)
    assert len(receiver.requests) == 2


@pytest.mark.parametrize(
    ("value", "delay_s"),
    [
        (None, 5.0),
        ("0", 0.0),
        (" 30 ", 30.0),
        ("9" * 400, 3600.0),
        ("Mon, 28 Sep 2026 12:01:00 GMT", 60.0),
        ("Mon, 28 Sep 2026 11:00:00 GMT", 0.0),
        ("Mon, 28 Sep 2026 12:01:00", 60.0),
        ("soon", 5.0),
        ("-3", 5.0),
        ("", 5.0),
    ],
)
def test_a_delay_is_seconds_or_a_date_and_bounded(value: str | None, delay_s: float) -> None:
    assert retry_delay_s(value, NOW) == delay_s


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 413, 500])
def test_any_other_answer_is_a_failure_that_repeats_nothing(receiver: Receiver, status: int) -> None:
    receiver.answers = [Answer(status, {"Location": f"{receiver.location}/elsewhere"}, MARK.encode())]

    async def work(sink: OtlpSink) -> None:
        with pytest.raises(SinkFailed, match=f"answered {status}") as caught:
            await sink.write([upsert(run_record(MARK, status="failed"), 1)])
        assert MARK not in str(caught.value)
        assert len(receiver.requests) == 1
        await sink.write([upsert(run_record(MARK, status="failed"), 1)])

    use(receiver, work)
    assert len(receiver.requests) == 2


def test_rejected_spans_are_told_once_by_their_number_and_never_sent_again(receiver: Receiver) -> None:
    batch = [upsert(run_record(f"r{n}", status="failed"), n) for n in range(3)]
    receiver.answers = [accepted(rejected=2)]

    async def work(sink: OtlpSink) -> None:
        with pytest.raises(SinkFailed, match="rejected 2 spans") as caught:
            await sink.write(batch)
        assert MARK not in str(caught.value)
        await sink.write(batch)

    use(receiver, work)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("answer", [Answer(200), Answer(200, {"Content-Type": "application/json"}, b"{}")])
def test_an_answer_without_protobuf_means_that_all_is_well(receiver: Receiver, answer: Answer) -> None:
    receiver.answers = [answer]
    write(receiver, [upsert(DONE, 1)])
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"x" * 200_000])
def test_an_answer_that_is_no_otlp_is_a_failure(receiver: Receiver, body: bytes) -> None:
    receiver.answers = [Answer(200, {"Content-Type": "application/x-protobuf"}, body)]
    with pytest.raises(SinkFailed, match="answer is"):
        write(receiver, [upsert(DONE, 1)])


def test_a_receiver_that_is_away_is_a_failure_without_content() -> None:
    async def work() -> None:
        sink = open_sink("otlp:http://127.0.0.1:1", POLICY)
        assert await sink.open() is False
        with pytest.raises(SinkFailed, match="cannot be reached") as caught:
            await sink.write([upsert(run_record(MARK, status="failed"), 1)])
        assert MARK not in str(caught.value)
        await sink.close()
        await sink.close()

    asyncio.run(work())


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("https://h/", "https://h/v1/traces"),
        ("https://h/api/public/otel", "https://h/api/public/otel/v1/traces"),
        ("https://h/v1/traces", "https://h/v1/traces"),
    ],
)
def test_traces_are_posted_below_the_receivers_url(location: str, url: str) -> None:
    assert traces_url(location) == url


@pytest.mark.parametrize(
    "location",
    ["", "//h", "ftp://h", "http://", "http://h:x", "http://[", f"http://u:{MARK}@h", f"https://h?token={MARK}"],
)
def test_a_url_that_is_of_no_use_is_refused_and_not_repeated(location: str) -> None:
    with pytest.raises(SinkRefused) as caught:
        open_sink(f"otlp:{location}", POLICY)
    assert MARK not in str(caught.value)


@pytest.mark.parametrize("place", ["headers_env", "headers_file"])
def test_headers_come_from_the_environment_or_a_file(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    text = f"Authorization: Bearer {MARK}\nX-Project: a b\n"
    monkeypatch.setenv("OTLP_HEADERS", text)
    (tmp_path / "headers").write_text(text)
    where = {"headers_env": "OTLP_HEADERS", "headers_file": tmp_path / "headers"}[place]
    export = ExportSettings.model_validate(
        {"name": "a", "sink": f"otlp:{receiver.location}", "redact": False, place: where}
    )

    async def work(sink: OtlpSink) -> None:
        await sink.close()
        configure_sink(sink, load_settings(), export)
        await sink.open()
        await sink.write([upsert(DONE, 1)])

    use(receiver, work)
    [request] = receiver.requests
    assert (request.headers["Authorization"], request.headers["X-Project"]) == (f"Bearer {MARK}", "a b")
    assert MARK not in export.model_dump_json()


@pytest.mark.parametrize("text", [MARK, f"A B: {MARK}", f"A: x\n: {MARK}", f"A: {MARK}\x00"])
def test_headers_that_are_none_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SinkRefused, match="line") as caught:
        parsed_headers(text)
    assert MARK not in str(caught.value)


def test_headers_that_are_missing_are_an_error_of_the_settings(tmp_path: Path) -> None:
    export = ExportSettings(name="a", sink="otlp:http://h", redact=False, headers_env="ABSENT")
    with pytest.raises(SettingsError, match="ABSENT"):
        export.load_headers({})
    export = ExportSettings(name="a", sink="otlp:http://h", redact=False, headers_file=tmp_path / "absent")
    with pytest.raises(SettingsError, match="headers_file"):
        export.load_headers({})
    (tmp_path / "bytes").write_bytes(b"A: \xff")
    export = ExportSettings(name="a", sink="otlp:http://h", redact=False, headers_file=tmp_path / "bytes")
    with pytest.raises(SettingsError, match="UTF-8"):
        export.load_headers({})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"sink": "memory:", "headers_env": "A"}, "only an otlp: sink"),
        ({"sink": "otlp:http://h", "headers_env": "A", "headers_file": "b"}, "give one"),
    ],
)
def test_headers_that_make_no_sense_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ExportSettings.model_validate({"name": "a", "redact": False, **fields})


def test_a_generation_cannot_be_put_in_place_in_one_step() -> None:
    assert not can_be_switched("otlp:http://h:4318")
    assert instead_of_switching("otlp:http://h:4318") == "what changed is sent again beside what was sent"


def test_the_effective_settings_name_where_headers_are_and_never_show_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_PROJECTOR_SECRET_HEADERS", f"Authorization: {MARK}")
    (tmp_path / "headers").write_text(f"Authorization: {MARK}")
    exports = [
        {"name": "a", "sink": "otlp:http://h", "redact": False, "headers_env": "TRACE_PROJECTOR_SECRET_HEADERS"},
        {"name": "b", "sink": "otlp:http://h", "redact": False, "headers_file": str(tmp_path / "headers")},
    ]
    config = tmp_path / "c.toml"
    config.write_text(
        "".join("[[exports]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in export.items()) for export in exports)
    )
    text = describe_settings(load_settings(config))
    assert f'headers_env = "TRACE_PROJECTOR_SECRET_HEADERS"  # set: {MASK}' in text
    assert 'headers_file = "headers"' in text
    assert MARK not in text
