"""Filters of exports: what matches, what a sink holds whatever the order, and what a bad filter is told."""

import asyncio
import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.canonical import digest_of_json
from tests.sizes import examples
from tests.worker.sinks.destinations import DOC_RUN, REPOSITORY
from worker.cli import run
from worker.export_filter import ExportFilter
from worker.exports import ExportPolicy, RecordMessage, make_upsert, make_upserts
from worker.settings import load_settings
from worker.settings_sections import ExportFilterSettings, ExportSettings, SettingsError
from worker.sink import SinkRefused, open_sink
from worker.sinks.memory import MemoryStore

KEY = "filter-test-key-of-more-than-thirty-two-bytes"
MARK = "ZZSECRETZZ"
ATTEMPT = "workflow:run-7:review:0:1"
RECORD: dict[str, Any] = {"kind": "call", "runId": "run-7", "attemptId": ATTEMPT, "at": "2026-11-03T09:00:00.5Z"}


def policy(filter_settings: dict[str, Any] | None, key: str = KEY, **changes: Any) -> ExportPolicy:
    fields = {"name": "a", "sink": "memory:", "key_env": "K", "filter": filter_settings, **changes}
    return ExportPolicy.from_settings(ExportSettings(**fields), origin="test", environ={"K": key})


def holds(filter_settings: dict[str, Any], **changes: Any) -> bool:
    return ExportFilter(ExportFilterSettings(**filter_settings)).holds({**RECORD, **changes})


# ------------------------------------------------------------------------------------------------------- what matches


@pytest.mark.parametrize(
    ("conditions", "changes", "is_held"),
    [
        ({"kinds": ["call", "gate"]}, {}, True),
        ({"kinds": ["gate"]}, {}, False),
        ({"run_ids": ["run-7"]}, {}, True),
        ({"run_ids": ["run-7"]}, {"runId": "run-77"}, False),
        ({"run_ids": ["run-7"]}, {"runId": None}, False),
        ({"run_id_prefixes": ["run-"]}, {"runId": "run-77"}, True),
        ({"run_id_prefixes": ["run-"]}, {"runId": "Run-77"}, False),
        ({"run_id_prefixes": ["night-"], "run_ids": ["run-7"]}, {}, True),
        ({"run_id_prefixes": ["night-"], "run_ids": ["run-7"]}, {"runId": "night-1"}, True),
        ({"run_id_prefixes": ["night-"], "run_ids": ["run-7"]}, {"runId": "run-8"}, False),
        ({"attempt_ids": [ATTEMPT]}, {}, True),
        ({"attempt_ids": [ATTEMPT]}, {"attemptId": "workflow:run-7:review:0:2"}, False),
        ({"attempt_ids": [ATTEMPT]}, {"kind": "attempt", "id": ATTEMPT, "attemptId": None}, True),
        ({"attempt_ids": [ATTEMPT]}, {"kind": "run", "attemptId": None}, False),
        ({"repos": ["acme/app"]}, {}, True),
        ({"repos": ["acme/app"]}, {"kind": "artifact", "repo": "acme/app"}, True),
        ({"repos": ["Acme/App.git"]}, {"kind": "artifact", "repo": "acme/app"}, True),
        ({"repos": ["acme/app"]}, {"kind": "artifact", "repo": "acme/docs"}, False),
        ({"repos": ["acme/app"]}, {"kind": "artifact", "repo": ["acme/app"]}, False),
        ({"repos": ["acme/app"]}, {"kind": "artifact"}, False),
        ({"since": "2026-11-03"}, {}, True),
        ({"since": "2026-11-03T09:00:00.5Z"}, {}, True),
        ({"since": "2026-11-03T09:00:00.51Z"}, {}, False),
        ({"since": "2026-11-03T10:00:00+01:00"}, {}, True),
        ({"until": "2026-11-03"}, {}, True),
        ({"until": "2026-11-03T09:00:00.5Z"}, {}, False),
        ({"until": "2026-11-02"}, {}, False),
        ({"since": "2026-11-03"}, {"at": "yesterday"}, False),
        ({"since": "2026-11-03"}, {"at": None}, False),
        ({"kinds": ["call"], "run_ids": ["run-7"], "since": "2026-11-04"}, {}, False),
    ],
)
def test_a_record_matches_when_every_condition_that_is_given_holds(
    conditions: dict[str, Any], changes: dict[str, Any], is_held: bool
) -> None:
    assert holds(conditions, **changes) is is_held


# --------------------------------------------------------------------------------------------------- order-free content


def versions_of(record: dict[str, Any]) -> list[bytes | None]:
    """Versions of one record: as it is, of another run and time, and its deletion."""
    moved = copy.deepcopy(record)
    moved["at"] = "2030-01-01T00:00:00Z"
    # The ids of the others say which run they are of.
    if record["kind"] in ("call", "cost", "artifact"):
        moved["runId"] = "night-1"
    return [json.dumps(record).encode(), json.dumps(moved).encode(), None]


