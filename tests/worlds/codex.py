"""Codex conversations of a world: a parent, forks that repeat its history, and a fork of a fork."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.worlds.world import World

Json = dict[str, Any]


def add_codex_family(world: "World") -> None:
    """Add up to four related Codex conversations; a world may know a fork and not its parent."""
    if world.chance(0.4):
        return
    parent_id = world.next_id("thread")
    history, total = counted_turns(world, 0, world.random.randrange(1, 5))
    members: list[tuple[str, str | None, list[Json]]] = [(parent_id, None, history)]
    for _fork in range(world.random.randrange(0, 3)):
        base_id, _parent, base = world.random.choice(members)
        cut = world.random.randrange(1, len(base) + 1)
        own, _total = counted_turns(world, total + world.random.randrange(500), world.random.randrange(0, 3))
        members.append((world.next_id("fork"), base_id, _moved(base[:cut], world) + own))
    for index, (native, parent, lines) in enumerate(members):
        if index == 0 and len(members) > 1 and world.chance(0.3):
            continue
        publish_rollout(world, native, parent, lines)


def _counter(total: int) -> Json:
    return {
        "input_tokens": total,
        "cached_input_tokens": total // 2,
        "output_tokens": total // 10,
        "total_tokens": total,
    }


def counted_turns(world: "World", total: int, count: int) -> tuple[list[Json], int]:
    lines: list[Json] = []
    for _turn in range(count):
        turn = world.next_id("turn")
        lines.append(
            {"type": "turn_context", "payload": {"turn_id": turn, "model": world.random.choice(["gpt-5", "gpt-6"])}}
        )
        call = world.random.choice(["call-a", "call-b", None])
        item: Json = {"type": "function_call", "name": "shell", "arguments": "ZZSECRETZZ"}
        lines.append({"type": "response_item", "payload": item if call is None else {**item, "call_id": call}})
        if call is not None and world.chance(0.7):
            output = {
                "type": "function_call_output",
                "call_id": call,
                "output": json.dumps({"metadata": {"exit_code": 1}}),
            }
            lines.append({"type": "response_item", "payload": output})
        for _row in range(world.random.randrange(1, 3)):
            step = world.random.choice([0, 10, 25])
            total += step
            info = {"total_token_usage": _counter(total), "last_token_usage": _counter(step)}
            payload: Json = {"type": "token_count", "info": info if world.chance(0.9) else None}
            lines.append({"type": "event_msg", "payload": payload})
    return lines, total


def _moved(lines: list[Json], world: "World") -> list[Json]:
    """Copy history with other times, as a fork does."""
    return [{**line, "timestamp": f"2026-10-01T20:00:{world.random.randrange(60):02d}.000Z"} for line in lines]


def publish_rollout(
    world: "World", native: str, parent: str | None, lines: list[Json], *, line_bytes: int | None = None
) -> None:
    """Publish a rollout and perhaps its binding; with ``line_bytes`` each line begins that far behind the last."""
    conversation = {"harness": "codex", "namespace": "host a", "nativeId": native}
    source_id = f"codex-rollout:host%20a:{native}:rollout"
    meta: Json = {"type": "session_meta", "payload": {"id": native}}
    if parent is not None:
        meta["payload"]["forked_from_id"] = parent
    offset = 0
    for index, line in enumerate([meta, *lines]):
        stamped = {"timestamp": f"2026-10-01T12:{index // 60:02d}:{index % 60:02d}.000Z", **line}
        text = json.dumps(stamped)
        value = {
            "source": {**conversation, "sourceId": source_id, "format": "codex"},
            "byteOffset": offset,
            "line": text,
        }
        world.publish("transcripts", source_id, value)
        offset += len(text.encode()) + 1 if line_bytes is None else line_bytes
    if world.chance(0.6):
        request = world.attempt_id(f"run-{world.seed}-0", "codex step", 0, 0)
        world.add_ledger(world.next_id("exec"), request, conversation, 40_000, "succeeded")
