"""The execution lifecycle: records, transitions, leases and correlations, as the ledger's reference reduces them."""

from projections.lifecycle.correlations import (
    CORRELATION_KEY_PATTERN,
    RESERVED_CORRELATION_PREFIXES,
    correlation_key,
    validate_correlations,
)
from projections.lifecycle.errors import ExecutionTransitionError
from projections.lifecycle.instants import instant_ms
from projections.lifecycle.ledger import ExecutionLedger, LedgerOutcome
from projections.lifecycle.ledger_feed import (
    ExecutionFold,
    fold_execution,
    require_execution_record,
    require_ledger_transition,
)
from projections.lifecycle.phases import EXECUTION_PHASES, TERMINAL_EXECUTION_PHASES, is_terminal_phase
from projections.lifecycle.reducer import reduce_execution_transition
from projections.lifecycle.sanitize import WITHHELD, sanitize_record, sanitize_transition

__all__ = [
    "CORRELATION_KEY_PATTERN",
    "EXECUTION_PHASES",
    "RESERVED_CORRELATION_PREFIXES",
    "TERMINAL_EXECUTION_PHASES",
    "WITHHELD",
    "ExecutionFold",
    "ExecutionLedger",
    "ExecutionTransitionError",
    "LedgerOutcome",
    "correlation_key",
    "fold_execution",
    "instant_ms",
    "is_terminal_phase",
    "reduce_execution_transition",
    "require_execution_record",
    "require_ledger_transition",
    "sanitize_record",
    "sanitize_transition",
    "validate_correlations",
]
