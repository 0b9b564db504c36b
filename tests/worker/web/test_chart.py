"""The data a chart is drawn from: numbers, texts that were made visible, and ids only where they lead somewhere."""

import json
from typing import Any

import orjson
import pytest

from projections.reports.spend import UsageTally
from projections.reports.timeline import timeline
from projections.reports.timeline_model import Timeline
from tests.projections.reports.cost_records import call, cost, delta
from tests.worker.web.serving import DOC_CHANGE, RUNS
from worker.web.chart import CURVE_POINTS_MAX, chart_data, tokens_text, tone, usd_text


def laid_out(records: list[dict[str, Any]], run: str = "r") -> Timeline:
    found = timeline(records, run)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def doc_change() -> Timeline:
    lines = (RUNS / "demo" / "trace.jsonl").read_bytes().splitlines()
    return laid_out([orjson.loads(line) for line in lines], DOC_CHANGE)


def test_retries_are_stacked_and_gates_have_their_waiting_time(doc_change: Timeline) -> None:
    lanes = {lane["name"]: lane for lane in chart_data(doc_change, has_links=True)["lanes"]}
    draft = lanes["draft"]["bars"]
    assert [(bar["row"], bar["tone"], bar["again"]) for bar in draft] == [
        (0, "bad", ""),
        (1, "good", "attempt 1"),
        (0, "good", "iteration 1"),
    ]
    assert not draft[0]["known"], "nothing says when the failed attempt ended"
    gates = lanes["owner-review"]["gates"]
    assert [(gate["word"], gate["waits"], gate["open"]) for gate in gates] == [
        ("revise", True, False),
        ("allow", True, False),
    ]
    assert ("Waited", "21m 18s") in gates[0]["facts"]


def test_ids_are_there_only_if_they_lead_somewhere(doc_change: Timeline) -> None:
    linked, alone = (chart_data(doc_change, has_links=has_links) for has_links in (True, False))
    assert linked["runId"] == DOC_CHANGE
    assert alone["runId"] is None
    assert not any("id" in bar["calls"] for lane in alone["lanes"] for bar in lane["bars"])
    calls = [bar["calls"] for lane in linked["lanes"] for bar in lane["bars"]]
    assert all(len(each["id"]) == len(each["t"]) == len(each["n"]) == len(each["f"]) for each in calls)


def test_an_id_that_no_address_can_hold_leads_nowhere() -> None:
    record = call("x") | {"id": "call:\ud800"}
    data = chart_data(laid_out([record]), has_links=True)
    assert data["lanes"][0]["calls"]["id"] == [None]


def test_names_come_once_and_calls_refer_to_them() -> None:
    records = [call("a"), call("b", is_error=True), call("m", kind="model") | {"name": "m-1"}]
    nameless = call("n")
    del nameless["name"]
    data = chart_data(laid_out([*records, nameless]), has_links=False)
    calls = data["lanes"][0]["calls"]
    said = sorted((data["names"][name], flags) for name, flags in zip(calls["n"], calls["f"], strict=True))
    assert said == [("(name not shown)", 0), ("Read", 0), ("Read", 1), ("m-1", 2)]


def test_ten_thousand_calls_are_a_hundred_bytes_each_at_most() -> None:
    records = [
        call(f"c{number}", at=f"2026-11-03T10:{number // 60 % 60:02d}:{number % 60:02d}Z") for number in range(10_000)
    ]
    assert len(json.dumps(chart_data(laid_out(records), has_links=True))) < 1_000_000


def test_a_curve_of_many_points_is_thinned_and_ends_where_it_ended() -> None:
    count = 3 * CURVE_POINTS_MAX + 1
    records = [
        cost(
            delta(f"x{number}", 0.5, input=1),
            at=f"2026-11-03T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
        )
        for number in range(count)
    ]
    curve = chart_data(laid_out(records), has_links=False)["curve"]
    assert len(curve) <= CURVE_POINTS_MAX + 1
    assert curve[-1][1] == count / 2


def test_sums_show_what_is_unknown_or_estimated() -> None:
    tally = UsageTally()
    tally.add_cost(delta("a", None))
    assert (usd_text(tally.usage()), tokens_text(tally.usage(), "input", "output")) == ("?", "?")
    tally.add_cost(delta("b", 1.5, input=1_000))
    assert (usd_text(tally.usage()), tokens_text(tally.usage(), "input")) == ("≥$1.50", "≥1,000")
    small = UsageTally()
    small.add_cost(delta("s", 0.0123))
    assert usd_text(small.usage()) == "$0.0123"
    estimated = UsageTally()
    estimated.add_cost(delta("c") | {"cost": {"usd": 2, "kind": "estimate"}})
    assert usd_text(estimated.usage()) == "~$2.00"


def test_every_word_has_a_colour_and_an_unknown_one_is_plain() -> None:
    assert (tone("failed"), tone("succeeded"), tone("<script>"), tone(None)) == ("bad", "good", "plain", "plain")
