"""Decisions about copied Codex history: what a fork repeats of its parent, or of its elder siblings, counts once."""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from projections.decode import decode_json
from projections.formats.codex_forks import CHUNK_ROWS
from tests.worlds.messages import (
    CODEX,
    attempt_of,
    codex_line,
    file_messages,
    kinds,
    ledger,
    message,
    project,
    records,
    token_count,
)
from tests.worlds.world import SourceMessage

Json = dict[str, Any]


def rollout(native: str, *rows: Json, fork_of: str | None = None, extra: Sequence[Json] = ()) -> list[SourceMessage]:
    """Make the messages of a bound rollout: its meta line, its rows, and lines behind them."""
    conversation = {**CODEX, "nativeId": native}
    meta: Json = {"id": native} if fork_of is None else {"id": native, "forked_from_id": fork_of}
    bound = ledger(f"e-{native}", attempt_of(native), conversation=conversation, harness="codex")
    return [bound, *file_messages([codex_line("session_meta", meta), *rows, *extra], conversation)]


def counted(*totals: int, seconds: float = 0) -> list[Json]:
    """Make the rows of a counter that goes through totals, a second apart."""
    steps = [total - before for before, total in itertools.pairwise((0, *totals))]
    return [
        token_count(total, step, seconds + index) for index, (total, step) in enumerate(zip(totals, steps, strict=True))
    ]


def call(native: str, seconds: float = 0) -> Json:
    return codex_line("response_item", {"type": "function_call", "call_id": native, "name": "shell"}, seconds)


def spent(found: dict[str, Json]) -> dict[str, int]:
    """Give the input tokens per conversation."""
    sums: dict[str, int] = {}
    for row in kinds(found, "cost"):
        native = row["conversation"].rpartition(":")[2]
        sums[native] = sums.get(native, 0) + row["measurement"]["tokens"]["input"]
    return sums


PARENT = rollout("p", *counted(100, 250))
FORK = rollout("f", *counted(100, 250, 300, seconds=40), fork_of="p")


def test_a_fork_does_not_count_what_it_repeats_of_its_parent_whatever_its_times_are() -> None:
    assert spent(records([*PARENT, *FORK])) == {"p": 250, "f": 50}
    spread = rollout("f", token_count(100, 100, 1), token_count(250, 150, 59), token_count(300, 50, 60), fork_of="p")
    assert spent(records([*PARENT, *spread])) == {"p": 250, "f": 50}


def test_a_fork_that_only_copies_spends_nothing_and_a_fork_of_a_fork_only_its_own() -> None:
    empty = rollout("e", *counted(100, 250, seconds=50), fork_of="p")
    second = rollout("g", *counted(100, 250, 300, 320, seconds=70), fork_of="f")
    found = records([*PARENT, *FORK, *empty, *second])
    assert spent(found) == {"p": 250, "f": 50, "g": 20}
    assert sum(row["usage"]["inputTokens"] for row in kinds(found, "attempt") if "usage" in row) == 320


def test_calls_up_to_the_last_copied_row_are_copied_and_later_ones_are_not() -> None:
    parent = rollout("p", call("a"), *counted(100), call("b"), *counted(100, 250)[1:])
    fork = rollout("f", call("a"), *counted(100), call("b"), call("own"), fork_of="p")
    found = records([*parent, *fork])
    calls = {row["id"].removeprefix("call:codex:host:") for row in kinds(found, "call") if row["callKind"] == "tool"}
    assert calls == {"p:a", "p:b", "f:b", "f:own"}


def test_a_row_that_differs_in_total_or_last_ends_the_copy() -> None:
    other_last = [token_count(100, 100), token_count(250, 149)]
    assert spent(records([*PARENT, *rollout("f", *other_last, fork_of="p")])) == {"p": 250, "f": 150}
    other_total = [token_count(101, 100), token_count(250, 150)]
    assert spent(records([*PARENT, *rollout("f", *other_total, fork_of="p")])) == {"p": 250, "f": 250}


def test_rows_without_counters_are_skipped_in_the_comparison() -> None:
    nothing = codex_line("event_msg", {"type": "token_count", "info": None})
    first, second = counted(100, 250)
    assert spent(records([*PARENT, *rollout("f", nothing, first, nothing, second, fork_of="p")])) == {"p": 250}


