"""Correlations: a small map of namespaced keys to texts that ``prepare`` gives and nothing changes afterwards."""

from typing import Any, Final

from projections.ids import CORRELATION_KEY_PATTERN, correlation_key
from projections.lifecycle.checks import is_nonblank, require_object
from projections.lifecycle.errors import invalid
from projections.text import utf16_length

__all__ = [
    "CORRELATIONS_MAX",
    "CORRELATION_KEY_PATTERN",
    "CORRELATION_VALUE_LENGTH_MAX",
    "RESERVED_CORRELATION_PREFIXES",
    "correlation_key",
    "validate_correlations",
]

CORRELATIONS_MAX: Final = 32
"""Keys that one execution may carry."""

CORRELATION_VALUE_LENGTH_MAX: Final = 512
"""Length of a value in UTF-16 code units."""

RESERVED_CORRELATION_PREFIXES: Final = ("broker", "agent-thread")
"""Prefixes that only their producer may write; nobody here can know who wrote a key, so nothing enforces it here."""


def validate_correlations(value: Any) -> dict[str, str]:
    """Give a copy of a correlation map, its keys in the order given.

    At most 32 keys, each ``<prefix>.<name>``; each value a text that is not blank and has at most 512 UTF-16 units.
    Raises ExecutionTransitionError (``invalid_transition``) for the first thing that is wrong: ``not_an_object``,
    ``too_many_correlations``, ``correlation_key_invalid``, ``blank`` or ``correlation_value_too_long``; its ``key`` is
    the key at fault (spec: titan 4).
    """
    correlations = require_object(value, "correlations")
    if len(correlations) > CORRELATIONS_MAX:
        raise invalid("too_many_correlations")
    for key, text in correlations.items():
        if not CORRELATION_KEY_PATTERN.fullmatch(key):
            raise invalid("correlation_key_invalid", key=key)
        if not is_nonblank(text):
            raise invalid("blank", "correlations", key)
        if utf16_length(text) > CORRELATION_VALUE_LENGTH_MAX:
            raise invalid("correlation_value_too_long", key=key)
    return dict(correlations)
