"""Files of an export: the newest versions, the manifest last, the same bytes again, and what verification finds."""

import json
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.version import PROJECTION_VERSION
from tests.sizes import examples
from tests.worker.sinks.destinations import DOC_RUN, REPOSITORY, full_disk
from worker.commands.export import run_command
from worker.exports import ExportPolicy, RecordMessage, make_upserts
from worker.file_exports import spill as export_spill
from worker.file_exports.files import FORMATS, ExportDirectory, Problem, verify_files
from worker.file_exports.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestUnreadable,
    PartitionEntry,
    SourceEntry,
    decode_manifest,
    encode_manifest,
)
from worker.file_exports.run import Collected, describe_policy, export_to_files
from worker.file_exports.spill import FilesRefused, Spill
from worker.settings_sections import ExportSettings
from worker.sink import Upsert
from worker.sinks.memory import MemoryStore
from worker.stores import parquet as parquet_segments
from worker.stores.arrow_schemas import file_schema

KEY = "export-files-test-key-of-more-than-32-bytes"
MARK = "ZZSECRETZZ"
KINDS = ["run", "attempt", "call", "gate", "artifact", "cost"]
NAMES = sorted([*(f"{kind}.jsonl" for kind in KINDS), MANIFEST_NAME])


def policy(key: str = KEY, **changes: Any) -> ExportPolicy:
    fields = {"name": "public", "sink": "memory:", "key_env": "K", **changes}
    return ExportPolicy.from_settings(ExportSettings(**fields), origin="test", environ={"K": key})


def messages(records: list[dict[str, Any]] = DOC_RUN) -> list[RecordMessage]:
    return [
        RecordMessage(1, offset, record["kind"], record["id"], None, json.dumps(record).encode())
        for offset, record in enumerate(records)
    ]


SOURCE = SourceEntry(generation=1, topic="records", partitions=[PartitionEntry(partition=0, start=0, end=16)])


def export(
    directory: Path, rules: ExportPolicy | None = None, items: list[RecordMessage] | None = None, batch_size: int = 5
) -> Manifest:
    rules = rules or policy()
    upserts = make_upserts(rules, messages() if items is None else items)

    def collect(spill: Spill) -> Collected:
        for start in range(0, len(upserts), batch_size):
            spill.add(upserts[start : start + batch_size])
        return Collected(SOURCE, PROJECTION_VERSION, 0)

    return export_to_files("public", rules, directory, "jsonl", collect)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# ------------------------------------------------------------------------------------------------------------- writing


def test_each_kind_is_a_file_of_the_records_a_sink_would_hold_in_the_order_of_ids(tmp_path: Path) -> None:
    manifest = export(tmp_path / "out")
    store = MemoryStore()
    store.apply(make_upserts(policy(), messages()))
    written = content(tmp_path / "out")
    assert sorted(written) == NAMES
    for kind in KINDS:
        expected = [line for line in store.records() if json.loads(line)["kind"] == kind]
        assert written[f"{kind}.jsonl"].splitlines() == expected
        assert [entry.rows for entry in manifest.files if entry.kind == kind] == [len(expected)]
    assert verify_files(tmp_path / "out") == []


def test_files_are_for_their_owner_alone_even_under_an_open_umask(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    before = os.umask(0)
    try:
        for name in ("new", "open"):
            export(tmp_path / name)
    finally:
        os.umask(before)
    for name in ("new", "open"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()} == {0o600}


def test_any_order_batching_and_repetition_gives_the_same_bytes_and_manifest(tmp_path: Path) -> None:
    export(tmp_path / "a")
    items = [*messages(), *messages()]
    random.Random(7).shuffle(items)
    export(tmp_path / "b", items=items, batch_size=1)
    export(tmp_path / "a")
    assert content(tmp_path / "a") == content(tmp_path / "b")


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.booleans()), max_size=40), st.integers(1, 9))
def test_the_spill_holds_what_a_sink_holds(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, int, bool]], batch_size: int
) -> None:
    upserts = []
    for index, offset, is_deleted in history:
        record = {"kind": "run", "id": f"r{index}\ue000\U0001f600"[: index + 2], "offset": offset, "n": index}
        data = None if is_deleted else json.dumps(record).encode()
        # Equal versions are one version, as in a log.
        upserts.append(Upsert("run", str(record["id"]), 1, offset * 2 + is_deleted, data and record, data))  # type: ignore[arg-type]
    store = MemoryStore()
    with Spill(tmp_path_factory.mktemp("spill")) as spill:
        for start in range(0, len(upserts), batch_size):
            store.apply(upserts[start : start + batch_size])
            spill.add(upserts[start : start + batch_size])
        assert [row.json for row in spill.rows("run")] == store.records()


