"""The core: pure functions from source messages to trace records, without clock, randomness, IO or threads.

Everything here is for use on its own, and each name says in its docstring what it takes, gives and raises:

- ids and records: ``attempt_id``, ``conversation_ref``, ``cost_id``, …, ``parse_trace_record``, ``encode_record``
- canonical JSON and its digests: ``canonical_json``, ``digest_of_json``, ``digest_of_text``
- what may leave: ``Policy``, ``redact``, ``redact_id``
- usage and prices: ``fold_usage``, ``usage_summary``, ``price_request``, ``quote_measurement``, ``parse_price_table``
- the execution ledger: ``reduce_execution_transition``, ``fold_execution``, ``ExecutionLedger``
- worker facts: ``parse_worker_facts``
- the projection: ``project_message`` gives the facts of a message, ``Fold`` the record changes of facts

A name is loaded with its module when it is first used, so importing this package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projections.canonical import canonical_json, digest_of_json, digest_of_text, encode_record, sha256_hex
    from projections.decode import decode_json
    from projections.errors import ProjectionError, TraceParseError
    from projections.facts import Fact, decode_fact, encode_fact, partition_of
    from projections.fold import Change, Fold, FoldResult
    from projections.formats import FORMATS
    from projections.ids import (
        CORRELATION_KEY_PATTERN,
        AttemptParts,
        ConversationIdentity,
        attempt_id,
        branch_ref,
        commit_ref,
        conversation_item_ref,
        conversation_ref,
        cost_id,
        file_id,
        file_ref,
        gate_id_for,
        memo_key,
        normalize_repo,
        normalize_sha,
        policy_gate_id,
        pr_ref,
        run_of_gate_id,
        split_attempt_id,
        split_conversation_ref,
        split_gate_id,
        split_policy_gate_id,
    )
    from projections.lifecycle import (
        EXECUTION_PHASES,
        RESERVED_CORRELATION_PREFIXES,
        TERMINAL_EXECUTION_PHASES,
        WITHHELD,
        ExecutionFold,
        ExecutionLedger,
        ExecutionTransitionError,
        LedgerOutcome,
        correlation_key,
        fold_execution,
        instant_ms,
        is_terminal_phase,
        reduce_execution_transition,
        require_execution_record,
        require_ledger_transition,
        sanitize_record,
        sanitize_transition,
        validate_correlations,
    )
    from projections.policy_gates import policy_gate_record, table_version_number
    from projections.prices import (
        PriceTable,
        PriceTableError,
        built_in_table,
        find_codex_price,
        find_price,
        is_priced_model,
        parse_price_table,
        validate_codex_prices,
    )
    from projections.pricing import (
        UNAVAILABLE_REASONS,
        Quote,
        price_codex_usage,
        price_cost,
        price_request,
        quote_measurement,
        quote_usage,
        with_estimate,
    )
    from projections.privacy import (
        DIGEST_PREFIX,
        LOCAL_MARK,
        TRACE_FIELD_PRIVACY,
        Policy,
        redact,
        redact_id,
        redact_trace_record,
    )
    from projections.records import (
        ARTIFACT_KINDS,
        RECORD_KINDS,
        parse_trace_envelope,
        parse_trace_record,
        parse_trace_record_loose,
        record_json_schema,
        scope_of,
    )
    from projections.sources import SOURCES, Projected, project_message
    from projections.text import storable_text
    from projections.usage import (
        TOKEN_FIELDS,
        FoldedUsage,
        add_usage,
        claude_usage,
        fold_usage,
        usage_from_measurements,
        usage_summary,
    )
    from projections.worker_facts import WorkerFactsError, parse_worker_facts

__all__ = [
    "ARTIFACT_KINDS",
    "CORRELATION_KEY_PATTERN",
    "DIGEST_PREFIX",
    "EXECUTION_PHASES",
    "FORMATS",
    "LOCAL_MARK",
    "RECORD_KINDS",
    "RESERVED_CORRELATION_PREFIXES",
    "SOURCES",
    "TERMINAL_EXECUTION_PHASES",
    "TOKEN_FIELDS",
    "TRACE_FIELD_PRIVACY",
    "UNAVAILABLE_REASONS",
    "WITHHELD",
    "AttemptParts",
    "Change",
    "ConversationIdentity",
    "ExecutionFold",
    "ExecutionLedger",
    "ExecutionTransitionError",
    "Fact",
    "Fold",
    "FoldResult",
    "FoldedUsage",
    "LedgerOutcome",
    "Policy",
    "PriceTable",
    "PriceTableError",
    "Projected",
    "ProjectionError",
    "Quote",
    "TraceParseError",
    "WorkerFactsError",
    "add_usage",
    "attempt_id",
    "branch_ref",
    "built_in_table",
    "canonical_json",
    "claude_usage",
    "commit_ref",
    "conversation_item_ref",
    "conversation_ref",
    "correlation_key",
    "cost_id",
    "decode_fact",
    "decode_json",
    "digest_of_json",
    "digest_of_text",
    "encode_fact",
    "encode_record",
    "file_id",
    "file_ref",
    "find_codex_price",
    "find_price",
    "fold_execution",
    "fold_usage",
    "gate_id_for",
    "instant_ms",
    "is_priced_model",
    "is_terminal_phase",
    "memo_key",
    "normalize_repo",
    "normalize_sha",
    "parse_price_table",
    "parse_trace_envelope",
    "parse_trace_record",
    "parse_trace_record_loose",
    "parse_worker_facts",
    "partition_of",
    "policy_gate_id",
    "policy_gate_record",
    "pr_ref",
    "price_codex_usage",
    "price_cost",
    "price_request",
    "project_message",
    "quote_measurement",
    "quote_usage",
    "record_json_schema",
    "redact",
    "redact_id",
    "redact_trace_record",
    "reduce_execution_transition",
    "require_execution_record",
    "require_ledger_transition",
    "run_of_gate_id",
    "sanitize_record",
    "sanitize_transition",
    "scope_of",
    "sha256_hex",
    "split_attempt_id",
    "split_conversation_ref",
    "split_gate_id",
    "split_policy_gate_id",
    "storable_text",
    "table_version_number",
    "usage_from_measurements",
    "usage_summary",
    "validate_codex_prices",
    "validate_correlations",
    "with_estimate",
]

_NAMES_BY_MODULE: dict[str, str] = {
    "canonical": "canonical_json digest_of_json digest_of_text encode_record sha256_hex",
    "decode": "decode_json",
    "errors": "ProjectionError TraceParseError",
    "facts": "Fact decode_fact encode_fact partition_of",
    "fold": "Change Fold FoldResult",
    "formats": "FORMATS",
    "ids": (
        "AttemptParts CORRELATION_KEY_PATTERN ConversationIdentity attempt_id branch_ref commit_ref "
        "conversation_item_ref conversation_ref cost_id file_id file_ref gate_id_for memo_key normalize_repo "
        "normalize_sha policy_gate_id pr_ref run_of_gate_id split_attempt_id split_conversation_ref "
        "split_gate_id split_policy_gate_id"
    ),
    "lifecycle": (
        "EXECUTION_PHASES ExecutionFold ExecutionLedger ExecutionTransitionError LedgerOutcome "
        "RESERVED_CORRELATION_PREFIXES TERMINAL_EXECUTION_PHASES WITHHELD correlation_key fold_execution "
        "instant_ms is_terminal_phase reduce_execution_transition require_execution_record "
        "require_ledger_transition sanitize_record sanitize_transition validate_correlations"
    ),
    "policy_gates": "policy_gate_record table_version_number",
    "prices": (
        "PriceTable PriceTableError built_in_table find_codex_price find_price is_priced_model "
        "parse_price_table validate_codex_prices"
    ),
    "pricing": (
        "Quote UNAVAILABLE_REASONS price_codex_usage price_cost price_request quote_measurement quote_usage "
        "with_estimate"
    ),
    "privacy": "DIGEST_PREFIX LOCAL_MARK Policy TRACE_FIELD_PRIVACY redact redact_id redact_trace_record",
    "records": (
        "ARTIFACT_KINDS RECORD_KINDS parse_trace_envelope parse_trace_record parse_trace_record_loose "
        "record_json_schema scope_of"
    ),
    "sources": "Projected SOURCES project_message",
    "text": "storable_text",
    "usage": "FoldedUsage TOKEN_FIELDS add_usage claude_usage fold_usage usage_from_measurements usage_summary",
    "worker_facts": "WorkerFactsError parse_worker_facts",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name from the module that holds it."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    """List what is here and what may be loaded."""
    return sorted({*globals(), *__all__})
