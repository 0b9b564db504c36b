"""A sink that is down for a while costs neither memory nor the other exports anything, and misses nothing later."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.broker import Broker
from tests.chaos.outage import run_outage
from tests.chaos.rig import Rig
from tests.integration.pipeline import KEY, KEY_VARIABLE

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def rig(kafka: Broker, fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    made = Rig(kafka, (), fresh_app_id, tmp_path)
    made.prepare()
    try:
        yield made
    finally:
        made.close()


def test_an_outage_of_one_sink_is_bounded_in_memory_and_holds_up_no_other_export(rig: Rig) -> None:
    outcome = run_outage(rig, print, seconds=10, warm_up_s=5, messages_per_s=500)
    assert outcome.problems == []
