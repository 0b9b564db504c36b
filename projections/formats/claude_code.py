"""Claude Code transcripts: one JSON object a line; responses are streamed over several lines and copied by resumes.

Rules for editing this module: ``read_line`` keeps no content; everything that needs another line is in the assembly,
which gets the lines in source order and may get them all again from the start.
"""

from typing import Any

from projections.canonical import sha256_hex
from projections.errors import ProjectionError
from projections.fields import checked_time, name_or_none, native_text_or_none, whole_number
from projections.formats.assembly import Item, Items, Position, span_of
from projections.ids import ConversationIdentity, conversation_item_ref, conversation_ref, response_claim
from projections.text import MAX_SAFE_INTEGER, storable_text
from projections.times import is_earlier, time_key
from projections.usage import CLAUDE_COUNTS, cache_write_split, claude_tokens

_COUNTS = tuple((name, f"line.message.usage.{name}") for name in CLAUDE_COUNTS)
_SOURCE = "claude.message.usage"
_SYNTHETIC = "<synthetic>"


def read_line(value: Any, line: bytes, _ordinal: int | None = None) -> dict[str, Any] | str:
    """Read one parsed line; gives a line fact's body, or the reason why the line says nothing to a trace.

    Body: ``len``, ``sha`` (the span), ``at``, ``lane``; a user line may add ``turn`` (a text line) or ``results``; an
    assistant line adds ``response`` {id, request, uuid, model, usage, split} and ``calls`` [[id, name]].
    """
    if not isinstance(value, dict):
        raise ProjectionError("not_an_object", "line")
    kind = value.get("type")
    if kind not in ("user", "assistant"):
        return "no_trace_line"
    message = value.get("message")
    if not isinstance(message, dict):
        raise ProjectionError("not_an_object", "line.message")
    found = _read_user(value, message) if kind == "user" else _read_assistant(value, message)
    if isinstance(found, str):
        return found
    at = value.get("timestamp")
    return {
        "len": len(line),
        "sha": sha256_hex(line),
        "at": None if at is None else checked_time(at, "line.timestamp"),
        "lane": _lane(value),
        **found,
    }


