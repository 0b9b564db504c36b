"""The sections of the settings, and what a value in them may look like."""

import os
import re
from collections.abc import Mapping
from datetime import UTC, date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from projections.errors import ProjectionError
from projections.ids import ATTEMPT_ID_PATTERN, RUN_ID_PATTERN
from projections.privacy_classes import Profile
from projections.records_models import RecordKind
from projections.reports.days import Window, window_of

_KIB = 1024
_MIB = 1024 * _KIB
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_EXPORT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# A group's name and a generation are put behind it, and Kafka allows 249 characters.
_INSTANCE_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SINK_URL = re.compile(r"[a-z][a-z0-9+.-]*:.*", re.DOTALL)
_REPOSITORY = re.compile(r"[^/\s#@:]+/[^/\s#@:]+")


class SettingsError(ValueError):
    """Settings that cannot be used; `problems` holds one sentence each, none of which repeats a secret."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    """Refuse what does not match a pattern as a whole, and say what it is not."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            message = f"is no {what}"
            raise ValueError(message)
        return value

    return AfterValidator(check)


def normalise_repository(name: str) -> str:
    """Give `owner/name` as the projection writes it: lower case, no trailing `.git`; anything else is refused."""
    folded = name.strip().lower().removesuffix(".git")
    if not _REPOSITORY.fullmatch(folded):
        message = "holds an entry that is not owner/name"
        raise ValueError(message)
    return folded


def _day_or_time(value: object) -> object:
    # TOML has days and times of its own; a bound is text from here on.
    return value.isoformat() if isinstance(value, date) else value


