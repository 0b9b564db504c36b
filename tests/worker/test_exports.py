"""What leaves by an export: redacted records, redacted deletions, and no trace of the key."""

import asyncio
import hashlib
import hmac
import json
import traceback
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from projections.errors import ProjectionError
from tests.worker.sinks.destinations import DESTINATIONS, DOC_RUN, REPOSITORY
from worker.exports import ExportPolicy, RecordMessage, make_upsert, make_upserts, record_key, record_message
from worker.settings_sections import ExportSettings, SettingsError
from worker.sink import Upsert, open_sink

KEY = "doc-run-key-ZZKEYZZ-of-more-than-32-bytes"
ORIGIN = "trace-projector"
ROWS = [
    json.loads(line)
    for line in (REPOSITORY / "fixtures/conformance/titan/doc_run.jsonl").read_text(encoding="utf-8").splitlines()
]
REPOS: list[list[str]] = [[], ["acme/docs"]]


def settings(**changes: Any) -> ExportSettings:
    return ExportSettings(**{"name": "public", "sink": "memory:", "key_env": "DIGEST_KEY", **changes})


def policy(key: str = KEY, **changes: Any) -> ExportPolicy:
    return ExportPolicy.from_settings(settings(**changes), origin=ORIGIN, environ={"DIGEST_KEY": key})


UNREDACTED = ExportPolicy.unredacted(origin=ORIGIN)


def encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def living(record: dict[str, Any], offset: int = 1) -> RecordMessage:
    return RecordMessage(1, offset, record["kind"], record["id"], None, encoded(record))


def deleted(record: dict[str, Any], offset: int = 2) -> RecordMessage:
    return RecordMessage(1, offset, record["kind"], record["id"], record.get("repo"), None)


def digests_in(upserts: list[Upsert]) -> set[str]:
    texts = json.dumps([[item.id, item.record] for item in upserts])
    return {part.split('"')[0] for part in texts.split("hmac-sha256:")[1:]}


# ------------------------------------------------------------------------------------------------- redaction on the way


def test_every_record_of_the_documentation_run_leaves_as_the_reference_redacts_it() -> None:
    for row in ROWS:
        for export in row["exports"]:
            options = export["options"]
            upsert = make_upsert(policy(options["key"], public_repos=options["publicRepos"]), living(row["record"]))
            assert upsert.record == export["redacted"]
            assert upsert.json == encoded(upsert.record or {})
            assert upsert.id == export["redacted"]["id"]


@pytest.mark.parametrize("public_repos", REPOS)
def test_a_deletion_leaves_under_the_id_that_its_record_left_under(public_repos: list[str]) -> None:
    rules = policy(public_repos=public_repos)
    for record in DOC_RUN:
        record_left, deletion_left = make_upserts(rules, [living(record), deleted(record)])
        assert deletion_left == Upsert(record["kind"], record_left.id, 1, 2, None, None)


def test_without_redaction_bytes_and_ids_leave_as_they_are() -> None:
    for record in DOC_RUN:
        assert make_upsert(UNREDACTED, living(record)) == Upsert(
            record["kind"], record["id"], 1, 1, record, encoded(record)
        )
        assert make_upsert(UNREDACTED, deleted(record)).id == record["id"]


def test_a_record_under_another_id_or_kind_does_not_leave() -> None:
    good = living(DOC_RUN[0])
    bad = [
        good._replace(id="other"),
        good._replace(kind="attempt"),
        good._replace(kind="unheard-of"),
        good._replace(kind="unheard-of", record=None),
        good._replace(record=b"[]"),
        good._replace(record=b"{"),
        good._replace(record=b""),
    ]
    for rules, message in product([policy(), UNREDACTED], bad):
        with pytest.raises(ProjectionError):
            make_upsert(rules, message)


def test_a_field_without_a_privacy_class_does_not_leave() -> None:
    upsert = make_upsert(policy(), living({**DOC_RUN[0], "prompt": "ZZSECRETZZ", "extra": {"ZZSECRETZZ": 1}}))
    assert upsert.json is not None
    assert b"ZZSECRETZZ" not in upsert.json


# ----------------------------------------------------------------------------------------------------- markers and keys

MARK = "ZZSECRETZZ"


