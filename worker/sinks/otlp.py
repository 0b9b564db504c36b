"""A receiver of OpenTelemetry traces over HTTP with protobuf: Jaeger, Tempo, Langfuse, Phoenix, a collector.

``otlp:http://host:4318`` posts to ``/v1/traces`` there. What a record becomes is ``worker.otlp_spans``'s to say; only
what has ended is sent. OTLP can append and nothing else, so this destination does not hold what the others hold:

- A deletion deletes nothing: it is left out, and what was sent stays until the receiver's retention takes it.
- A record that changed after its span was sent is sent again under the same ids, and what becomes of the two is the
  receiver's affair: Jaeger shows both and warns of a duplicate id (equal ones it shows once), a table behind a
  collector holds both, and what keeps one row per span id keeps the first or the last of them.
- Within the memory of ``RECORDS_REMEMBERED`` records a version that is not newer, and a span with the same bytes, is
  not sent again. A crash between a send and its commit sends spans twice, with the same ids and bytes.
- A receiver has no place for a policy to be checked against; each span's resource names its digest.

A request that is refused for now (429, 502, 503, 504) is tried again when the receiver says. Spans that a receiver
rejects out of an accepted request would be rejected again, so, as the protocol demands, they are not sent once more:
the write fails once, with their number, and the same batch then counts as written.
"""

import asyncio
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import ClassVar, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from worker.otlp_spans import SCHEMA_URL, span_of
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import RecordKey, SinkBusy, SinkFailed, SinkRefused, Upsert, Version, newest_by_id

RECORDS_REMEMBERED: Final = 200_000
"""About 250 bytes each."""
REQUEST_SPANS_MAX: Final = 2_000
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Before compression; a span beyond it is sent alone."""

_TIMEOUT: Final = aiohttp.ClientTimeout(total=60, connect=10)
_ANSWER_BYTES_MAX: Final = 64 * 1024
_BUSY_DELAY_S: Final = 5.0
_BUSY_DELAY_MAX_S: Final = 3600.0
_BUSY_STATUSES: Final = frozenset({429, 502, 503, 504})
_PROTOBUF: Final = "application/x-protobuf"
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")

_log = structlog.get_logger(__name__)


class _Sent(NamedTuple):
    """The newest version of a record that was seen, and a digest of the span that was sent of it, if any was."""

    version: Version
    digest: bytes | None


class OtlpSink:
    """Send the span of every record that has ended, and of every change to it."""

    # One memory of what was sent.
    single_writer: ClassVar[bool] = True
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        self._url = traces_url(location)
        self._policy_digest = policy_digest
        self._headers: Mapping[str, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._sent: dict[RecordKey, _Sent] = {}
        self._mutex = asyncio.Lock()

    def configure(self, settings: Settings, export: ExportSettings) -> None:
        """Take the headers that the receiver wants and nobody else may see."""
        del settings
        self._headers = parsed_headers(export.load_headers())

    async def open(self) -> bool:
        async with self._mutex:
            if self._session is None:
                self._session = aiohttp.ClientSession(timeout=_TIMEOUT, headers=self._headers)
        # What it holds cannot be asked, so nothing is read again because of it.
        return False

    async def write(self, batch: Sequence[Upsert]) -> None:
        newest = newest_by_id(batch)
        async with self._mutex:
            assert self._session is not None, "a sink is opened before it is written"
            newer = [
                item for item in newest if item.key not in self._sent or item.version > self._sent[item.key].version
            ]
            fresh = await asyncio.to_thread(self._fresh, newer)
            rejected = 0
            for part in _parts([(key, span) for key, _, span in fresh if span is not None]):
                rejected += await self._post(self._session, await asyncio.to_thread(self._request, part))
                self._remember([(key, sent) for key, sent, _ in fresh if key in part])
            self._remember([(key, sent) for key, sent, _ in fresh])
        if rejected:
            _log.warning("spans_rejected", count=rejected)
            raise SinkFailed(f"the OTLP receiver rejected {rejected} spans for good; all others are there")

    async def close(self) -> None:
        async with self._mutex:
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    # ----------------------------------------------------------------------------------------------------- spans

    def _fresh(self, batch: Sequence[Upsert]) -> list[tuple[RecordKey, _Sent, bytes | None]]:
        """Give what is to be remembered of each record, and the span's bytes where they were not sent yet."""
        fresh = []
        for item in batch:
            span = span_of(item)
            data = None if span is None else span.SerializeToString(deterministic=True)
            digest = None if data is None else hashlib.blake2b(data, digest_size=16).digest()
            before = self._sent.get(item.key)
            last = None if before is None else before.digest
            is_known = digest is None or digest == last
            fresh.append((item.key, _Sent(item.version, digest or last), None if is_known else data))
        return fresh

    def _remember(self, items: Sequence[tuple[RecordKey, _Sent]]) -> None:
        for key, sent in items:
            self._sent.pop(key, None)
            self._sent[key] = sent
        while len(self._sent) > RECORDS_REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def _request(self, spans: Mapping[RecordKey, bytes]) -> bytes:
        policy = KeyValue(key="titan.policy", value=AnyValue(string_value=self._policy_digest))
        name = KeyValue(key="service.name", value=AnyValue(string_value="trace-projector"))
        request = ExportTraceServiceRequest(
            resource_spans=[
                ResourceSpans(
                    resource=Resource(attributes=[name, policy]),
                    scope_spans=[
                        ScopeSpans(
                            scope=InstrumentationScope(name="trace-projector"),
                            spans=[Span.FromString(data) for data in spans.values()],
                            schema_url=SCHEMA_URL,
                        )
                    ],
                    schema_url=SCHEMA_URL,
                )
            ]
        )
        # The time in a gzip header would make every export other bytes.
        return gzip.compress(request.SerializeToString(deterministic=True), compresslevel=6, mtime=0)

    # ------------------------------------------------------------------------------------------------------ HTTP

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> int:
        """Send one request; gives how many of its spans were rejected."""
        headers = {"Content-Type": _PROTOBUF, "Content-Encoding": "gzip"}
        try:
            # A redirect would take secret headers elsewhere.
            async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                if response.status in _BUSY_STATUSES:
                    delay_s = retry_delay_s(response.headers.get("Retry-After"), datetime.now(UTC))
                    raise SinkBusy(f"the OTLP receiver answered {response.status}", delay_s)
                if not 200 <= response.status < 300:
                    # What it says may repeat what it was sent.
                    raise SinkFailed(f"the OTLP receiver answered {response.status}")
                is_protobuf = response.content_type == _PROTOBUF
                answer = await _read_some(response.content) if is_protobuf else b""
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SinkFailed(f"the OTLP receiver cannot be reached: {type(error).__name__}") from None
        try:
            return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)
        except DecodeError:
            raise SinkFailed("the OTLP receiver's answer is no OTLP") from None