TopicName = Annotated[str, matching(_TOPIC_NAME, "topic name (letters, digits, '.', '_', '-')")]
Repository = Annotated[str, AfterValidator(normalise_repository)]
RunId = Annotated[str, matching(RUN_ID_PATTERN, "run id (text without white space)")]
AttemptId = Annotated[str, matching(ATTEMPT_ID_PATTERN, "attempt id (workflow:RUN:STEP:ITERATION:ATTEMPT)")]
Instant = Annotated[str, BeforeValidator(_day_or_time)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TopicSettings(_Section):
    """Names of the topics that are read; `erasures` is `<app_id>-erasures` unless it is given."""

    workflow_runs: TopicName = "workflow-runs"
    gate_decisions: TopicName = "gate-decisions"
    ledger_changes: TopicName = "ledger-changes"
    transcripts: TopicName = "transcripts"
    erasures: TopicName | None = None

    def by_source(self, app_id: str) -> dict[str, str]:
        """Map each source's name (`workflow-runs`, …, `erasures`) to the topic it is read from."""
        return {
            "workflow-runs": self.workflow_runs,
            "gate-decisions": self.gate_decisions,
            "ledger-changes": self.ledger_changes,
            "transcripts": self.transcripts,
            "erasures": self.erasures or f"{app_id}-erasures",
        }


class KafkaSettings(_Section):
    """How to reach the brokers beyond their addresses."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_file: Path | None = None
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    session_timeout_s: Seconds = 30.0
    heartbeat_interval_s: Seconds = 3.0
    request_timeout_s: Seconds = 40.0
    # A name of this worker that outlives a restart; empty: the group knows it only while it runs.
    instance_id: Annotated[str, matching(_INSTANCE_ID, "instance id (letters, digits, '.', '_', '-')")] | None = None
    on_missing_offsets: Literal["stop", "skip"] = "stop"
    on_corrupt_batch: Literal["stop", "skip"] = "stop"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.security_protocol.startswith("SASL") and (self.sasl_username is None or self.sasl_password is None):
            message = f"security_protocol {self.security_protocol} needs sasl_username and sasl_password"
            raise ValueError(message)
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            message = "ssl_cert_file and ssl_key_file go together"
            raise ValueError(message)
        return self


class LimitSettings(_Section):
    """The bound on every loop, queue and message."""

    message_bytes_max: Count = 8 * _MIB
    transcript_line_bytes_max: Count = 4 * _MIB
    # The parser itself stops at 127, so the setting can only be lower.
    json_depth_max: Annotated[int, Field(ge=1, le=127)] = 127
    facts_per_message_max: Count = 10_000
    batch_messages_max: Count = 2_000
    batch_bytes_max: Count = 16 * _MIB
    batch_wait_s: Seconds = 0.25
    in_flight_bytes_max: Count = 64 * _MIB
    # With state_dir: of all partitions of a worker together. In memory a fact takes some 3 to 6 KiB.
    state_facts_max: Count = 4_000
    dead_letters_in_row_max: Count = 1_000
    dead_letters_window_messages: Count = 10_000
    dead_letters_window_percent_max: Annotated[float, Field(gt=0, le=100)] = 5.0
    corrupt_batch_tries_max: Count = 5
    sink_retry_delay_max_s: Seconds = 30.0
    standstill_s: Seconds = 60.0
    shutdown_drain_s: Seconds = 10.0


class ExportFilterSettings(_Section):
    """Which records an export is for; all conditions that are given have to hold, each for any of its values.

    A run is named by its id or by how its id begins. Records that are of no attempt, runs among them, never match
    `attempt_ids`; `repos` asks artifacts alone. `since` and `until` are days or times (UTC unless they say otherwise).
    """

    kinds: Annotated[frozenset[RecordKind], Field(min_length=1)] | None = None
    run_ids: Annotated[frozenset[RunId], Field(min_length=1)] | None = None
    run_id_prefixes: Annotated[frozenset[RunId], Field(min_length=1)] | None = None
    attempt_ids: Annotated[frozenset[AttemptId], Field(min_length=1)] | None = None
    repos: Annotated[frozenset[Repository], Field(min_length=1)] | None = None
    since: Instant | None = None
    until: Instant | None = None

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        if all(getattr(self, field) is None for field in type(self).model_fields):
            message = f"has no condition; give one of {', '.join(type(self).model_fields)}, or no filter"
            raise ValueError(message)
        if self.kinds is not None and self.repos is not None and "artifact" not in self.kinds:
            message = "has repos, which are asked of artifacts, and kinds without artifact"
            raise ValueError(message)
        if self.kinds == frozenset[RecordKind]({"run"}) and self.attempt_ids is not None:
            message = "has attempt_ids and matches runs alone, which are of no attempt"
            raise ValueError(message)
        self.window()
        return self

    def window(self) -> Window:
        """Give the stretch of time that a record's `at` has to lie in."""
        try:
            return window_of(self.since, self.until, UTC)
        except ProjectionError as error:
            if error.reason == "empty_window":
                message = "matches nothing: until is not after since"
            else:
                message = f"{error.field} is no day or time (2026-11-03, 2026-11-03T09:00, or with Z or an offset)"
            # The error as pydantic shows it must not bring its cause along.
            raise ValueError(message) from None


class ExportSettings(_Section):
    """One export: where records go, which, and what is taken out of them on the way."""

    name: Annotated[str, matching(_EXPORT_NAME, "export name (letters, digits, '.', '_', '-')")]
    sink: Annotated[str, matching(_SINK_URL, "sink URL such as duckdb:traces.duckdb")]
    redact: bool = True
    profile: Profile = "normal"
    public_repos: frozenset[Repository] = frozenset()
    key_env: Annotated[str, Field(min_length=1)] | None = None
    key_file: Path | None = None
    headers_env: Annotated[str, Field(min_length=1)] | None = None
    headers_file: Path | None = None
    estimate_costs: bool | None = None
    filter: ExportFilterSettings | None = None

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.key_env is not None and self.key_file is not None:
            message = f"export {self.name} has both key_env and key_file; give one"
            raise ValueError(message)
        if self.redact and self.key_env is None and self.key_file is None:
            message = f"export {self.name} redacts and so needs key_env or key_file (or redact = false)"
            raise ValueError(message)
        if not self.redact and self.profile != "normal":
            message = f"export {self.name} has redact = false, so no profile {self.profile}; give one of the two"
            raise ValueError(message)
        if self.headers_env is not None and self.headers_file is not None:
            message = f"export {self.name} has both headers_env and headers_file; give one"
            raise ValueError(message)
        if (self.headers_env or self.headers_file) and not self.sink.startswith("otlp:"):
            message = f"export {self.name} has headers, and only an otlp: sink sends any"
            raise ValueError(message)
        return self

    def load_key(self, environ: Mapping[str, str] | None = None) -> bytes:
        """Read the digest key of a redacting export; `SettingsError` when it is missing, unreadable or empty."""
        found = self._read_secret("key", self.key_env, self.key_file, os.environ if environ is None else environ)
        if found is None:
            raise SettingsError([f"export {self.name} has no digest key: give key_env or key_file"])
        where, data = found
        # Editors and `openssl rand -hex 32 > key` end a file with a newline that nobody means as part of the key.
        key = data if self.key_env is not None else data.removesuffix(b"\n").removesuffix(b"\r")
        if not key:
            raise SettingsError([f"export {self.name}: the digest key in {where} is empty"])
        return key

    def load_headers(self, environ: Mapping[str, str] | None = None) -> str:
        """Read what a receiver wants beside every request, a line `Name: value` each; empty when nothing is named.

        `SettingsError` when it is missing or unreadable.
        """
        values = os.environ if environ is None else environ
        found = self._read_secret("headers", self.headers_env, self.headers_file, values)
        if found is None:
            return ""
        where, data = found
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise SettingsError([f"export {self.name}: the headers in {where} are not UTF-8"]) from None

    def _read_secret(
        self, what: str, variable: str | None, file: Path | None, environ: Mapping[str, str]
    ) -> tuple[str, bytes] | None:
        """Read what an environment variable or a file holds, and say where it stands; None when neither is named."""
        if variable is not None:
            if variable not in environ:
                raise SettingsError([f"export {self.name}: environment variable {variable} ({what}_env) is not set"])
            return f"environment variable {variable}", environ[variable].encode("utf-8", "surrogateescape")
        if file is None:
            return None
        try:
            return f"file {file.name}", file.read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise SettingsError([f"export {self.name}: cannot read {what}_file {file.name}: {reason}"]) from error