def marked(value: Any) -> Any:
    """A record with a marker in every text that may be private."""
    record = json.loads(json.dumps(value))
    for field in ("error", "reason", "executionId", "runnerRef", "agentId", "conversation", "turn", "path", "branch"):
        if record.get(field) is not None:
            record[field] += MARK
    if "span" in record:
        record["span"]["sourceId"] += MARK
    if "correlations" in record:
        record["correlations"] = dict.fromkeys(record["correlations"], MARK)
    if record["kind"] in {"call", "cost", "artifact"}:
        record["id"] = record["id"].replace("@", f"{MARK}@") if "@" in record["id"] else record["id"] + MARK
    if record["kind"] == "artifact":
        record["repo"] = f"acme/{MARK}"
    if record["kind"] == "call":
        record["name"] = f"mcp__{MARK}"
    if record["kind"] == "cost":
        record["measurement"]["responseId"] = MARK
    return record


def test_no_marker_and_no_key_is_in_any_byte_or_name_that_a_sink_makes(tmp_path: Path, capfdbinary: Any) -> None:
    rules = policy(public_repos=["acme/docs"])
    records = [marked(record) for record in DOC_RUN]
    assert sum(MARK in json.dumps(record) for record in records) > len(records) / 2
    assert sum(MARK in record["id"] for record in records) >= 5
    batches = [
        make_upserts(rules, [living(record, offset) for offset, record in enumerate(records)]),
        make_upserts(rules, [deleted(record, 100) for record in records if record["kind"] in {"cost", "artifact"}]),
    ]
    for name, destination in DESTINATIONS.items():
        directory = tmp_path / name
        directory.mkdir()
        held = destination(directory).write(*batches)
        assert held.keys() == {item.key for item in batches[0]} - {item.key for item in batches[1]}
        assert MARK.encode() not in b"".join([repr(key).encode() + value for key, value in held.items()])

    async def print_all() -> None:
        sink = open_sink("-", rules.digest)
        await sink.open()
        await sink.write(batches[0])
        await sink.close()

    asyncio.run(print_all())
    printed = capfdbinary.readouterr()
    leaks = [path for path, data in _everything(tmp_path) if MARK.encode() in data or KEY.encode() in data]
    assert leaks == []
    assert printed.out.count(b"\n") == len(records)
    assert MARK.encode() not in printed.out + printed.err


