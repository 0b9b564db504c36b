"""The sources: one pure function per topic, message in, facts out, in one table that a reader sees whole."""

from collections.abc import Callable
from typing import NamedTuple

from projections.errors import ProjectionError
from projections.facts import Fact
from projections.sources import erasures, gate_decisions, ledger_changes, transcripts, workflow_runs
from projections.sources.envelope import DEFAULT_LIMITS, Event, Limits, read_event


class Projected(NamedTuple):
    """What one message says: its facts, or the reason why it says nothing to a trace.

    A message is ignored when ``ignored`` has a reason, even if it leaves a fact so that others need not wait for it.
    ``issues`` are bounded codes of the parts that were refused inside a message whose other parts were projected.
    """

    facts: list[Fact]
    ignored: str | None = None
    issues: tuple[str, ...] = ()


class Source(NamedTuple):
    """How one source topic is read: its pure function, and the fields that may hold the id in a message key."""

    project: Callable[[Event], tuple[list[Fact], str | None, list[str]]]
    key_fields: tuple[str, ...]


SOURCES: dict[str, Source] = {
    "workflow-runs": Source(workflow_runs.project_event, ("id", "runId", "run_id")),
    "gate-decisions": Source(gate_decisions.project_event, ("id", "gateId", "gate_id")),
    "ledger-changes": Source(ledger_changes.project_event, ("executionId", "execution_id", "id")),
    "transcripts": Source(transcripts.project_event, ()),
    "erasures": Source(erasures.project_event, ()),
}
"""The sources by name; the topics they are read from are settings."""


def project_message(
    source: str,
    key: bytes | None,
    value: bytes | None,
    partition: int,
    offset: int,
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> Projected:
    """Project one message of a source topic.

    ``partition`` and ``offset`` are the message's place in its topic; they are kept beside facts that a tombstone can
    reach and enter no record. Raises ProjectionError for a message that can never be projected.
    """
    spec = SOURCES[source]
    event = read_event(key, value, (partition, offset), spec.key_fields, limits)
    if event is None:
        return Projected([], "no_change")
    facts, ignored, issues = spec.project(event)
    assert facts or ignored
    if len(facts) > limits.facts_max:
        raise ProjectionError("too_many_facts")
    return Projected(facts, ignored, tuple(issues))