def test_kinds_that_the_filter_leaves_out_have_no_file_and_others_have_empty_ones(tmp_path: Path) -> None:
    export(tmp_path / "out", policy(filter={"kinds": ["run", "gate"], "since": "2099-01-01"}))
    assert sorted(content(tmp_path / "out")) == ["gate.jsonl", MANIFEST_NAME, "run.jsonl"]
    assert content(tmp_path / "out")["run.jsonl"] == b""


def test_records_that_no_longer_fit_on_disk_are_told_without_a_word_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_spill, "_SPILL_SETUP", [*export_spill._SPILL_SETUP, "PRAGMA cache_size = -100"])
    data = json.dumps({"kind": "run", "text": MARK * 50}).encode()
    with (
        Spill(tmp_path) as spill,
        full_disk(100_000),
        pytest.raises(FilesRefused, match="cannot sort records on disk: SQLITE_") as caught,
    ):
        spill.add([Upsert("run", f"{MARK}{number}", 1, number, {}, data) for number in range(2_000)])
    assert MARK not in "".join(traceback.format_exception(caught.value))
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------- interruptions


class Interrupted(BaseException):
    """Somebody pressed Ctrl-C."""


def interrupt(*_: object, **__: object) -> Any:
    raise Interrupted


def test_an_export_interrupted_while_it_reads_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        export_to_files("public", policy(), tmp_path / "new", "jsonl", interrupt)
    assert not (tmp_path / "new").exists()
    export(tmp_path / "old")
    before = content(tmp_path / "old")
    with pytest.raises(Interrupted):
        export_to_files("public", policy(), tmp_path / "old", "jsonl", interrupt)
    assert content(tmp_path / "old") == before


