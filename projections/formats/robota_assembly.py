"""Calls and costs of one Robota session, from its history entries in any order.

Rules for editing this module: where an entry stands in its history (its ordinal) decides, never when it is added; every
entry that is added leaves the items as if all entries so far had been added in history order. Of several entries that
make one record, the first of the history makes it.
"""

from bisect import bisect_left, bisect_right, insort
from typing import Any, Final

from projections.formats.assembly import Item, Items, Position, Report, add_report, span_of, storable_measurement
from projections.formats.assembly import Order as ItemOrder
from projections.formats.robota_session import nearest_index
from projections.ids import ConversationIdentity, conversation_item_ref, conversation_ref, cost_id
from projections.times import time_key

Order = tuple[int, Position]
"""The place of an entry: its ordinal, then its source position."""

_NO_ORDINAL: Final = 2**53

# A reason to withdraw what a summary tells, once for each usage that an observation tells again.
_TOLD_AGAIN: Final = "told_again:"

_NO_CALL_NAME: Final = "provider_call"
_NO_TOOL_NAME: Final = "tool_body"


class _Entry:
    """One entry that makes an item, and what of it the item's fields depend on."""

    __slots__ = ("at", "claim", "item", "order", "trace")

    def __init__(self, order: Order, item: Item) -> None:
        self.order = order
        self.item = item
        self.trace: str | None = None
        self.claim = ""
        self.at: str | None = None


class _Usage:
    """An observation or summary: it may end a turn, and one of each kind may tell of the same usage (``partner``)."""

    __slots__ = ("is_observation", "item", "key", "order", "partner", "trace")

    def __init__(self, order: Order, key: str | None, *, is_observation: bool) -> None:
        self.order = order
        self.key = key
        self.is_observation = is_observation
        self.trace: str | None = None
        self.partner: _Usage | None = None
        self.item: Item | None = None


def _order_of(row: "_Usage | _Entry") -> Order:
    return row.order


def _timed_at(timed: tuple[Position, str]) -> Position:
    return timed[0]


def _placed_at(entry: "_Entry") -> Position:
    return entry.order[1]