def _lane(value: dict[str, Any]) -> str:
    """Name the thread of turns that a line belongs to: the main one, or one subagent's."""
    agent = value.get("agentId")
    side = "side" if value.get("isSidechain") is True else ""
    return f"{side}:{storable_text(agent)}" if isinstance(agent, str) else side


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _read_user(value: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    blocks = _blocks(message)
    results = [
        [call_id, block.get("is_error") is True]
        for block in blocks
        if block.get("type") == "tool_result"
        and (call_id := native_text_or_none(block.get("tool_use_id"), "line.message.content.tool_use_id")) is not None
    ]
    if results:
        return {"results": results}
    uuid = native_text_or_none(value.get("uuid"), "line.uuid")
    is_text = isinstance(message.get("content"), str) or any(block.get("type") == "text" for block in blocks)
    # Any user line ends what was streamed before it, but only a text begins a turn.
    return {"turn": uuid} if is_text and uuid is not None else {}


def _read_assistant(value: dict[str, Any], message: dict[str, Any]) -> dict[str, Any] | str:
    model = name_or_none(message.get("model"))
    if model == _SYNTHETIC:
        return "synthetic_response"
    uuid = native_text_or_none(value.get("uuid"), "line.uuid")
    native = native_text_or_none(message.get("id"), "line.message.id") or uuid
    if native is None:
        raise ProjectionError("invalid_field", "line.message.id")
    response: dict[str, Any] = {
        "id": native,
        "request": native_text_or_none(value.get("requestId"), "line.requestId"),
        "uuid": uuid,
        "model": model,
        "usage": None,
    }
    usage = message.get("usage")
    if isinstance(usage, dict):
        _read_usage(usage, response)
    calls = [
        [call_id, name_or_none(block.get("name")) or "unknown"]
        for block in _blocks(message)
        if block.get("type") == "tool_use"
        and (call_id := native_text_or_none(block.get("id"), "line.message.content.id")) is not None
    ]
    return {"response": response, "calls": calls} if calls else {"response": response}


def _read_usage(usage: dict[str, Any], response: dict[str, Any]) -> None:
    counts = (None if usage.get(name) is None else whole_number(usage[name], where) for name, where in _COUNTS)
    tokens = claude_tokens(*counts)
    if (tokens["input"] or 0) > MAX_SAFE_INTEGER or (tokens["total"] or 0) > MAX_SAFE_INTEGER:
        raise ProjectionError("count_out_of_range", "line.message.usage")
    if set(tokens.values()) == {None}:
        return
    response["usage"] = tokens
    split = cache_write_split(usage.get("cache_creation"))
    if split is not None:
        response["split"] = split


def _input_side(tokens: dict[str, Any]) -> tuple[int | None, ...]:
    """Give the counters that tell two requests apart (the input holds the uncached part)."""
    return tokens["input"], tokens["cachedInput"], tokens["cacheWriteInput"]


class _Response:
    """One model response: the lines it was streamed on, merged."""

    __slots__ = ("call", "claim", "cost", "items", "last_source", "native_id", "withdrawn")

    def __init__(self, native_id: str, call: Item) -> None:
        self.native_id = native_id
        self.last_source = ""
        self.call = call
        self.cost: Item | None = None
        self.claim = ""
        self.items = [call]
        self.withdrawn = False

    def hold(self, item: Item) -> None:
        """Keep an item with the response: what is copied is copied together."""
        # Not the response itself, which knows the item: nobody would free two that hold each other.
        item.group = self.call
        item.withdrawn = self.withdrawn
        self.items.append(item)


class _LastLine:
    """The latest line of one message id in one lane: what tells a second response of that id from a streamed one."""

    __slots__ = ("counters", "response", "turns_seen")

    def __init__(self, response: _Response) -> None:
        self.response = response
        self.counters: tuple[int | None, ...] | None = None
        self.turns_seen = 0


class ClaudeCodeAssembly(Items):
    """Responses, tool calls and costs of one Claude Code conversation."""

    def __init__(self, identity: ConversationIdentity) -> None:
        super().__init__(identity)
        self._ref = conversation_ref(identity)
        self._turns: dict[tuple[str, str], str] = {}
        self._user_lines: dict[tuple[str, str], int] = {}
        self._by_line: dict[tuple[str, str], _Response] = {}
        self._by_request: dict[tuple[str, str], _Response] = {}
        self._of_message: dict[str, list[_Response]] = {}
        self._last: dict[tuple[str, str, str], _LastLine] = {}
        self._calls: dict[str, list[Item]] = {}
        self._result_sources: dict[str, str] = {}
        self._claimed: dict[str, list[_Response]] = {}
        self._refs: dict[str, str] = {}

    def add(self, position: Position, body: dict[str, Any]) -> None:
        """Take the next line in source order."""
        at = self.see_time(position.source_id, body["at"])
        lane = (position.source_id, body["lane"])
        if "response" in body:
            self._add_response(position, body, at, lane)
            return
        self._user_lines[lane] = self._user_lines.get(lane, 0) + 1
        if "turn" in body:
            self._turns[lane] = body["turn"]
        for call_id, is_error in body.get("results", ()):
            self._result_sources[call_id] = max(position.source_id, self._result_sources.get(call_id, ""))
            for call in self._calls.get(call_id, ())[-1:]:
                call.fields["isError"] = is_error
                self.touch(call)

    def can_follow(self, position: Position, body: dict[str, Any]) -> bool:
        """Say whether nothing that a line is about was told by a source behind its own.

        Turns and lanes belong to one source. What sources share is a response, a tool call and a call's result.
        """
        source_id = position.source_id
        ids = [call_id for call_id, _more in [*body.get("calls", ()), *body.get("results", ())]]
        responses = self._of_message.get(body["response"]["id"], ()) if "response" in body else ()
        return (
            all(response.last_source <= source_id for response in responses)
            and all(call.order[1] <= source_id for call_id in ids for call in self._calls.get(call_id, ()))
            and all(self._result_sources.get(call_id, "") <= source_id for call_id in ids)
        )

    def _add_response(self, position: Position, body: dict[str, Any], at: str | None, lane: tuple[str, str]) -> None:
        line = body["response"]
        response = self._response_of(line, lane)
        span = span_of(position, body)
        if response is None:
            response = self._open_response(position, body, at, lane, span)
        response.last_source = max(position.source_id, response.last_source)
        self._remember(line, lane, response)
        if line["usage"] is not None:
            self._set_usage(position, response, line)
        if line["model"] is not None and (line["usage"] is not None or response.cost is None):
            response.call.fields["name"] = line["model"]
            self.touch(response.call)
        for call_id, name in body.get("calls", ()):
            self._add_call(position, response, call_id, name, at, lane, span)
        self._claim(response, body["at"])

    def _response_of(self, line: dict[str, Any], lane: tuple[str, str]) -> _Response | None:
        """Find the response that a line belongs to; None when it starts another one (decisions: responses)."""
        if line["request"] is not None:
            return self._by_request.get((line["id"], line["request"]))
        again = self._by_line.get((line["id"], line["uuid"]))
        if again is not None:
            # The line itself stands in another source of the conversation too.
            return again
        last = self._last.get((*lane, line["id"]))
        if last is None:
            return next(iter(self._of_message.get(line["id"], ())), None)
        came_back = last.turns_seen != self._user_lines.get(lane, 0)
        if came_back and line["usage"] is not None and last.counters not in (None, _input_side(line["usage"])):
            return None
        return last.response

    def _open_response(
        self, position: Position, body: dict[str, Any], at: str | None, lane: tuple[str, str], span: dict[str, Any]
    ) -> _Response:
        line = body["response"]
        earlier = self._of_message.setdefault(line["id"], [])
        native_id = line["id"] if not earlier else f"{line['id']}#{len(earlier) + 1}"
        fields = {"callKind": "model", "name": line["model"] or "unknown", "conversation": self._ref}
        turn = self._turn_of(lane)
        if turn is not None:
            fields["turn"] = turn
        call = Item("call", conversation_item_ref(self.identity, "response", native_id), at, {**fields, "span": span})
        response = _Response(native_id, call)
        self.put(call, position)
        earlier.append(response)
        if line["request"] is not None:
            self._by_request[(line["id"], line["request"])] = response
        evidence = line["request"] if line["request"] is not None else f"line:{line['uuid']}"
        response.claim = response_claim(self.identity, line["id"], evidence)
        return response

    def _turn_of(self, lane: tuple[str, str]) -> str | None:
        turn = self._turns.get(lane)
        if turn is None:
            return None
        found = self._refs.get(turn)
        if found is None:
            found = self._refs[turn] = conversation_item_ref(self.identity, "turn", turn)
        return found

    def _remember(self, line: dict[str, Any], lane: tuple[str, str], response: _Response) -> None:
        """Keep what tells the next line of this id apart; a line without usage says nothing about that."""
        if line["request"] is None and line["uuid"] is not None:
            self._by_line[(line["id"], line["uuid"])] = response
        last = self._last.get((*lane, line["id"]))
        if last is None:
            last = self._last[(*lane, line["id"])] = _LastLine(response)
            last.turns_seen = self._user_lines.get(lane, 0)
        last.response = response
        if line["usage"] is not None:
            last.turns_seen = self._user_lines.get(lane, 0)
            last.counters = _input_side(line["usage"])

    def _set_usage(self, position: Position, response: _Response, line: dict[str, Any]) -> None:
        """Take the usage of a line whole: the last line of a response that reports any is the one that counts."""
        measurement = {
            "kind": "delta",
            "responseId": storable_text(response.native_id),
            "model": line["model"],
            "tokens": line["usage"],
            "cost": None,
            "source": _SOURCE,
        }
        if response.cost is None:
            fields = {"conversation": self._ref, "measurement": measurement, "span": response.call.fields["span"]}
            cost = Item("cost", f"cost:{response.call.native_id}", response.call.at, fields)
            response.hold(cost)
            # A cost has the time of its response, whose lines may stand in several sources.
            response.cost = self.put(cost, position, timed_by=response.call.order[1])
        response.cost.fields["measurement"] = response.cost.measurement = measurement
        response.cost.cache_write_split = line.get("split")
        self.touch(response.cost)

    def _add_call(
        self,
        position: Position,
        response: _Response,
        call_id: str,
        name: str,
        at: str | None,
        lane: tuple[str, str],
        span: dict[str, Any],
    ) -> None:
        """Add a tool call, unless the same response already has it (it was streamed again)."""
        same_id = self._calls.setdefault(call_id, [])
        if any(call.group is response.call for call in same_id):
            return
        native_id = call_id if not same_id else f"{response.native_id}#{call_id}"
        fields: dict[str, Any] = {"callKind": "tool", "name": name, "namespace": None, "conversation": self._ref}
        turn = self._turn_of(lane)
        if turn is not None:
            fields["turn"] = turn
        item = Item(
            "call",
            conversation_item_ref(self.identity, "call", native_id),
            at,
            {**fields, "isError": None, "span": span},
        )
        response.hold(item)
        same_id.append(self.put(item, position))

    def _claim(self, response: _Response, at: str | None) -> None:
        """Claim the response for this conversation with the earliest time that one of its lines has."""
        self._claimed.setdefault(response.claim, [])
        if response not in self._claimed[response.claim]:
            self._claimed[response.claim].append(response)
            self.unanswered.add(response.claim)
        held = self.claims.get(response.claim)
        if held is None or (at is not None and (held[0] is None or is_earlier(at, held[0]))):
            self.claims[response.claim] = [at]
            self.new_claims.add(response.claim)
            self.unanswered.add(response.claim)

    def answer(self, meeting: str, claims: dict[str, Any]) -> None:
        """Keep or give up a response that several conversations hold: the earliest line time wins, then the ref."""
        winner = min(claims, key=lambda ref: (time_key(claims[ref][0]), ref))
        for response in self._claimed.get(meeting, ()):
            response.withdrawn = winner != self._ref
            self.withdraw(response.items, withdrawn=response.withdrawn)
