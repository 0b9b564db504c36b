"""Codex rollouts: one JSON object a line; usage is a cumulative counter, and a fork repeats its parent's lines.

Rules for editing this module: the counter's steps, repeated ids and copied history are decided here, by an assembly
that gets the lines in source order and may get them all again from the start.
"""

from bisect import bisect_right
from typing import Any

from projections.formats.assembly import Item, Items, Position, Report, span_of, storable_measurement
from projections.formats.codex_forks import CHUNK_ROWS, History
from projections.formats.codex_lines import Body
from projections.formats.codex_usage import (
    COUNT_SOURCE,
    CodexEvent,
    CodexUsageReader,
    CounterSteps,
    Tokens,
    stored_tokens,
)
from projections.ids import ConversationIdentity, conversation_item_ref, conversation_ref, cost_id
from projections.times import TimeKey, time_key

_UNTOLD: Body = {"at": None, "marks": [], "chunks": []}


class _Source:
    """What has been read of one rollout file."""

    __slots__ = ("model", "reader", "rows", "steps", "turn")

    def __init__(self) -> None:
        self.turn: str | None = None
        self.model: str | None = None
        self.steps = CounterSteps()
        self.reader: CodexUsageReader | None = None
        self.rows: list[tuple[Position, Body, str | None]] = []


