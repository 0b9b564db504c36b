"""Live batches of a Robota prompt: bounded, and without content."""

from typing import Any

import pytest

from projections.errors import ProjectionError
from projections.formats.robota_live import CHILDREN_MAX, LiveBatch, live_batch

TRACE, SPAN = "1" * 32, "2" * 16
AT = "2026-09-24T00:00:59.000Z"
TOOL = {
    "traceId": TRACE,
    "parentSpanId": SPAN,
    "spanId": "3" * 16,
    "startedAt": AT,
    "endedAt": AT,
    "outcome": "success",
}
FINISH: dict[str, Any] = {
    "sessionId": "s",
    "turnId": "t",
    "root": {"traceId": TRACE, "spanId": SPAN, "startedAt": AT, "endedAt": AT, "outcome": "success"},
}


def test_children_past_the_limit_are_only_counted() -> None:
    batch = live_batch([{"tool": TOOL}] * (CHILDREN_MAX + 3), FINISH)
    assert len(batch["children"]) == CHILDREN_MAX
    assert batch["omittedChildren"] == {"provider": 0, "tool": 3, "permission": 0}


def test_only_listed_fields_of_children_and_root_are_copied() -> None:
    root = FINISH["root"] | {"prompt": "SECRET"}
    steps: list[dict[str, Any]] = [
        {"tool": TOOL | {"args": "SECRET"}},
        {"provider": TOOL | {"round": 1, "prompt": "SECRET"}},
        {
            "permission": {
                "traceId": TRACE,
                "parentSpanId": SPAN,
                "decidedAt": AT,
                "decision": "denied",
                "reason": "SECRET",
            }
        },
    ]
    batch = live_batch(steps, FINISH | {"root": root})
    assert [child["kind"] for child in batch["children"]] == ["tool", "provider", "permission"]
    assert "SECRET" not in repr(batch)


@pytest.mark.parametrize("value", [None, [], "x", {}, TOOL | {"toolCallId": None}, TOOL | {"spanId": "0" * 16}])
def test_a_malformed_child_is_omitted_and_said_to_be(value: Any) -> None:
    batch = LiveBatch()
    assert batch.add_tool(value) is False
    assert batch.finish(FINISH)["omittedChildren"]["tool"] == 1


def test_a_finished_batch_does_not_change_afterwards() -> None:
    batch = LiveBatch()
    first = batch.finish(FINISH)
    assert batch.add_tool(TOOL) is True
    assert first["children"] == []
    assert len(batch.finish(FINISH)["children"]) == 1


@pytest.mark.parametrize(
    "finish", [{}, FINISH | {"root": None}, FINISH | {"sessionId": None}, FINISH | {"turnId": "t\n"}]
)
def test_an_unsafe_root_is_refused(finish: dict[str, Any]) -> None:
    with pytest.raises(ProjectionError, match="invalid_root"):
        live_batch([], finish)


def test_a_step_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ProjectionError, match="invalid_field"):
        live_batch([{"content": {}}], FINISH)
