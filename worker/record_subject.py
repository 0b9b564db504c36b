"""What the id of a trace record is about: its run, its conversation, its item; and the bytes that would name them."""

from typing import NamedTuple
from urllib.parse import unquote

from projections.ids import (
    ATTEMPT_ID_PATTERN,
    CALL_ID_PATTERN,
    COMMIT_ID_PATTERN,
    COST_ID_PATTERN,
    FILE_ID_PATTERN,
    HUMAN_GATE_ID_PATTERN,
    POLICY_GATE_ID_PATTERN,
    PR_ID_PATTERN,
    RUN_ID_PATTERN,
    run_of_gate_id,
    split_attempt_id,
)

NAMES_ITEM = 2
NAMES_SURROUNDINGS = 1


class Subject(NamedTuple):
    """One id taken apart.

    ``run`` is the run's id and ``conversation`` the conversation's ref where the id spells them; ``item`` and
    ``surroundings`` are the texts that a source message would hold if it were about it.
    """

    id: str
    kind: str
    run: str | None
    conversation: str | None
    item: str | None
    surroundings: str | None

    def mentions(self, data: bytes | None) -> int:
        """Say how closely a message names the subject: its item, its surroundings, or (0) neither."""
        if not data:
            return 0
        if self.item is not None and self.item.encode() in data:
            return NAMES_ITEM
        if self.surroundings is not None and self.surroundings.encode() in data:
            return NAMES_SURROUNDINGS
        return 0


def subject_of(record_id: str) -> Subject | None:
    """Take the id of a trace record apart; None for a text that is the id of no record."""
    attempt = split_attempt_id(record_id) if ATTEMPT_ID_PATTERN.fullmatch(record_id) else None
    if attempt is not None:
        return Subject(record_id, "attempt", attempt.run, None, record_id, attempt.run)
    if CALL_ID_PATTERN.fullmatch(record_id):
        return _conversation_item(record_id, "call", record_id)
    if COST_ID_PATTERN.fullmatch(record_id):
        return _conversation_item(record_id, "cost", record_id.removeprefix("cost:"))
    for pattern in (COMMIT_ID_PATTERN, PR_ID_PATTERN, FILE_ID_PATTERN):
        if pattern.fullmatch(record_id):
            return _artifact(record_id)
    if POLICY_GATE_ID_PATTERN.fullmatch(record_id) or HUMAN_GATE_ID_PATTERN.fullmatch(record_id):
        return Subject(record_id, "gate", run_of_gate_id(record_id), None, record_id, run_of_gate_id(record_id))
    if RUN_ID_PATTERN.fullmatch(record_id):
        return Subject(record_id, "run", record_id, None, record_id, None)
    return None


def _conversation_item(record_id: str, kind: str, ref: str) -> Subject | None:
    """Take `<kind>:<harness>:<namespace>:<native id>:<item…>` apart."""
    parts = ref.split(":")
    if len(parts) < 5:
        return None
    _, harness, namespace, native, item, *_ = parts
    conversation = f"conversation:{harness}:{namespace}:{native}"
    return Subject(record_id, kind, None, conversation, unquote(item), unquote(native))


def _artifact(record_id: str) -> Subject:
    name = record_id.partition(":")[2]
    if record_id.startswith("pr:"):
        repo, _, _number = name.rpartition("#")
        return Subject(record_id, "artifact", None, None, None, repo)
    head, _, sha = name.rpartition("@")
    return Subject(record_id, "artifact", None, None, sha, "/".join(head.split("/")[:2]))