def test_forks_of_an_unknown_parent_compare_with_the_earlier_fork() -> None:
    first = rollout("f1", *counted(100, 250, 300, seconds=1), fork_of="p")
    second = rollout("f2", *counted(100, 250, 400, seconds=9), fork_of="p")
    assert spent(records([*first, *second])) == {"f1": 300, "f2": 150}
    twin = rollout("f0", *counted(100, 250, 400, seconds=1), fork_of="p")
    assert spent(records([*first, *twin])) == {"f0": 400, "f1": 50}, "of equal times the smaller ref is the elder"


def test_a_lone_fork_of_an_unknown_parent_keeps_everything() -> None:
    assert spent(records(FORK)) == {"f": 300}


def test_the_first_meta_line_says_whose_fork_a_rollout_is_and_none_is_its_own() -> None:
    copied_meta = codex_line("session_meta", {"id": "p", "forked_from_id": "grandparent"})
    fork = rollout("f", copied_meta, *counted(100, 250, 300, seconds=40), fork_of="p")
    assert spent(records([*PARENT, *fork])) == {"p": 250, "f": 50}
    own = rollout("p", *counted(100, 250), fork_of="p")
    assert spent(records([*own, *FORK])) == {"p": 250, "f": 50}


def test_an_elder_fork_that_shares_more_than_the_parent_decides() -> None:
    elder = rollout("f1", *counted(100, 250, 300, 320, seconds=1), fork_of="p")
    younger = rollout("f2", *counted(100, 250, 300, 320, 400, seconds=9), fork_of="p")
    assert spent(records([*PARENT, *elder, *younger])) == {"p": 250, "f1": 70, "f2": 80}


def test_a_held_or_erased_parent_still_owns_its_history() -> None:
    held = PARENT[1:]
    assert spent(records([*held, *FORK])) == {"f": 50}
    erase = message("erasures", {"conversation": "conversation:codex:host:p"})
    assert spent(records([*PARENT, *FORK, erase])) == {"f": 50}


def test_usage_records_of_copied_history_are_copied_too() -> None:
    def record(response: str, total: int) -> Json:
        counter = {"input_tokens": total, "total_tokens": total}
        return codex_line("token_usage_record", {"response_id": response, "usage": counter})

    parent = rollout("p", record("r1", 100), *counted(100))
    fork = rollout("f", record("r1", 100), *counted(100), record("r2", 70), *counted(100, 170)[1:], fork_of="p")
    found = records([*parent, *fork])
    deltas = [row["id"] for row in kinds(found, "cost") if row["measurement"]["kind"] == "delta"]
    assert sorted(deltas) == ["cost:response:codex:host:f:r2", "cost:response:codex:host:p:r1"]


@pytest.mark.parametrize("shared", [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 3 * CHUNK_ROWS + 5])
@pytest.mark.parametrize("more", [0, 1, CHUNK_ROWS + 3])
def test_long_histories_part_exactly_where_they_part(shared: int, more: int) -> None:
    common = list(range(10, 10 * shared + 10, 10))
    parent_totals = [*common, *(10 * shared + 7 * step for step in range(1, more + 1))]
    fork_totals = [*common, *(10 * shared + 9 * step for step in range(1, 5))]
    messages = [
        *rollout("p", *counted(*parent_totals)),
        *rollout("f", *counted(*fork_totals, seconds=1), fork_of="p"),
        *rollout("g", *counted(*fork_totals[:-1], seconds=2), fork_of="p"),
    ]
    expected = {"p": parent_totals[-1] if parent_totals else 0, "f": 36}
    orders = [messages, Random(shared).sample(messages, len(messages))]
    for order in orders:
        found = project(order, is_eager=len(order) < 100).records
        sums = spent({record_id: decode_json(data) for record_id, data in found.items()})
        assert sums == {name: total for name, total in expected.items() if total}


def test_a_parent_whose_last_fork_became_a_thread_of_its_own_tells_its_rows_to_nobody_any_more() -> None:
    # `Cluster.crash` compares what a restored fold takes for said with what the lost one had said.
    moved = file_messages([codex_line("session_meta", {"id": "f"}, 59)], {**CODEX, "nativeId": "f"})
    cluster = project([*PARENT, *FORK])
    for offset, one in enumerate(moved, start=1_000):
        cluster.project((one.topic, one.key, one.value, 0, offset))
    cluster.drain()
    cluster.crash(0)
    cluster.crash(1)
    found = {record_id: decode_json(data) for record_id, data in cluster.records.items()}
    assert spent(found) == {"p": 250, "f": 300}
