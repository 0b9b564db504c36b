"""The tables that name every source say the same: what projects it, its topic, its contract."""

from projections.sources import SOURCES
from worker.contracts.sources import CHANGED, CONTRACTS
from worker.settings_sections import TopicSettings


def test_every_source_has_a_topic_to_be_read_from() -> None:
    assert TopicSettings().by_source("app").keys() == SOURCES.keys()


def test_every_source_has_a_contract() -> None:
    assert CONTRACTS.keys() == SOURCES.keys()
    assert set(CHANGED) <= SOURCES.keys()
