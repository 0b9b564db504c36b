"""Session-read observations (spec: titan 9.5): calls, results and usage that a reader has already decoded."""

from typing import Any

from projections.errors import ProjectionError
from projections.fields import Row, checked_number, read_span
from projections.formats.assembly import Item, Items, Position, Report, storable_measurement
from projections.ids import ConversationIdentity, conversation_item_ref, conversation_ref, cost_id
from projections.usage import count_of

_TIMES_TO_LIVE = ("ttl5m", "ttl1h")
_TOKENS = ("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total")


def read_observation(row: Row) -> dict[str, Any] | str:
    """Read one observation; gives a line fact's body, or the reason why it says nothing to a trace.

    Body: ``at``, ``turn``, ``span`` (null when the observation has no evidence) and one of ``call`` {id, name,
    namespace}, ``result`` [call id, isError], ``usage`` {response, measurement, split} (``split`` where it is given).
    """
    kind = row.text("kind")
    read = _READERS.get(kind)
    if read is None:
        return "no_trace_line"
    if row.raw("historyOrigin") is not None:
        return "copied_history"
    evidence = row.row_or_none("evidence")
    turn = row.row_or_none("turn")
    return {
        "at": row.time_or_none("timestamp"),
        "turn": None if turn is None else turn.native("nativeId"),
        "span": None if evidence is None else read_span(evidence.row("line")),
        **read(row),
    }


def _read_call(row: Row) -> dict[str, Any]:
    if row.row_or_none("evidence") is None:
        raise row.refuse("evidence")
    name = row.text("name")
    return {
        "call": {"id": row.row("call").native("nativeId"), "name": name, "namespace": row.text_or_none("namespace")}
    }


def _read_result(row: Row) -> dict[str, Any]:
    is_error = row.raw("isError")
    if is_error is not None and not isinstance(is_error, bool):
        raise row.refuse("isError")
    return {"result": [row.row("call").native("nativeId"), is_error]}


def _read_usage(row: Row) -> dict[str, Any]:
    response = row.row_or_none("response")
    usage: dict[str, Any] = {
        "response": None if response is None else response.native("nativeId"),
        "measurement": read_measurement(row.row("measurement")),
    }
    split = _read_split(row.json("cacheWriteSplit"))
    if split is not None:
        usage["split"] = split
    return {"usage": usage}


def _read_split(value: Any) -> dict[str, int] | None:
    """Read how long cache writes live; what cannot be read is no evidence, and costs the usage nothing."""
    if not isinstance(value, dict):
        return None
    split = {name: count for name in _TIMES_TO_LIVE if (count := count_of(value.get(name))) is not None}
    return split if len(split) == len(_TIMES_TO_LIVE) else None


_READERS = {"tool_call": _read_call, "tool_result": _read_result, "usage": _read_usage}


def read_measurement(row: Row) -> dict[str, Any]:
    """Check a usage measurement (spec: titan 3) and give it in the key order of records."""
    kind = row.one_of("kind", ("delta", "snapshot"))
    body: dict[str, Any] = {"kind": kind}
    if kind == "delta":
        body["responseId"] = row.native("responseId")
    else:
        body["scope"] = row.one_of("scope", ("turn", "conversation"))
        body["scopeId"] = row.native("scopeId")
        body["epoch"] = row.native("epoch")
        body["sequence"] = row.count("sequence")
    body["model"] = row.text_or_none("model")
    tokens = row.row("tokens")
    body["tokens"] = {name: None if tokens.raw(name) is None else tokens.count(name) for name in _TOKENS}
    cost = row.row_or_none("cost")
    body["cost"] = (
        None if cost is None else {"usd": _amount(cost), "kind": cost.one_of("kind", ("estimate", "reported"))}
    )
    body["source"] = row.text("source")
    return body


def _amount(cost: Row) -> int | float:
    usd = checked_number(cost.raw("usd"), cost.where("usd"))
    if usd < 0:
        raise ProjectionError("invalid_field", cost.where("usd"))
    return usd


class ObservationAssembly(Items):
    """Calls and costs of one conversation whose transcript arrives as observations."""

    def __init__(self, identity: ConversationIdentity) -> None:
        super().__init__(identity)
        self._ref = conversation_ref(identity)
        self._calls: dict[str, Item] = {}
        self._responses: dict[str, Item] = {}
        self._costs: dict[str, Item] = {}

    def add(self, position: Position, body: dict[str, Any]) -> None:
        """Take the next observation in source order."""
        at = self.see_time(position.source_id, body["at"])
        if "call" in body:
            self._add_call(position, body, at)
        elif "result" in body:
            call_id, is_error = body["result"]
            call = self._calls.get(call_id)
            if call is not None:
                call.fields["isError"] = is_error
                self.touch(call)
        else:
            self._add_usage(position, body, at)

    def _add_call(self, position: Position, body: dict[str, Any], at: str | None) -> None:
        call = body["call"]
        if call["id"] in self._calls:
            return
        fields = {"callKind": "tool", "name": call["name"], "namespace": call["namespace"], "conversation": self._ref}
        fields.update(self._turn(body))
        item = Item(
            "call",
            conversation_item_ref(self.identity, "call", call["id"]),
            at,
            {**fields, "isError": None, "span": body["span"]},
        )
        self._calls[call["id"]] = self.put(item, position)

    def _turn(self, body: dict[str, Any]) -> dict[str, str]:
        return {} if body["turn"] is None else {"turn": conversation_item_ref(self.identity, "turn", body["turn"])}

    def _add_usage(self, position: Position, body: dict[str, Any], at: str | None) -> None:
        raw = body["usage"]["measurement"]
        measurement = storable_measurement(raw)
        response = body["usage"]["response"]
        if response is not None and body["span"] is not None:
            self._add_response(position, body, at, response, measurement["model"])
        native_id = cost_id(self.identity, raw)
        split = body["usage"].get("split")
        cost = self._costs.get(native_id)
        if cost is None:
            fields: dict[str, Any] = {"conversation": self._ref, "measurement": measurement}
            if body["span"] is not None:
                fields["span"] = body["span"]
            cost = Item("cost", native_id, at, fields)
            cost.measurement = measurement
            cost.cache_write_split = split
            self._costs[native_id] = self.put(cost, position)
        elif measurement["kind"] == "delta":
            # A delta may be reported again: the last report wins and keeps the first one's place and time.
            cost.fields["measurement"] = cost.measurement = measurement
            cost.cache_write_split = split
            self.touch(cost)
        if measurement["kind"] == "snapshot":
            self.report(cost, Report(measurement["sequence"], position, at, measurement, body["span"], split))

    def _add_response(
        self, position: Position, body: dict[str, Any], at: str | None, native_id: str, model: str | None
    ) -> None:
        item = self._responses.get(native_id)
        if item is not None:
            if model is not None:
                item.fields["name"] = model
                self.touch(item)
            return
        fields = {"callKind": "model", "name": model or "unknown", "conversation": self._ref, **self._turn(body)}
        item = Item(
            "call", conversation_item_ref(self.identity, "response", native_id), at, {**fields, "span": body["span"]}
        )
        self._responses[native_id] = self.put(item, position)
