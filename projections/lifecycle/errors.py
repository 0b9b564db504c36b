"""The one error of the execution lifecycle: a code of the reference, the first check that failed, and where."""

from typing import Literal

from projections.errors import ProjectionError

TransitionErrorCode = Literal["not_found", "revision_conflict", "invalid_transition", "ownership_lost"]


class ExecutionTransitionError(ProjectionError):
    """A transition that an execution record refuses.

    ``code`` is one of the reference's four codes; ``reason`` names the first check that failed (``blank``,
    ``phase_not_allowed``); ``field`` is a field name of ours where one value is at fault. ``key`` is the correlation
    key at fault: it came with the input, so it is for the caller and stays out of the error's text.

    Where the reference crashes on a malformed value, this error is raised with code ``invalid_transition`` and reason
    ``type_error``; the reference's ledger answers the same (spec: titan 4).
    """

    def __init__(
        self,
        code: TransitionErrorCode,
        reason: str,
        field: str | None = None,
        key: str | None = None,
    ) -> None:
        """Remember the code, the reason and, where one value is at fault, its field and its correlation key."""
        super().__init__(reason, field)
        self.code: TransitionErrorCode = code
        self.key = key


def invalid(reason: str, field: str | None = None, key: str | None = None) -> ExecutionTransitionError:
    """Make the error of a transition that is wrong in itself or in this phase."""
    return ExecutionTransitionError("invalid_transition", reason, field, key)


def ownership_lost(reason: str) -> ExecutionTransitionError:
    """Make the error of a transition whose sender does not own the execution (any more)."""
    return ExecutionTransitionError("ownership_lost", reason)
