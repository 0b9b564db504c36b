"""The plan of a run, and the check of the books: both without a broker."""

from tests.chaos.plan import QUICK, THOROUGH, plan
from tests.chaos.soak import growth_of
from tests.chaos.watch import parse, unbalanced

PLACE = '{topic="runs",partition="0"'
BOOK = f"""
trace_projector_consumed_messages_total{PLACE}}} 12
trace_projector_projected_messages_total{PLACE}}} 5
trace_projector_ignored_messages_total{PLACE},reason="stale"}} 1
trace_projector_ignored_messages_total{PLACE},reason="read_again"}} 2
trace_projector_dead_lettered_messages_total{PLACE},reason="invalid_json"}} 1
trace_projector_in_flight_messages{PLACE}}} 3
"""


def test_a_seed_is_one_plan() -> None:
    assert plan(7, 20, QUICK) == plan(7, 20, QUICK)
    assert plan(7, 20, QUICK) != plan(8, 20, QUICK)


def test_five_cycles_show_every_kind_of_fault() -> None:
    for seed in range(20):
        assert len({fault.kind for fault in plan(seed, 5, THOROUGH)}) == 5


def test_memory_that_rises_is_told_from_memory_that_breathes() -> None:
    assert growth_of([100, 120, 100, 101, 99, 118, 101, 100]) < 0.05
    assert growth_of([100, 104, 108, 112, 116, 120, 124, 128]) > 0.05


def test_a_book_that_balances_is_in_order() -> None:
    assert unbalanced(parse(BOOK)) == []


def test_a_message_without_an_outcome_is_named() -> None:
    lost = BOOK.replace(f"in_flight_messages{PLACE}}} 3", f"in_flight_messages{PLACE}}} 2")
    assert unbalanced(parse(lost)) == ["runs partition 0: consumed 12, accounted for 11"]


def test_an_outcome_that_nobody_consumed_is_named() -> None:
    invented = BOOK.replace('partition="0"} 12', 'partition="1"} 12')
    assert len(unbalanced(parse(invented))) == 2