async def _read_some(content: aiohttp.StreamReader) -> bytes:
    data = b""
    while len(data) <= _ANSWER_BYTES_MAX:
        chunk = await content.read(_ANSWER_BYTES_MAX)
        if not chunk:
            return data
        data += chunk
    raise SinkFailed("the OTLP receiver's answer is longer than any of OTLP")


def _parts(spans: Sequence[tuple[RecordKey, bytes]]) -> Iterator[dict[RecordKey, bytes]]:
    """Cut spans into requests of a bounded size."""
    part: dict[RecordKey, bytes] = {}
    size = 0
    for key, data in spans:
        if part and (len(part) >= REQUEST_SPANS_MAX or size + len(data) > REQUEST_BYTES_MAX):
            yield part
            part, size = {}, 0
        part[key] = data
        size += len(data)
    if part:
        yield part


def traces_url(location: str) -> str:
    """Give the URL to post to. Raises SinkRefused for one that is not of HTTP, or holds a secret or parameters."""
    try:
        parts = urlsplit(location)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_http = urlsplit(""), False
    if not is_http:
        raise SinkRefused("an OTLP sink needs a receiver's URL, as in otlp:http://localhost:4318")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SinkRefused("an OTLP sink's URL holds no user and no parameters; secrets go into headers_env")
    path = parts.path.rstrip("/").removesuffix("/v1/traces")
    return f"{parts.scheme}://{parts.netloc}{path}/v1/traces"


def parsed_headers(text: str) -> dict[str, str]:
    """Read headers, one ``Name: value`` per line. Raises SinkRefused, which repeats none of them."""
    headers = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        found = _HEADER.fullmatch(line.strip())
        if found is None:
            raise SinkRefused(f"line {number} of the OTLP headers is not of the form Name: value")
        headers[found[1]] = found[2]
    return headers


def retry_delay_s(value: str | None, now: datetime) -> float:
    """Give the delay that a Retry-After header asks for, in seconds or as a date."""
    if value is None:
        return _BUSY_DELAY_S
    if value.strip().isascii() and value.strip().isdigit():
        # Digits without end are no delay.
        return min(float(value.strip()[:9]), _BUSY_DELAY_MAX_S)
    try:
        at = parsedate_to_datetime(value)
        delay_s = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    except (ValueError, OverflowError):
        return _BUSY_DELAY_S
    return min(max(0.0, delay_s.total_seconds()), _BUSY_DELAY_MAX_S)