class CodexAssembly(Items):
    """Tool calls, model requests and costs of one Codex conversation."""

    def __init__(self, identity: ConversationIdentity) -> None:
        super().__init__(identity)
        self._ref = conversation_ref(identity)
        self._sources: dict[str, _Source] = {}
        self._calls: dict[str, list[Item]] = {}
        self._costs: dict[str, Item] = {}
        self._turn_refs: dict[str, str] = {}
        self._steps: dict[str, int] = {}
        self._placed: list[tuple[Position, Item]] = []
        self._history = History()
        self._row_places: list[Position] = []
        self._first_row_at: str | None = None
        self._families: dict[str, frozenset[int]] = {}
        self._copied_rows = 0
        self._copied_up_to: dict[str, Position] = {}
        self._join_family(identity.native_id, is_parent=True)

    def add(self, position: Position, body: Body) -> None:
        """Take the next line in source order."""
        at = self.see_time(position.source_id, body["at"])
        source = self._sources.get(position.source_id)
        if source is None:
            source = self._sources[position.source_id] = _Source()
        if "turn" in body:
            turn, model = body["turn"]
            source.turn = turn or source.turn
            source.model = model or source.model
        elif "call" in body:
            self._add_call(position, body, at, source)
        elif "result" in body:
            self._add_result(body["result"])
        elif "meta" in body:
            parent = body["meta"]["forkedFrom"]
            if parent not in (None, self.identity.native_id) and len(self._families) == 1:
                self._join_family(parent, is_parent=False)
        else:
            self._add_usage(position, body, at, source)

    def _place(self, item: Item, position: Position) -> Item:
        """Add an item, withdrawn when it stands in history that was copied from another conversation."""
        border = self._copied_up_to.get(position.source_id)
        item.withdrawn = border is not None and position <= border
        self._placed.append((position, item))
        return self.put(item, position)

    def _fields(self, source: _Source, fields: Body) -> Body:
        fields["conversation"] = self._ref
        if source.turn is not None:
            fields["turn"] = self._turn_ref(source.turn)
        return fields

    def _turn_ref(self, turn: str) -> str:
        found = self._turn_refs.get(turn)
        if found is None:
            found = self._turn_refs[turn] = conversation_item_ref(self.identity, "turn", turn)
        return found

    def _add_call(self, position: Position, body: Body, at: str | None, source: _Source) -> None:
        native, name, namespace = body["call"]
        native = native or f"line:{position.offset}"
        same_id = self._calls.setdefault(native, [])
        unique = native if not same_id else f"{native}#{len(same_id) + 1}"
        fields = self._fields(source, {"callKind": "tool", "name": name, "namespace": namespace})
        record_id = conversation_item_ref(self.identity, "call", unique)
        item = Item("call", record_id, at, {**fields, "isError": None, "span": span_of(position, body)})
        same_id.append(self._place(item, position))

    def _add_result(self, result: list[Any]) -> None:
        """Give a result to the nearest earlier call of its id; what is known is not made unknown again."""
        call_id, is_error = result
        for call in self._calls.get(call_id, ())[-1:]:
            if is_error is not None:
                call.fields["isError"] = is_error
                self.touch(call)

    def _add_usage(self, position: Position, body: Body, at: str | None, source: _Source) -> None:
        count = [stored_tokens(counters) for counters in body.get("count", ())]
        if count:
            self._see_row(position, count, body["at"])
        source.rows.append((position, body, at))
        if "record" in body and source.reader is None:
            # Usage records say what the counter's steps only suggest: read the whole file by them.
            source.reader = CodexUsageReader(position.source_id, self.identity.native_id)
            self.withdraw([item for _place, item in self._placed if item.group is source], withdrawn=True)
            for row_position, row, row_at in source.rows:
                self._read_row(row_position, row, row_at, source, source.reader)
            self._placed.sort(key=lambda placed: placed[0])
        elif source.reader is not None:
            self._read_row(position, body, at, source, source.reader)
        else:
            self._step(position, body, count, at, source)

    def _step(
        self, position: Position, body: Body, count: list[Tokens | None], at: str | None, source: _Source
    ) -> None:
        """Take one step of the cumulative counter: a model request and its cost."""
        total, last = count
        assert total is not None
        tokens = source.steps.step(total, last)
        if tokens is None:
            return
        native = self._step_id(position.offset)
        span = span_of(position, body)
        call_id = conversation_item_ref(self.identity, "response", native)
        fields = self._fields(source, {"callKind": "model", "name": source.model or "unknown"})
        measurement = {"kind": "delta", "responseId": native, "model": source.model, "tokens": tokens}
        measurement |= {"cost": None, "source": COUNT_SOURCE}
        cost = Item(
            "cost", f"cost:{call_id}", at, {"conversation": self._ref, "measurement": measurement, "span": span}
        )
        cost.measurement = measurement
        for item in (Item("call", call_id, at, {**fields, "span": span}), cost):
            item.group = source
            self._place(item, position)

    def _step_id(self, offset: int) -> str:
        """Name a step by its place; where a thread has several files, the same place comes again."""
        native = f"token_count@{offset}"
        self._steps[native] = self._steps.get(native, 0) + 1
        return native if self._steps[native] == 1 else f"{native}#{self._steps[native]}"

    def _read_row(
        self, position: Position, body: Body, at: str | None, source: _Source, reader: CodexUsageReader
    ) -> None:
        sequence = body.get("ordinal", position.offset)
        if "count" in body:
            total, last = body["count"]
            info = {"total_token_usage": total, "last_token_usage": last}
            event = CodexEvent("token_count", sequence, {"info": info}, source.model, source.turn)
        else:
            event = CodexEvent("usage_record", sequence, body["record"], source.model, source.turn)
        for measurement, turn in reader.read(event).measurements:
            self._add_measurement(position, body, at, measurement, turn)

    def _add_measurement(
        self, position: Position, body: Body, at: str | None, measurement: Body, turn: str | None
    ) -> None:
        span = span_of(position, body)
        record_id = cost_id(self.identity, measurement)
        stored = storable_measurement(measurement)
        cost = self._costs.get(record_id)
        if cost is None:
            cost = Item("cost", record_id, at, {"conversation": self._ref, "measurement": stored, "span": span})
            cost.measurement = stored
            self._costs[record_id] = self._place(cost, position)
            if measurement["kind"] == "delta":
                self._add_response(position, at, measurement, turn, span)
        elif measurement["kind"] == "delta":
            cost.fields["measurement"] = cost.measurement = stored
        if measurement["kind"] == "snapshot":
            self.report(cost, Report(measurement["sequence"], position, at, stored, span))
        self.touch(cost)

    def _add_response(
        self, position: Position, at: str | None, measurement: Body, turn: str | None, span: Body
    ) -> None:
        fields = {"callKind": "model", "name": measurement["model"] or "unknown", "conversation": self._ref}
        if turn is not None:
            fields["turn"] = self._turn_ref(turn)
        record_id = conversation_item_ref(self.identity, "response", measurement["responseId"])
        self._place(Item("call", record_id, at, {**fields, "span": span}), position)

    def _see_row(self, position: Position, count: list[Tokens | None], at: str | None) -> None:
        """Remember a counter row for the comparison with relatives: equal when total and last are."""
        chunk = self._history.add(count)
        self._row_places.append(position)
        is_news = len(self._row_places) % CHUNK_ROWS == 0 or (self._first_row_at is None and at is not None)
        self._first_row_at = self._first_row_at if self._first_row_at is not None else at
        for family, parted in self._families.items():
            if parted and (is_news or chunk in parted):
                self._claim(family)
                self.unanswered.add(family)

    def _join_family(self, parent: str, *, is_parent: bool) -> None:
        identity = self.identity._replace(native_id=parent)
        family = conversation_ref(identity).replace("conversation:", "fork:", 1)
        self._families.setdefault(family, frozenset())
        self.claims[family] = {"isParent": is_parent, **_UNTOLD}
        self.new_claims.add(family)

    def _claim(self, family: str) -> None:
        """Tell of the rows what the family asks for; nothing where nobody is left to compare them with."""
        parted = self._families[family]
        told = {"at": self._first_row_at, **self._history.tell(parted)} if parted else _UNTOLD
        claim = {**self.claims[family], **told}
        if claim != self.claims[family]:
            self.claims[family] = claim
            self.new_claims.add(family)

    def answer(self, meeting: str, claims: dict[str, Any]) -> None:
        """Compare with the relatives: rows shared with the parent or an earlier fork are copied history.

        A conversation tells its rows only once it has relatives, so that the others pay nothing for them.
        """
        relatives = {ref: claim for ref, claim in claims.items() if ref != self._ref}
        shared = {ref: self._history.compare(claim) for ref, claim in relatives.items()}
        self._families[meeting] = frozenset(part.chunk for part in shared.values())
        self._claim(meeting)
        own = self.claims[meeting]
        if own["isParent"]:
            return
        mine = (_time_of(own), self._ref)
        elders = [ref for ref, claim in relatives.items() if claim["isParent"] or (_time_of(claim), ref) < mine]
        self._withdraw_copied(max((shared[ref].row_count for ref in elders), default=0))

    def _withdraw_copied(self, row_count: int) -> None:
        """Take everything up to the last copied row, calls included, out of the records; the rest back in."""
        borders = sorted((self._copied_rows, row_count))
        self._copied_rows = row_count
        changed = self._row_places[borders[0] : borders[1]]
        if not changed:
            return
        copied = changed if row_count == borders[1] else self._row_places[:row_count]
        kept = self._copied_up_to if row_count == borders[1] else {}
        self._copied_up_to = kept | {position.source_id: position for position in copied}
        first = 0 if borders[0] == 0 else bisect_right(self._placed, self._row_places[borders[0] - 1], key=_place_of)
        last = bisect_right(self._placed, changed[-1], key=_place_of)
        for position, item in self._placed[first:last]:
            border = self._copied_up_to.get(position.source_id)
            is_copied = border is not None and position <= border
            is_superseded = item.group is not None and item.group.reader is not None
            self.withdraw([item], withdrawn=is_copied or is_superseded)


def _time_of(claim: Body) -> TimeKey:
    return time_key(claim["at"])


def _place_of(placed: tuple[Position, Item]) -> Position:
    return placed[0]
