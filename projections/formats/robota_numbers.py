"""Numbers as Robota counts them: every JSON number is an ECMAScript double."""

from typing import Any, TypeGuard

Number = int | float

SAFE_INTEGER_MAX = 2**53 - 1
"""The greatest integer up to which doubles are exact (ECMAScript's MAX_SAFE_INTEGER)."""

_DOUBLE_MAX = 1.7976931348623157e308


def is_number(value: Any) -> TypeGuard[Number]:
    """Say whether a JSON value is a number; a boolean is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_metric(value: Any) -> TypeGuard[Number]:
    """Say whether a JSON value is a finite number of at least 0; fractions count."""
    return is_number(value) and 0 <= value <= _DOUBLE_MAX


def is_safe_count(value: Any) -> TypeGuard[Number]:
    """Say whether a JSON value is a whole number from 0 to 2^53-1; ``1.0`` is the integer 1."""
    return is_number(value) and 0 <= value <= SAFE_INTEGER_MAX and value == int(value)


def plain(value: Number) -> Number:
    """Give the double that ECMAScript holds for a number, as an int where that says the same."""
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER_MAX else float(value)
    return int(value) if abs(value) <= SAFE_INTEGER_MAX and value == int(value) else value


def add(left: Number, right: Number) -> Number:
    """Add two numbers as doubles, so that a sum from left to right has the reference's last digit."""
    if isinstance(left, int) and isinstance(right, int) and abs(left + right) <= SAFE_INTEGER_MAX:
        return left + right
    return plain(float(left) + float(right))
