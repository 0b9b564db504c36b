"""The erasures topic: one message makes everything about a run or a conversation disappear for good."""

from projections.errors import ProjectionError
from projections.facts import Fact
from projections.fields import Row
from projections.ids import conversation_ref, split_conversation_ref
from projections.sources.envelope import Event


def project_event(event: Event) -> tuple[list[Fact], str | None, list[str]]:
    """Project ``{"run": id}`` or ``{"conversation": ref}``; an erasure itself cannot be deleted."""
    if event.value is None:
        return [], "tombstone", []
    row = Row(event.value)
    if row.has("run") == row.has("conversation"):
        raise ProjectionError("invalid_field", "run")
    if row.has("run"):
        return [Fact(f"run:{row.native('run')}", "erased", (), body=True)], None, []
    identity = split_conversation_ref(row.native("conversation"))
    if identity is None:
        raise row.refuse("conversation")
    return [Fact(conversation_ref(identity), "erased", (), body=True)], None, []
