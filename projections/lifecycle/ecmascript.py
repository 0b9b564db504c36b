"""How ECMAScript reads parsed JSON: absent keys, truthiness and equality decide what the reference accepts.

The ledger's records and transitions are not checked against a schema before they are reduced, so these rules are part
of its behaviour: an absent key is not null, an empty text is "no conversation" and an empty list is "a wrong one".
"""

from enum import Enum
from typing import Any, Final, Literal

from projections.lifecycle.errors import invalid
from projections.text import MAX_SAFE_INTEGER


class Undefined(Enum):
    """The type of ``UNDEFINED``."""

    UNDEFINED = "undefined"


UNDEFINED: Final[Literal[Undefined.UNDEFINED]] = Undefined.UNDEFINED
"""The value of a key that is not there; JSON itself cannot hold it."""

JsonObject = dict[str, Any]


def read(value: Any, name: str) -> Any:
    """Read ``value.name``: UNDEFINED where nothing has that name.

    Raises ``type_error`` for null and UNDEFINED, which have no names at all.
    """
    if isinstance(value, dict):
        return value.get(name, UNDEFINED)
    if is_nullish(value):
        raise invalid("type_error")
    return UNDEFINED


def is_nullish(value: Any) -> bool:
    """Say whether a value is null or not there."""
    return value is None or value is UNDEFINED


def is_truthy(value: Any) -> bool:
    """Say whether a value counts as true; every object and every list does, the empty ones too."""
    if isinstance(value, dict | list):
        return True
    return value is not UNDEFINED and bool(value)


def first_present(*values: Any) -> Any:
    """Give the first value that is neither null nor UNDEFINED, else the last one (the ``??`` operator)."""
    return next((value for value in values if not is_nullish(value)), values[-1])


def is_same(left: Any, right: Any) -> bool:
    """Compare strictly (``===``): no boolean equals a number, and two parsed objects or lists are never the same."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict | list):
        return left is right
    return bool(left == right)


def safe_integer(value: Any) -> int | None:
    """Give an integral JSON number within ±(2**53 - 1) as an int (``1.0`` is 1), else None; booleans are no numbers."""
    if type(value) is int:
        return value if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    number = int(value)
    return number if -MAX_SAFE_INTEGER <= number <= MAX_SAFE_INTEGER else None