def _everything(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Names and bytes of all files; of a database also what its tables say, which its bytes may hide."""
    for path in directory.rglob("*"):
        yield path, path.name.encode()
        if path.is_file():
            yield path, path.read_bytes()
        if path.suffix == ".duckdb":
            destination = DESTINATIONS["duckdb"](path.parent)
            tables = destination.query("SELECT table_name FROM duckdb_tables()")  # type: ignore[attr-defined]
            for (table,) in tables:
                yield path, repr(destination.query(f"FROM {table}")).encode()  # type: ignore[attr-defined]


def test_the_key_shows_in_nothing_that_is_printed_compared_or_raised(tmp_path: Path) -> None:
    rules = policy()
    assert "ZZKEYZZ" not in f"{rules!r} {rules} {rules.digest} {rules.warnings} {settings()!r} {rules.redaction!r}"
    with pytest.raises(ProjectionError) as caught:
        make_upsert(rules, living(DOC_RUN[0])._replace(record=b"{"))
    assert "ZZKEYZZ" not in "".join(traceback.format_exception(caught.value))
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    from_file = ExportPolicy.from_settings(settings(key_env=None, key_file=key_file), origin=ORIGIN)
    assert from_file.digest == rules.digest, "the newline at its end is no part of a key"


@pytest.mark.parametrize("environ", [{}, {"DIGEST_KEY": ""}])
def test_a_redacting_export_without_a_key_stops_before_a_byte_is_written(
    environ: dict[str, str], tmp_path: Path
) -> None:
    export = settings(sink=f"duckdb:{tmp_path}/traces.duckdb")
    with pytest.raises(SettingsError, match=r"export public.*DIGEST_KEY"):
        ExportPolicy.from_settings(export, origin=ORIGIN, environ=environ)
    assert list(tmp_path.iterdir()) == []


def test_a_short_key_is_warned_about_and_not_shown() -> None:
    (warning,) = policy("short-ZZKEYZZ").warnings
    assert "shorter than 32 bytes" in warning
    assert "ZZKEYZZ" not in warning
    assert policy("k" * 32).warnings == UNREDACTED.warnings == ()


def test_guessing_small_values_finds_no_digest() -> None:
    pull = {**next(row for row in DOC_RUN if row.get("artifactKind") == "pr"), "number": 42}
    left = digests_in([make_upsert(policy(), living(pull))])
    assert len(left) >= 3
    guessed_keys = [b"", b"key", b"null", b"doc-run"]
    for guess in range(10_000):
        text = str(guess).encode()
        assert hashlib.sha256(text).hexdigest() not in left
        for key in guessed_keys:
            assert hmac.new(key, text, hashlib.sha256).hexdigest() not in left


def test_exports_join_if_and_only_if_they_share_a_key() -> None:
    messages = [living(record) for record in DOC_RUN]
    one, same, other = (digests_in(make_upserts(policy(key), messages)) for key in (KEY, KEY, KEY + "2"))
    assert one == same
    assert one
    assert not one & other


class Change(NamedTuple):
    """One way in which what an export lets out may change."""

    key: str = KEY
    public_repos: tuple[str, ...] = ()
    redact: bool = True
    origin: str = ORIGIN


def test_whatever_changes_what_leaves_changes_the_digest_of_the_policy() -> None:
    changes = [
        Change(),
        Change(key=KEY + "2"),
        Change(public_repos=("acme/docs",)),
        Change(redact=False),
        Change(origin="another"),
        Change(redact=False, origin="another"),
    ]
    digests = [
        ExportPolicy.from_settings(
            settings(public_repos=change.public_repos, redact=change.redact),
            origin=change.origin,
            environ={"DIGEST_KEY": change.key},
        ).digest
        for change in changes
    ]
    assert len(set(digests)) == len(changes)
    assert digests[3] == UNREDACTED.digest


def test_the_spelling_and_order_of_public_repos_is_not_part_of_the_policy() -> None:
    spellings = [["Acme/Docs.git", "acme/app"], ["acme/app", "acme/docs", "ACME/APP"]]
    assert len({policy(public_repos=repos).digest for repos in spellings}) == 1


# ------------------------------------------------------------------------------------------------------------- messages


class FakeMessage(NamedTuple):
    """A message of the records log."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, Any], ...] = (("kind", b"run"),)
    offset: int = 7
    timestamp: int = 0


def test_a_message_is_read_with_its_headers() -> None:
    message = FakeMessage(b"pr:acme/docs#4", None, (("kind", b"artifact"), ("repo", b"acme/docs")))
    assert record_message(3, message) == RecordMessage(3, 7, "artifact", "pr:acme/docs#4", "acme/docs", None)
    assert record_message(3, FakeMessage(b"r1", b"{}")) == RecordMessage(3, 7, "run", "r1", None, b"{}")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (FakeMessage(None, b"{}"), "missing_key"),
        (FakeMessage(b"r1", b"{}", ()), "missing_header"),
        (FakeMessage(b"r1", b"{}", (("kind", None),)), "missing_header"),
        (FakeMessage(b"\x80ZZSECRETZZ", b"{}"), "invalid_utf8"),
        (FakeMessage(b"r1", None, (("kind", b"\xff"),)), "invalid_utf8"),
    ],
)
def test_a_message_that_is_no_record_is_refused_by_reason_alone(message: FakeMessage, reason: str) -> None:
    with pytest.raises(ProjectionError) as caught:
        record_message(1, message)
    assert caught.value.reason == reason
    assert caught.value.__cause__ is None
    assert "ZZSECRETZZ" not in str(caught.value)


def test_no_two_kinds_share_a_key_of_the_records_log_and_a_key_gives_its_id_back() -> None:
    sha = "a" * 40
    ids = [
        "r1",
        "r1/review",
        "workflow:r:s:0:0",
        "workflow:r:s:0:0#policy:F5:R1",
        "call:h:n:c:i",
        "response:h:n:c:i",
        "cost:conversation:h:n:c:turn:t:e",
        f"commit:acme/app@{sha}",
        "pr:acme/app#7",
        f"file:acme/app/a.py@{sha}",
    ]
    # What producers name may be anything; of the ids that the projection makes, each has a kind of its own.
    made = zip(["attempt", "gate", "call", "call", "cost", *["artifact"] * 3], ids[2:], strict=True)
    named = [
        *made,
        *[("run", one) for one in ids],
        *[("gate", one) for one in ids if "/" in one and "workflow" not in one],
    ]
    keys = {record_key(kind, one) for kind, one in named}
    assert len(keys) == len(set(named))
    for kind, one in named:
        found = record_message(1, FakeMessage(record_key(kind, one), None, (("kind", kind.encode()),)))
        assert (found.kind, found.id) == (kind, one)
    assert record_key("run", "r1") == b"r1"