class RobotaAssembly(Items):
    """Provider calls, tool calls and turn snapshots of one Robota session."""

    def __init__(self, identity: ConversationIdentity) -> None:
        super().__init__(identity)
        self._ref = conversation_ref(identity)
        self._entries: dict[str, _Entry] = {}
        self._marks: dict[int, set[str]] = {}
        self._claimed: dict[str, list[_Entry]] = {}
        self._turns: dict[str, tuple[Order, str]] = {}
        self._called: dict[str, list[_Entry]] = {}
        self._bodies: set[str] = set()
        self._observed: dict[str, list[_Usage]] = {}
        self._same: dict[str, list[_Usage]] = {}
        self._ends: list[_Usage] = []
        self._ops: list[_Entry] = []
        self._times: dict[str, list[tuple[Position, str]]] = {}
        self._timeless: dict[str, list[_Entry]] = {}

    def add(self, position: Position, body: dict[str, Any]) -> None:
        """Take an entry, whatever its place in the history."""
        at = body["at"]
        if at is not None:
            insort(self._times.setdefault(position.source_id, []), (position, at))
        order = (_NO_ORDINAL if body["ordinal"] is None else body["ordinal"], position)
        for name, take in (
            ("call", self._add_call),
            ("tool", self._add_tool),
            ("op", self._add_op),
            ("observation", self._add_observation),
            ("summary", self._add_summary),
        ):
            if name in body:
                take(order, body, at)
        self._give_times(position)

    def _give_times(self, position: Position) -> None:
        """Give entries without a time that of the nearest entry of their source that has one, an earlier one first.

        Only those for which the entry at this position makes a difference are looked at: itself, or what follows it up
        to the next one that has a time, and what comes before the first of all.
        """
        times = self._times.get(position.source_id)
        timeless = self._timeless.get(position.source_id)
        if not times or not timeless:
            return
        index = bisect_right(times, position, key=_timed_at)
        first, last = bisect_left(timeless, position, key=_placed_at), bisect_right(timeless, position, key=_placed_at)
        if index and times[index - 1][0] == position:
            first = 0 if times[0][0] == position else first
            last = len(timeless) if index == len(times) else bisect_left(timeless, times[index][0], key=_placed_at)
        for entry in timeless[first:last]:
            if self._entries[entry.item.native_id] is entry:
                earlier = bisect_right(times, entry.order[1], key=_timed_at)
                self._give_time(entry.item, times[max(earlier - 1, 0)][1])

    def _give_time(self, item: Item, at: str) -> None:
        if item.at == at:
            return
        reports, item.reports, item.shown = item.reports, None, None
        for report in reports or ():
            add_report(item, report._replace(at=at))
        item.at = at
        self.touch(item)

    def answer(self, meeting: str, claims: dict[str, Any]) -> None:
        """Keep or give up what a fork copied: the earliest entry time wins, then the smaller conversation ref."""
        winner = min(claims, key=lambda ref: (time_key(claims[ref][0]), ref))
        for entry in self._claimed.get(meeting, ()):
            self._mark(entry.item, "copied", is_set=winner != self._ref)

    def _add_call(self, order: Order, body: dict[str, Any], at: str | None) -> None:
        call = body["call"]
        fields = {
            "callKind": "model",
            "name": call["model"] or _NO_CALL_NAME,
            "namespace": call["provider"],
            "conversation": self._ref,
            "isError": call["isError"],
            "span": span_of(order[1], body),
        }
        record_id = conversation_item_ref(self.identity, "response", call["id"])
        entry = self._make(order, Item("call", record_id, call["start"] or at, fields))
        if entry is not None:
            self._trace_call(entry, call["trace"])
            self._claim(entry, call["trace"] or "call", call["span"] or call["id"], body["at"])

    def _add_tool(self, order: Order, body: dict[str, Any], at: str | None) -> None:
        tool = body["tool"]
        record_id = conversation_item_ref(self.identity, "call", tool["span"])
        fields = self._tool_fields(_NO_TOOL_NAME, span_of(order[1], body), is_error=tool["isError"])
        entry = self._make(order, Item("call", record_id, tool["start"] or at, fields))
        if entry is not None:
            self._trace_call(entry, tool["trace"])
            self._claim(entry, tool["trace"] or "tool", tool["span"], body["at"])
        if tool["trace"] is not None and tool["trace"] not in self._bodies:
            self._bodies.add(tool["trace"])
            for observation in self._observed.get(tool["trace"], ()):
                self._review_turn(observation)

    def _add_op(self, order: Order, body: dict[str, Any], at: str | None) -> None:
        op = body["op"]
        record_id = conversation_item_ref(self.identity, "call", op["id"])
        item = Item("call", record_id, at, self._tool_fields(op["name"], span_of(order[1], body), is_error=None))
        entry = self._make(order, item)
        if entry is None:
            return
        insort(self._ops, entry, key=_order_of)
        # An operation's id may be counted per session; only a copied entry is the same to the byte.
        self._claim(entry, "op", f"{op['id']}:{body['sha']}", body["at"])
        end = bisect_right(self._ends, entry.order, key=_order_of)
        if end < len(self._ends):
            self._review(self._ends[end])

    def _tool_fields(self, name: str, span: dict[str, Any], *, is_error: bool | None) -> dict[str, Any]:
        return {
            "callKind": "tool",
            "name": name,
            "namespace": None,
            "conversation": self._ref,
            "isError": is_error,
            "span": span,
        }

    def _add_observation(self, order: Order, body: dict[str, Any], at: str | None) -> None:
        told = body["observation"]
        usage = _Usage(order, None if told["usage"] is None else told["usage"]["key"], is_observation=True)
        if told["trace"] is not None:
            usage.trace = told["trace"]
            self._observed.setdefault(told["trace"], []).append(usage)
            self._set_turn(told["trace"], order, told["turn"])
        if told["usage"] is not None:
            self._add_cost(order, body, at, told["usage"], told["model"], told["id"], "observation")
        self._add_usage(usage, is_consulted=told["consulted"])

    def _add_summary(self, order: Order, body: dict[str, Any], at: str | None) -> None:
        told = body["summary"]
        usage = _Usage(order, told["usage"]["key"], is_observation=False)
        usage.item = self._add_cost(order, body, at, told["usage"], None, f"legacy:{told['id']}", "summary")
        self._add_usage(usage, is_consulted=told["consulted"])

    def _add_cost(
        self,
        order: Order,
        body: dict[str, Any],
        at: str | None,
        usage: dict[str, Any],
        model: str | None,
        scope_id: str,
        epoch: str,
    ) -> Item:
        measurement = {
            "kind": "snapshot",
            "scope": "turn",
            "scopeId": scope_id,
            "epoch": epoch,
            "sequence": 0,
            "model": model,
            "tokens": {
                "input": usage["input"],
                "output": usage["output"],
                "cachedInput": None,
                "cacheWriteInput": None,
                "reasoningOutput": None,
                "total": usage["total"],
            },
            "cost": None if usage["usd"] is None else {"usd": usage["usd"], "kind": "estimate"},
            "source": f"robota.usage_{epoch}",
        }
        item = Item("cost", cost_id(self.identity, measurement), at, {"conversation": self._ref})
        add_report(item, Report(0, order[1], at, storable_measurement(measurement), span_of(order[1], body)))
        entry = self._make(order, item)
        if entry is None:
            return self._entries[item.native_id].item
        # An observation's id is minted; a summary has only its entry's, which is surely copied when the bytes are.
        native_id = scope_id if epoch == "observation" else f"{scope_id}:{body['sha']}"
        self._claim(entry, epoch, native_id, body["at"])
        return entry.item

    def _make(self, order: Order, made: Item) -> _Entry | None:
        """Put an item, or let an earlier entry of the history take an item over; None when a yet earlier one has it."""
        held = self._entries.get(made.native_id)
        if held is None:
            entry = _Entry(order, self.put(made, order[1]))
            made.order = self._item_order(order)
        elif order < held.order:
            entry = _Entry(order, held.item)
            self._leave(held)
            item = held.item
            item.at, item.fields, item.measurement = made.at, made.fields, made.measurement
            item.reports, item.shown, item.order = made.reports, made.shown, self._item_order(order)
            self.touch(item)
        else:
            return None
        self._entries[made.native_id] = entry
        if made.at is None:
            insort(self._timeless.setdefault(order[1].source_id, []), entry, key=_placed_at)
        return entry

    def _item_order(self, order: Order) -> ItemOrder:
        """Give an item the place that its entry has in the history, whatever its source is called."""
        ordinal, position = order
        # Two entries may claim one ordinal; their sources tell them apart.
        return self.first_rank, f"{ordinal:020d}:{position.source_id}", position.offset, position.part, 0

    def _leave(self, held: _Entry) -> None:
        if held.trace is not None:
            self._called[held.trace].remove(held)
        if held in self._ops:
            self._ops.remove(held)
            self._mark(held.item, "told_by_body", is_set=False)
        self._claimed[held.claim].remove(held)
        self._mark(held.item, "copied", is_set=False)
        self._say_claim(held.claim)

    def _claim(self, entry: _Entry, scope: str, native_id: str, at: str | None) -> None:
        """Claim what a fork of the session would copy, with the time of the entry."""
        entry.claim = conversation_item_ref(self.identity._replace(native_id=scope), "item", native_id)
        entry.at = at
        self._claimed.setdefault(entry.claim, []).append(entry)
        self.unanswered.add(entry.claim)
        self._say_claim(entry.claim)

    def _say_claim(self, claim: str) -> None:
        """Hold a claim as long as something would be shown for it: what is told otherwise is left to the others."""
        times = [entry.at for entry in self._claimed[claim] if not self._is_told_again(entry.item)]
        held = [min(times, key=time_key)] if times else None
        if self.claims.get(claim) != held:
            self.claims[claim] = held
            self.new_claims.add(claim)
            self.unanswered.add(claim)

    def _trace_call(self, entry: _Entry, trace: str | None) -> None:
        """Give a call the turn whose prompt it was traced under."""
        entry.trace = trace
        if trace is not None:
            self._called.setdefault(trace, []).append(entry)
            self._show_turn(entry)

    def _set_turn(self, trace: str, order: Order, turn: str) -> None:
        held = self._turns.get(trace)
        if held is not None and held[0] < order:
            return
        self._turns[trace] = (order, conversation_item_ref(self.identity, "turn", turn))
        for entry in self._called.get(trace, ()):
            self._show_turn(entry)

    def _show_turn(self, entry: _Entry) -> None:
        found = self._turns.get(entry.trace or "")
        if found is None:
            return
        fields = entry.item.fields
        is_error, span = fields["isError"], fields["span"]
        head = {name: value for name, value in fields.items() if name not in ("turn", "isError", "span")}
        entry.item.fields = {**head, "turn": found[1], "isError": is_error, "span": span}
        self.touch(entry.item)

    def _add_usage(self, usage: _Usage, *, is_consulted: bool) -> None:
        """Pair observations and summaries of one usage, and let those of a turn end it.

        A consulted model tells of its own usage in the middle of the turn that consulted it.
        """
        if not is_consulted:
            insort(self._ends, usage, key=_order_of)
        if usage.key is not None:
            insort(self._same.setdefault(usage.key, []), usage, key=_order_of)
            self._pair(self._same[usage.key])
        self._review(usage)

    def _pair(self, same: list[_Usage]) -> None:
        """Let each observation, in history order, hide the summary nearest to it that is left."""
        left = [usage for usage in same if not usage.is_observation]
        places = [usage.order[0] for usage in left]
        partners: dict[int, _Usage] = {}
        for observation in same:
            if observation.is_observation and left:
                nearest = nearest_index(places, observation.order[0])
                summary = left.pop(nearest)
                places.pop(nearest)
                partners[id(summary)], partners[id(observation)] = observation, summary
        for usage in same:
            partner = partners.get(id(usage))
            if usage.partner is not partner:
                usage.partner = partner
                self._review(usage)
        hidden = {id(usage.item) for usage in same if usage.partner is not None and usage.item is not None}
        for usage in same:
            if usage.item is not None:
                # Entries that share an id share an item, and may tell of different usage.
                self._mark(usage.item, f"{_TOLD_AGAIN}{usage.key}", is_set=id(usage.item) in hidden)
                self._say_claim(self._entries[usage.item.native_id].claim)

    def _review_turn(self, observation: _Usage) -> None:
        self._review(observation)
        if observation.partner is not None:
            self._review(observation.partner)

    def _review(self, end: _Usage) -> None:
        """Decide anew whether the operations of the turn that ends here are told by tool bodies, with better spans."""
        at = bisect_left(self._ends, end.order, key=_order_of)
        if at == len(self._ends) or self._ends[at] is not end:
            return
        first = bisect_right(self._ops, self._ends[at - 1].order, key=_order_of) if at else 0
        last = bisect_left(self._ops, end.order, key=_order_of)
        observation = end if end.is_observation else end.partner
        is_told = observation is not None and observation.trace in self._bodies
        for entry in self._ops[first:last]:
            self._mark(entry.item, "told_by_body", is_set=is_told)

    def _is_told_again(self, item: Item) -> bool:
        return any(reason.startswith(_TOLD_AGAIN) for reason in self._marks.get(item.rank, ()))

    def _mark(self, item: Item, reason: str, *, is_set: bool) -> None:
        """Set or clear one reason to withdraw an item; it is shown when none is left."""
        reasons = self._marks.setdefault(item.rank, set())
        if is_set:
            reasons.add(reason)
        else:
            reasons.discard(reason)
        self.withdraw([item], withdrawn=bool(reasons))
