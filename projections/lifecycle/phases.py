"""The phases of an execution and the kinds of transition between them."""

EXECUTION_PHASES = (
    "prepared",
    "dispatching",
    "running",
    "cancel_requested",
    "recovery_required",
    "succeeded",
    "failed",
    "cancelled",
    "cancellation_unknown",
    "ended",
)
"""Every phase, in the order of a life (spec: titan 4)."""

TERMINAL_EXECUTION_PHASES = ("succeeded", "failed", "cancelled", "cancellation_unknown", "ended")
"""The phases that nothing leaves; each is also the outcome of a ``finish``."""

TRANSITION_KINDS = (
    "prepare",
    "begin_dispatch",
    "observe_launched",
    "observe_running",
    "identify_conversation",
    "request_cancellation",
    "require_recovery",
    "finish",
    "claim_owner",
    "renew_owner",
    "release_owner",
)
"""Every kind of transition."""

TARGET_KINDS = ("fresh", "resume", "fork", "handoff")
"""Every kind of target that ``prepare`` can name."""


def is_terminal_phase(phase: object) -> bool:
    """Say whether nothing can leave a phase."""
    return phase in TERMINAL_EXECUTION_PHASES
