"""The page of a worker: what its metrics say, by role and by topic, in words that an operator looks for."""

from pathlib import Path
from typing import Any

import pytest

from tests.worker.web.serving import READY, file_of, get, hostile_records, serving, settings_of
from worker.metrics import MessageBook, Metrics, Tally
from worker.web.health import Readiness
from worker.web.worker_view import SAMPLES_MAX, DeadRow, Rates, TopicRow, view_worker


class Watched:
    """A worker with two roles, one of which lags."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.rates = Rates()
        rows = [(("project", "runs", "0"), 5.0), (("project", "runs", "1"), 7.0), (("export:out", "records", "0"), 2.0)]
        self.metrics.watch("lag_messages", lambda: rows)

    def readiness(self) -> dict[str, Readiness]:
        return {"project": READY, "export:out": READY._replace(assigned_partitions=0, ready_partitions=0)}


def test_lag_and_throughput_are_summed_up_by_role() -> None:
    watched = Watched()
    for now_s in (100.0, 110.0, 120.0):
        watched.rates.sample(now_s, watched.readiness(), watched.metrics.families())
        watched.metrics.count("consumed_messages", 50, topic="runs", partition=0)
        watched.metrics.count("written_upserts", 20, export="out")
        watched.metrics.count("written_upserts", 1_000, export="other")
    view = view_worker(watched.readiness(), watched.metrics.families(), watched.rates)
    assert [(role.name, role.state, role.lag_messages, role.rate, role.unit) for role in view.roles] == [
        ("project", "working", 12, 5, "messages"),
        ("export:out", "standing by", 2, 2, "records"),
    ]


def test_throughput_is_unknown_until_it_can_be_told_and_forgets_what_is_long_ago() -> None:
    metrics, rates = Metrics(), Rates()
    assert rates.per_second("fold") is None
    rates.sample(0, ["fold"], metrics.families())
    assert rates.per_second("fold") is None
    metrics.count("folded_facts", 1_000_000, partition=0)
    for index in range(SAMPLES_MAX):
        rates.sample(10 * (index + 1), ["fold"], metrics.families())
    assert rates.per_second("fold") == 0


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "working"),
        ({"is_ready": False}, "starting"),
        ({"paused_partitions": 1, "is_ready": False}, "retrying"),
        ({"stopped_partitions": 1, "paused_partitions": 1}, "stopped"),
        ({"standing_partitions": 1}, "stopped"),
    ],
)
def test_the_state_of_a_role_is_the_worst_of_its_partitions(changes: dict[str, Any], state: str) -> None:
    view = view_worker({"fold": READY._replace(**changes)}, Metrics().families(), Rates())
    assert view.roles[0].state == state


def test_messages_and_dead_letters_are_those_of_the_book() -> None:
    metrics = Metrics()
    book = MessageBook(metrics)
    for partition in (0, 1):
        tally = Tally(10)
        tally.projected = 6
        tally.ignored["stale"] = 1
        tally.dead_lettered["no_json"] = 2
        tally.dead_lettered["too_large"] = 1
        book.take("runs", partition, 15)
        book.settle("runs", partition, tally)
    metrics.count("dead_lettered_facts", partition=3, reason="no_fact")
    view = view_worker({}, metrics.families(), Rates())
    assert view.topics == (TopicRow("runs", 30, 12, 2, 6, 10),)
    assert view.dead == (DeadRow("runs", "no_json", 4), DeadRow("runs", "too_large", 2), DeadRow("facts", "no_fact", 1))


def test_a_worker_has_a_page_and_pages_without_one_do_not_lead_to_it(tmp_path: Path) -> None:
    settings = settings_of(file_of(tmp_path, hostile_records()), web_token="t")
    watched = Watched()
    watched.metrics.count("dead_lettered_messages", topic="runs", partition=0, reason="no_json")
    with serving(settings, watched) as address:
        got = get(f"{address}/worker", Authorization="Bearer t")
        assert got.status == 200
        for words in ("export:out", "standing by", "no_json", ">12<"):
            assert words in got.text
        assert get(f"{address}/worker").status == 401
        assert 'href="/worker"' in get(f"{address}/runs", Authorization="Bearer t").text
    with serving(settings) as address:
        assert get(f"{address}/worker", Authorization="Bearer t").status == 404
        assert "/worker" not in get(f"{address}/runs", Authorization="Bearer t").text