SCHEDULES = st.lists(st.tuples(st.integers(0, len(DOC_RUN) - 1), st.integers(0, 2)), min_size=1, max_size=30)
FILTERS: list[dict[str, Any] | None] = [
    None,
    {"until": "2029-01-01"},
    {"run_id_prefixes": ["night-"]},
    {"kinds": ["run", "artifact", "cost"]},
    {"repos": ["acme/docs"], "since": "2029-06-01"},
    {"attempt_ids": [record["id"] for record in DOC_RUN if record["kind"] == "attempt"]},
]


def content(rules: ExportPolicy, batches: list[list[RecordMessage]]) -> list[bytes]:
    store = MemoryStore()
    for batch in batches:
        store.apply(make_upserts(rules, batch))
    return store.records()


@settings(deadline=None, max_examples=examples(150))
@given(SCHEDULES, st.sampled_from(FILTERS), st.randoms(use_true_random=False), st.integers(1, 7))
def test_what_a_sink_holds_follows_from_the_newest_versions_alone(
    schedule: list[tuple[int, int]], conditions: dict[str, Any] | None, random: Any, batch_size: int
) -> None:
    rules = policy(conditions)
    messages = []
    for offset, (index, version) in enumerate(schedule):
        record = DOC_RUN[index]
        repo = record.get("repo")
        messages.append(RecordMessage(1, offset, record["kind"], record["id"], repo, versions_of(record)[version]))
    newest = {(message.kind, message.id): message for message in messages}
    in_order = content(rules, [messages])
    only_newest = content(rules, [list(newest.values())])
    shuffled = [*messages, *messages]
    random.shuffle(shuffled)
    batches = [shuffled[start : start + batch_size] for start in range(0, len(shuffled), batch_size)]
    assert in_order == only_newest == content(rules, batches)
    kept = [message.record for message in newest.values() if message.record is not None]
    if rules.filter is not None:
        kept = [record for record in kept if rules.filter.holds(json.loads(record))]
    assert len(in_order) == len(kept)


def test_a_record_that_leaves_the_filter_is_deleted_and_one_that_comes_back_is_there_again() -> None:
    rules = policy({"run_id_prefixes": ["night-"]})
    record = next(record for record in DOC_RUN if record["kind"] == "call")
    stays, moves, _ = versions_of(record)
    lives = [
        len(
            content(
                rules, [[RecordMessage(1, offset, "call", record["id"], None, version)] for offset, version in history]
            )
        )
        for history in (enumerate([moves]), enumerate([moves, stays]), enumerate([moves, stays, moves]))
    ]
    assert lives == [1, 0, 1]


@pytest.mark.parametrize("public_repos", [[], ["acme/docs"]])
def test_a_record_that_does_not_match_leaves_nothing_but_the_id_it_had_there(public_repos: list[str]) -> None:
    inside, outside = (
        policy(None, public_repos=public_repos),
        policy({"since": "2099-01-01"}, public_repos=public_repos),
    )
    for record in DOC_RUN:
        item = RecordMessage(1, 7, record["kind"], record["id"], None, json.dumps(record).encode())
        gone = make_upsert(outside, item)
        assert gone.key == make_upsert(inside, item).key
        assert (gone.record, gone.json, gone.version) == (None, None, (1, 7))


def test_of_kinds_that_an_export_is_not_for_not_even_deletions_leave() -> None:
    rules = policy({"kinds": ["run"]})
    items = [RecordMessage(1, 1, record["kind"], record["id"], None, None) for record in DOC_RUN]
    assert {upsert.kind for upsert in make_upserts(rules, items)} == {"run"}
    assert rules.takes_kind("unheard-of"), "what is no record has to be refused, not passed over"


def test_what_can_never_have_been_there_is_not_named_by_a_deletion_either() -> None:
    rules = policy({"run_id_prefixes": ["night/"]}, redact=False, key_env=None)
    ids = {
        "run": ["night/1", "day/1"],
        "attempt": ["workflow:night%2F1:s:0:0", "workflow:day%2F1:s:0:0", "an attempt of no grammar"],
        "gate": [
            "night/1/review",
            "day/1/review",
            "workflow:night%2F1:s:0:0#policy:F5:R1",
            "workflow:day%2F1:s:0:0#policy:F5:R1",
            "no-run",
            "workflow:night%2F1:s:0:0#policy:%FF/5:R1",
        ],
        # Calls move from run to run.
        "call": ["call:codex:h:n:day"],
    }
    items = [RecordMessage(1, 1, kind, one, None, None) for kind, named in ids.items() for one in named]
    assert [upsert.id for upsert in make_upserts(rules, items)] == [
        "night/1",
        "workflow:night%2F1:s:0:0",
        "an attempt of no grammar",
        "night/1/review",
        "workflow:night%2F1:s:0:0#policy:F5:R1",
        "no-run",
        "workflow:night%2F1:s:0:0#policy:%FF/5:R1",
        "call:codex:h:n:day",
    ]
    living = RecordMessage(1, 1, "run", "day/1", None, b'{"kind": "run", "id": "day/1", "runId": "day/1"}')
    assert make_upserts(rules, [living]) == []


# --------------------------------------------------------------------------------------------- the filter in the policy


