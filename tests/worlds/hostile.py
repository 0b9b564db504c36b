"""Worlds in which one value of one message is not what it should be."""

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.worlds.world import SourceMessage

Path = tuple[str | int, ...]

HOSTILE: list[Any] = [
    *("\ud800x", "x\udfff", "a\x00b", "", " ", "\u2028", "\ufffd", "%FF", "a:b", "a/b", "null", "{", "[]"),
    *("2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "workflow:\ud800:s:0:0", "workflow:r%00:s:0:0"),
    *(None, True, -1, 0, 1.5, 2**53, 2**64, 1e300, 1e20, [], {}, [None], [[]], {"a": {}}),
]


def spoil(messages: list[SourceMessage], random: Random) -> list[SourceMessage]:
    """Replace one value in one message, or inside the native line that it carries; sometimes keep the good one too."""
    index = random.choice([index for index, message in enumerate(messages) if message.value is not None])
    message = messages[index]
    assert message.value is not None
    value = json.loads(message.value)
    place = random.choice(list(_places(value)))
    if place == ("line",) and isinstance(value["line"], str):
        line = json.loads(value["line"])
        value["line"] = json.dumps(_with(line, random.choice(list(_places(line))), random.choice(HOSTILE)))
    else:
        value = _with(value, place, random.choice(HOSTILE))
    spoilt = message._replace(value=json.dumps(value).encode())
    extra = [message] if random.random() < 0.3 else []
    return [*messages[:index], spoilt, *messages[index + 1 :], *extra]


def _places(value: Any, place: Path = ()) -> Iterator[Path]:
    yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], (*place, key))


def _with(value: Any, place: Path, new: Any) -> Any:
    if not place:
        return new
    changed = copy.copy(value)
    changed[place[0]] = _with(value[place[0]], place[1:], new)
    return changed
