"""Codex token counters: the reader of the rows that a rollout writes, and the steps of its cumulative counter.

Codex counts cumulatively. A usage record may carry one response (a delta), its turn and its thread (snapshots); a
``token_count`` event carries the thread's total and the ``last`` request. Cached input is part of the input and
reasoning part of the output (spec: titan 9.5, decisions "Codex cumulative counters").
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from projections.usage import count_of

_TOKENS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cachedInput": "cached_input_tokens",
    "cacheWriteInput": "cache_write_input_tokens",
    "reasoningOutput": "reasoning_output_tokens",
    "total": "total_tokens",
}

COUNTER_NAMES = tuple(_TOKENS.values())

USAGE_SOURCE = "token_usage_record.usage"
TURN_SOURCE = "token_usage_record.turn_token_usage"
THREAD_SOURCE = "token_usage_record.thread_token_usage"
COUNT_SOURCE = "event_msg.token_count.info.total_token_usage"

Tokens = dict[str, int | None]


def read_tokens(value: Any) -> Tokens | None:
    """Read one counter object; None when it is no object. A count that is no count is null."""
    return {name: count_of(value.get(key)) for name, key in _TOKENS.items()} if isinstance(value, Mapping) else None


def stored_tokens(counters: Mapping[str, int] | None) -> Tokens | None:
    """Give a counter object of a fact, whose counts were checked when the fact was made."""
    return None if counters is None else {name: counters.get(key) for name, key in _TOKENS.items()}


def size_of(tokens: Tokens) -> int | None:
    """Give the total of a counter, or input plus output where the writer left the total out; None when unknown."""
    if tokens["total"] is not None:
        return tokens["total"]
    if tokens["input"] is None and tokens["output"] is None:
        return None
    return (tokens["input"] or 0) + (tokens["output"] or 0)


def is_restart(total: Tokens, last: Tokens | None) -> bool:
    """Say whether a lower total shows that the counter started again: then the total is the last request's own."""
    return last is not None and total == last


class CounterSteps:
    """The steps of one cumulative counter: each growth is one model request."""

    def __init__(self) -> None:
        self._before: Tokens | None = None

    def step(self, total: Tokens, last: Tokens | None) -> Tokens | None:
        """Give what a ``token_count`` row adds, field by field, null staying null; None when it adds nothing.

        No usage: the context size after a compaction (``last`` without input and output), a repeated row, a lower
        total that does not equal its own ``last`` (a stale row).
        """
        size = size_of(total)
        if size is None or (last is not None and last["input"] == 0 and last["output"] == 0):
            return None
        before = self._before
        if before is not None:
            held = size_of(before)
            assert held is not None
            if size == held:
                return None
            if size < held:
                if not is_restart(total, last):
                    return None
                before = None
        self._before = total
        return total if before is None else {name: _grown(total[name], before[name]) for name in _TOKENS}


def _grown(count: int | None, before: int | None) -> int | None:
    return None if count is None else max(count - (before or 0), 0)


class CodexEvent(NamedTuple):
    """One row of a rollout that has to do with usage: ``kind`` is usage_record, token_count or compaction."""

    kind: str
    sequence: int
    payload: Mapping[str, Any] | None
    model: str | None = None
    active_turn: str | None = None


class Read(NamedTuple):
    """The measurements that one row gives, each with its turn, and the epoch after the row."""

    measurements: list[tuple[dict[str, Any], str | None]]
    epoch: str


class CodexUsageReader:
    """Reads the usage rows of one rollout in order; a measurement's epoch is ``<sourceId>:usage:<n>``."""

    def __init__(self, source_id: str, conversation_id: str) -> None:
        self._source_id = source_id
        self._conversation_id = conversation_id
        self._epoch = 0
        self._thread_size: int | None = None
        self._seen: list[Tokens] = []

    def read(self, event: CodexEvent) -> Read:
        """Read one row. A compaction alone resets nothing."""
        found: list[tuple[dict[str, Any], str | None]] = []
        if isinstance(event.payload, Mapping):
            if event.kind == "usage_record":
                found = self._read_record(event, event.payload)
            elif event.kind == "token_count":
                found = self._read_count(event, event.payload)
        return Read(found, self._epoch_text())

    def _epoch_text(self) -> str:
        return f"{self._source_id}:usage:{self._epoch}"

    def _read_record(self, event: CodexEvent, payload: Mapping[str, Any]) -> list[tuple[dict[str, Any], str | None]]:
        turn = _id(payload.get("turn_id"))
        usage, turn_usage = read_tokens(payload.get("usage")), read_tokens(payload.get("turn_token_usage"))
        thread = read_tokens(payload.get("thread_token_usage"))
        if thread is not None:
            self._see_thread(thread)
        found = []
        response = _id(payload.get("response_id"))
        if response is not None and usage is not None:
            found.append(_measurement({"kind": "delta", "responseId": response}, event.model, usage, USAGE_SOURCE))
        if turn is not None and turn_usage is not None:
            scope = self._snapshot("turn", turn, event.sequence)
            found.append(_measurement(scope, event.model, turn_usage, TURN_SOURCE))
        if thread is not None:
            scope = self._snapshot("conversation", self._conversation_id, event.sequence)
            found.append(_measurement(scope, None, thread, THREAD_SOURCE))
        return [(measurement, turn) for measurement in found]

    def _read_count(self, event: CodexEvent, payload: Mapping[str, Any]) -> list[tuple[dict[str, Any], str | None]]:
        info = payload.get("info")
        total = read_tokens(info.get("total_token_usage")) if isinstance(info, Mapping) else None
        if total is None or total in self._seen:
            return []
        assert isinstance(info, Mapping)
        size = size_of(total)
        if size is not None and self._thread_size is not None and size < self._thread_size:
            if not is_restart(total, read_tokens(info.get("last_token_usage"))):
                return []
            self._start_epoch()
        self._thread_size = size
        self._seen.append(total)
        scope = self._snapshot("conversation", self._conversation_id, event.sequence)
        return [(_measurement(scope, None, total, COUNT_SOURCE), event.active_turn)]

    def _see_thread(self, thread: Tokens) -> None:
        """Take a thread total of a usage record: a fall below the total just before it starts an epoch."""
        total = thread["total"]
        if total is not None and self._thread_size is not None and total < self._thread_size:
            self._start_epoch()
        self._thread_size = total
        self._seen.append(thread)

    def _start_epoch(self) -> None:
        self._epoch += 1
        self._seen = []

    def _snapshot(self, scope: str, scope_id: str, sequence: int) -> dict[str, Any]:
        head = {"kind": "snapshot", "scope": scope, "scopeId": scope_id}
        return {**head, "epoch": self._epoch_text(), "sequence": sequence}


def _id(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _measurement(head: dict[str, Any], model: str | None, tokens: Tokens, source: str) -> dict[str, Any]:
    return {**head, "model": model, "tokens": tokens, "cost": None, "source": source}


def codex_usage(source_id: str, conversation_id: str, events: Iterable[CodexEvent]) -> list[Read]:
    """Read the usage rows of a whole rollout; one result per row."""
    reader = CodexUsageReader(source_id, conversation_id)
    return [reader.read(event) for event in events]