def test_a_changed_filter_is_another_policy_and_its_spelling_is_none() -> None:
    filters: list[dict[str, Any] | None] = [
        None,
        {"kinds": ["run"]},
        {"run_ids": ["a"]},
        {"run_id_prefixes": ["a"]},
        {"attempt_ids": [ATTEMPT]},
        {"repos": ["acme/app"]},
        {"since": "2026-11-03"},
        {"until": "2026-11-03"},
    ]
    assert len({policy(conditions).digest for conditions in filters}) == len(filters)
    same = [
        {"kinds": ["artifact", "run", "call"], "repos": ["Acme/App.git"], "since": "2026-11-03"},
        {"kinds": ["call", "run", "artifact"], "repos": ["acme/app"], "since": "2026-11-03T01:00:00+01:00"},
    ]
    assert len({policy(conditions).digest for conditions in same}) == 1


def test_a_private_name_in_a_filter_cannot_be_found_by_guessing() -> None:
    conditions: dict[str, Any] = {"repos": ["acme/secret"]}
    digests = {policy(conditions, key).digest for key in (KEY, KEY + "2")}
    rules = ExportFilter(ExportFilterSettings(**conditions)).rules(["acme/secret"])
    assert len(digests) == 2
    assert policy(conditions).shown_digest(rules) == policy(conditions).shown_digest(rules)
    assert policy(conditions).shown_digest(rules) != digest_of_json(rules)
    assert policy(conditions).shown_digest(rules).startswith("hmac-sha256:")


def test_a_sink_that_was_filled_under_another_filter_refuses_and_names_the_ways_out(tmp_path: Path) -> None:
    async def open_and_close(rules: ExportPolicy) -> None:
        sink = open_sink(f"jsonl:{tmp_path}/a.jsonl", rules.digest)
        await sink.open()
        await sink.close()

    asyncio.run(open_and_close(policy({"kinds": ["run"]})))
    with pytest.raises(SinkRefused, match=r"filter.*`export resync`.*new export"):
        asyncio.run(open_and_close(policy({"kinds": ["call"]})))


# ------------------------------------------------------------------------------------------------------------ settings


def config(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(f'[[exports]]\nname = "a"\nsink = "memory:"\nkey_env = "FILTER_KEY"\n{body}\n')
    return path


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "has no condition; give one of kinds, run_ids"),
        ("kinds = []", "exports[0].filter.kinds"),
        ('kinds = ["runs"]', "exports[0].filter.kinds"),
        ('kind = ["run"]', "exports[0].filter.kind: unknown key (did you mean kinds?)"),
        ('run_ids = ["a b"]', "is no run id"),
        ('attempt_ids = ["run-7"]', "is no attempt id"),
        ('repos = ["acme"]', "not owner/name"),
        ('since = "yesterday"', "since is no day or time"),
        ("since = 2026-11-03\nuntil = 2026-11-02", "until is not after since"),
        ('kinds = ["run"]\nrepos = ["acme/app"]', "kinds without artifact"),
        (f'kinds = ["run"]\nattempt_ids = ["{ATTEMPT}"]', "of no attempt"),
    ],
)
def test_a_bad_filter_is_told_where_it_stands_and_what_is_wrong(tmp_path: Path, body: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(config(tmp_path, f"[exports.filter]\n{body}"))
    assert told in str(caught.value)
    assert "exports[0].filter" in str(caught.value)


def test_a_bad_value_is_not_repeated(tmp_path: Path) -> None:
    for body in (f'run_ids = ["{MARK} x"]', f'repos = ["{MARK}"]', f'since = "{MARK}"', f'kinds = ["{MARK}"]'):
        with pytest.raises(SettingsError) as caught:
            load_settings(config(tmp_path, f"[exports.filter]\n{body}"))
        assert MARK not in str(caught.value)


def test_a_profile_goes_with_redaction_alone(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no profile strict"):
        load_settings(config(tmp_path, 'redact = false\nprofile = "strict"'))
    assert policy(None).digest != policy(None, profile="strict").digest


def test_the_printed_filter_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = f'[exports.filter]\nkinds = ["run", "call"]\nattempt_ids = ["{ATTEMPT}"]\nsince = 2026-11-03T09:00:00Z'
    first = config(tmp_path, body)
    assert run(["--config", str(first), "config"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert load_settings(printed).exports[0].filter == load_settings(first).exports[0].filter


# ----------------------------------------------------------------------------------------------------------- file mode


def test_file_mode_applies_the_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILTER_KEY", KEY)
    target = tmp_path / "out.jsonl"
    arguments = ["project", str(REPOSITORY / "fixtures/runs/demo"), "--to", f"jsonl:{target}", "--export", "a"]
    counts = []
    for body in ("", '[exports.filter]\nkinds = ["run", "gate"]'):
        assert run(["--config", str(config(tmp_path, body)), *arguments]) == 0
        counts.append(Counter(json.loads(line)["kind"] for line in target.read_text().splitlines()))
    everything, filtered = counts
    assert len(everything) == 6
    assert filtered == {kind: everything[kind] for kind in ("run", "gate")}
