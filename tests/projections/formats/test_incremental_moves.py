"""Items that move or go away after they were shown: folding line by line ends where one pass does."""

import json
from typing import Any

import pytest

from tests.projections.formats.bindings import binding
from tests.projections.formats.test_ct_agents import messages_of as ct_agents_messages
from tests.projections.formats.test_ct_agents import requested
from tests.projections.formats.test_harn import messages_of as harn_messages
from tests.projections.formats.test_harn import response
from tests.worlds.cluster import Cluster, clean_pass, place
from tests.worlds.world import SourceMessage

CONVERSATION = {"harness": "ct-agents", "namespace": "app-1", "nativeId": "sess_1"}
# The second request takes the seq of the first one, because its id is smaller.
GATES = ct_agents_messages([requested(2), {**requested(2), "id": "a"}], one_file=True)
CALLS = harn_messages([
    json.dumps(response("c")).encode(),
    json.dumps(response("d", timestamp="1790000005.000")).encode(),
    json.dumps(response("c", timestamp="1790000009.000")).encode(),
])  # fmt: skip


def line_by_line(messages: list[SourceMessage], **options: Any) -> dict[str, bytes]:
    cluster = Cluster(1, **options)
    for message in place(messages, None, 1):
        cluster.project(message)
        cluster.drain()
    return cluster.records


@pytest.mark.parametrize("unbound", ["hold", "standalone"])
def test_a_gate_that_lost_its_seq_is_gone(unbound: str) -> None:
    messages = [binding(CONVERSATION, "workflow:run-1:draft:0:0"), *GATES]
    assert line_by_line(messages, unbound=unbound) == clean_pass(messages, unbound=unbound).records


def test_a_run_of_its_own_starts_at_the_earliest_time_that_is_still_shown() -> None:
    assert line_by_line(CALLS, unbound="standalone") == clean_pass(CALLS, unbound="standalone").records
