"""The ledger's word that an attempt speaks in a conversation, as a message."""

import json
from typing import Any

from projections.lifecycle.reducer import reduce_execution_transition
from tests.worlds.world import SourceMessage

OWNER = {"supervisorId": "sup", "generation": 1, "leaseUntil": "2026-12-01T00:00:00Z"}


def binding(conversation: dict[str, str], attempt_id: str, *, at: str = "2026-01-01T00:00:00Z") -> SourceMessage:
    """Make the ledger record that binds a conversation to an attempt from a time on."""
    execution_id = f"execution of {attempt_id}"
    prepare: dict[str, Any] = {
        "kind": "prepare",
        "executionId": execution_id,
        "eventId": f"{execution_id}:0",
        "expectedRevision": 0,
        "occurredAt": at,
        "execution": {"executionId": execution_id, "conversation": conversation},
        "harness": conversation["harness"],
        "requestKey": attempt_id,
        "target": {"kind": "fresh", "namespace": conversation["namespace"], "pinnedNativeId": conversation["nativeId"]},
        "owner": OWNER,
    }
    record = reduce_execution_transition(None, prepare)
    return SourceMessage("ledger-changes", None, json.dumps({"record": record}).encode())
