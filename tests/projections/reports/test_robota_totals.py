"""Folding cost statuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.reports.robota_totals import fold_cost_status

STATUSES = st.sampled_from(["unknown", "estimated", "exact", None])


@given(st.lists(STATUSES), st.lists(STATUSES))
def test_folding_in_two_steps_folds_the_same(some: list[str | None], more: list[str | None]) -> None:
    if some and more:
        assert fold_cost_status([fold_cost_status(some), fold_cost_status(more)]) == fold_cost_status([*some, *more])


@pytest.mark.parametrize(("statuses", "folded"), [([], "unknown"), (["exact", None], "unknown"), (["exact"], "exact")])
def test_nothing_or_one_unknown_part_makes_the_cost_unknown(statuses: list[str | None], folded: str) -> None:
    assert fold_cost_status(statuses) == folded