@pytest.mark.parametrize("is_second", [False, True])
def test_an_export_interrupted_while_it_writes_leaves_no_manifest_and_the_next_run_starts_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_second: bool
) -> None:
    export(tmp_path / "whole")
    out = tmp_path / "out"
    if is_second:
        export(out)
    for step, function in [("complete", ExportDirectory.complete), ("_write_file", ExportDirectory._write_file)]:
        monkeypatch.setattr(ExportDirectory, step, interrupt)
        with pytest.raises(Interrupted):
            export(out)
        monkeypatch.setattr(ExportDirectory, step, function)
        assert MANIFEST_NAME not in content(out)
        assert verify_files(out) == [Problem(MANIFEST_NAME, "is missing: the export did not come to its end")]
    export(out)
    assert content(out) == content(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.worker.file_exports.test_files import make_upserts, messages, policy
from worker.file_exports.run import export_to_files
def collect(spill):
    spill.add(make_upserts(policy(), messages()))
    os.kill(os.getpid(), signal.SIGKILL)
export_to_files("public", policy(), Path(sys.argv[1]), "jsonl", collect)
"""


def test_a_kill_while_records_are_sorted_leaves_nothing_behind(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], cwd=REPOSITORY, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert content(tmp_path / "out") == {}
    export(tmp_path / "out")
    assert verify_files(tmp_path / "out") == []


# ---------------------------------------------------------------------------------------- directories that are not ours


@pytest.mark.parametrize("name", ["notes.txt", "run.jsonl", ".hidden"])
def test_a_directory_with_anything_else_in_it_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FilesRefused, match="none of an export"):
        export(tmp_path)
    assert content(tmp_path) == {name: b"mine"}


def test_an_export_with_a_foreign_file_beside_it_is_not_replaced(tmp_path: Path) -> None:
    export(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = content(tmp_path / "out")
    with pytest.raises(FilesRefused, match="1 files that are none of an export"):
        export(tmp_path / "out")
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize(
    "changed",
    [
        policy(KEY + "2"),
        policy(public_repos=["acme/docs"]),
        policy(profile="strict"),
        policy(filter={"kinds": ["run"]}),
        policy(redact=False),
    ],
    ids=["key", "repos", "profile", "filter", "redaction"],
)
def test_an_export_under_another_policy_is_not_replaced(tmp_path: Path, changed: ExportPolicy) -> None:
    export(tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(FilesRefused, match=r"another policy.*another directory"):
        export(tmp_path / "out", changed)
    assert content(tmp_path / "out") == before


def test_a_directory_that_is_being_written_is_refused(tmp_path: Path) -> None:
    with (
        ExportDirectory(tmp_path / "out", "digest"),
        pytest.raises(FilesRefused, match="being written by another export"),
    ):
        export(tmp_path / "out")


def test_a_place_that_cannot_be_a_directory_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "no" / "such", tmp_path / "file" / "below"):
        with pytest.raises(FilesRefused, match="cannot write"):
            export(place)
    with pytest.raises(FilesRefused, match="cannot read"):
        verify_files(tmp_path / "no")


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    export(tmp_path / "out")
    target = tmp_path / "elsewhere"
    target.write_text("mine")
    (tmp_path / "out" / "run.jsonl").unlink()
    (tmp_path / "out" / "run.jsonl").symlink_to(target)
    assert verify_files(tmp_path / "out") == [Problem("run.jsonl", "is no regular file")]
    export(tmp_path / "out")
    assert target.read_text() == "mine"
    assert verify_files(tmp_path / "out") == []


# -------------------------------------------------------------------------------------------------------- verification


def edited(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes(change((directory / name).read_bytes()))


@pytest.mark.parametrize(
    ("spoil", "name", "told"),
    [
        (edited("cost.jsonl", lambda data: data[:-1]), "cost.jsonl", "is truncated"),
        (edited("cost.jsonl", lambda _: b""), "cost.jsonl", "is truncated"),
        (edited("cost.jsonl", lambda data: data + b"\n"), "cost.jsonl", "is altered"),
        (edited("cost.jsonl", lambda data: data[:-2] + b" \n"), "cost.jsonl", "is altered: it has another SHA-256"),
        (lambda directory: (directory / "gate.jsonl").unlink(), "gate.jsonl", "is missing"),
        (lambda directory: (directory / "more.jsonl").write_bytes(b""), "more.jsonl", "is extra"),
        (lambda directory: (directory / "more").mkdir(), "more", "is extra"),
        (lambda directory: (directory / MANIFEST_NAME).unlink(), MANIFEST_NAME, "is missing"),
        (edited(MANIFEST_NAME, lambda data: data[:-5]), MANIFEST_NAME, "truncated or altered"),
        (edited(MANIFEST_NAME, lambda data: data + b"\n"), MANIFEST_NAME, "was altered"),
        (edited(MANIFEST_NAME, lambda data: data.replace(b'"end": 16', b'"end": 17')), MANIFEST_NAME, "its digest"),
        (edited(MANIFEST_NAME, lambda data: data.replace(b"export 1", b"export 9")), MANIFEST_NAME, "this release"),
        (edited(MANIFEST_NAME, lambda data: data.replace(b'"run.jsonl"', b'"../x.jsonl"')), MANIFEST_NAME, "altered"),
        (edited(MANIFEST_NAME, lambda _: b"[]"), MANIFEST_NAME, "no manifest"),
    ],
)
def test_what_is_not_as_it_was_written_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], name: str, told: str
) -> None:
    export(tmp_path / "out")
    spoil(tmp_path / "out")
    (problem,) = verify_files(tmp_path / "out")
    assert problem.name == name
    assert told in problem.problem


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    export(tmp_path / "out")
    edited("cost.jsonl", lambda data: data[:-1])(tmp_path / "out")
    (tmp_path / "out" / "run.jsonl").unlink()
    (tmp_path / "out" / "extra").write_bytes(b"")
    assert [problem.name for problem in verify_files(tmp_path / "out")] == ["run.jsonl", "cost.jsonl", "extra"]


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(deadline=None, max_examples=examples(60))
def test_no_changed_byte_of_a_manifest_goes_unnoticed(position: int, change: int) -> None:
    files = [{"name": "run.jsonl", "kind": "run", "rows": 1, "bytes": 2, "sha256": "ab" * 32}]
    manifest = Manifest.model_validate(
        {
            "projectionVersion": 1,
            "export": "a",
            "policy": describe_policy(policy()).model_dump(),
            "source": SOURCE.model_dump(),
            "withheld": 0,
            "files": files,
        }
    )
    data = bytearray(encode_manifest(manifest))
    assert decode_manifest(bytes(data)) == manifest
    data[position % len(data)] ^= change
    with pytest.raises(ManifestUnreadable):
        decode_manifest(bytes(data))


# ------------------------------------------------------------------------------------------------------- what may leave


def test_the_manifest_names_the_policy_and_tells_neither_key_nor_private_name(tmp_path: Path) -> None:
    rules = policy(public_repos=["acme/docs"], filter={"repos": ["acme/docs", "acme/secret"], "run_id_prefixes": ["r"]})
    export(tmp_path / "out", rules)
    text = (tmp_path / "out" / MANIFEST_NAME).read_text()
    said = json.loads(text)["policy"]
    assert rules.redaction is not None
    assert said["keyId"] == rules.redaction.key_id
    assert said["filter"] == {
        "repos": ["acme/docs", rules.redaction.digest("acme/secret")],
        "runIdPrefixes": ["r"],
    }
    assert "acme/secret" not in text
    assert KEY not in text
    assert rules.digest not in text, "it would confirm a guess at the names in it"
    assert rules.redaction.fingerprint not in text


def test_two_exports_with_two_keys_share_no_digest_and_no_key_id() -> None:
    one, other = (describe_policy(policy(key)).model_dump() for key in (KEY, KEY + "2"))
    for field in ("digest", "key_id", "public_repos"):
        assert one[field] != other[field]
    assert one["class_table"] == other["class_table"]


def test_the_command_offers_the_formats_there_are() -> None:
    (option,) = [option for option in run_command.params if option.name == "file_format"]
    assert list(option.type.choices) == list(FORMATS)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------- Parquet


def export_parquet(directory: Path, kinds_of: list[dict[str, Any]] = DOC_RUN, batch_size: int = 5) -> Manifest:
    upserts = make_upserts(policy(), messages(kinds_of))

    def collect(spill: Spill) -> Collected:
        for start in range(0, len(upserts), batch_size):
            spill.add(upserts[start : start + batch_size])
        return Collected(SOURCE, PROJECTION_VERSION, 0)

    return export_to_files("public", policy(), directory, "parquet", collect)


def test_parquet_files_hold_the_records_own_bytes_in_the_order_of_ids(tmp_path: Path) -> None:
    export(tmp_path / "lines")
    manifest = export_parquet(tmp_path / "columns")
    assert verify_files(tmp_path / "columns") == []
    for kind in KINDS:
        table = pq.read_table(tmp_path / "columns" / f"{kind}.parquet")
        lines = (tmp_path / "lines" / f"{kind}.jsonl").read_bytes().splitlines()
        assert [text.encode() for text in table["record"].to_pylist()] == lines
        assert [entry.rows for entry in manifest.files if entry.kind == kind] == [len(lines)]
        assert table.schema.equals(file_schema(kind))


def test_parquet_files_of_the_same_records_are_the_same_bytes(tmp_path: Path) -> None:
    export_parquet(tmp_path / "a")
    shuffled = random.Random(7).sample(DOC_RUN, len(DOC_RUN))
    export_parquet(tmp_path / "b", shuffled, batch_size=1)
    first = content(tmp_path / "a")
    export_parquet(tmp_path / "a")
    assert content(tmp_path / "a") == first == content(tmp_path / "b")


def test_a_parquet_file_of_many_rows_is_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_segments, "GROUP_ROWS", 2)
    export_parquet(tmp_path / "out")
    file = pq.ParquetFile(tmp_path / "out" / "call.parquet")
    calls = sum(record["kind"] == "call" for record in DOC_RUN)
    assert (file.metadata.num_rows, file.metadata.num_row_groups) == (calls, (calls + 1) // 2)


def test_an_altered_parquet_file_is_found(tmp_path: Path) -> None:
    export_parquet(tmp_path / "out")
    path = tmp_path / "out" / "run.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert verify_files(tmp_path / "out") == [Problem("run.parquet", "is altered: it has another SHA-256")]


def test_a_format_without_its_driver_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "worker.stores.parquet", None)
    with pytest.raises(FilesRefused, match=r"trace-projector\[parquet\]"):
        export_to_files("public", policy(), tmp_path / "out", "parquet", lambda _: pytest.fail("it was read"))
    assert not (tmp_path / "out").exists()


def test_a_parquet_file_that_no_longer_fits_on_disk_is_no_export(tmp_path: Path) -> None:
    digits = random.Random(3).randbytes(200_000).hex()
    records = [{**DOC_RUN[0], "id": "big", "runId": "big", "workflowName": digits}]
    with full_disk(100_000), pytest.raises(FilesRefused):
        export_parquet(tmp_path / "out", records)
    assert MANIFEST_NAME not in content(tmp_path / "out")
