"""The order in which Robota's reports list equal totals: ICU's, for the locale ``en-US``, as ECMAScript compares text.

The order comes from ICU itself, through PyICU (the extra ``locale``), so that it is the reference's for every text.
"""

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any

from projections.errors import ProjectionError

_LOCALE = "en_US"


def locale_sort(keys: Iterable[str]) -> list[str]:
    """Sort texts in locale order; texts that compare equal keep their order.

    Raises ``locale_order_unavailable`` when PyICU is not installed.
    """
    return sorted(keys, key=locale_key)


@lru_cache(maxsize=16_384)
def locale_key(text: str) -> bytes:
    """Give the collation key of a text; raises ``locale_order_unavailable`` when PyICU is not installed."""
    return bytes(_collator().getSortKey(text))


def utf16_key(text: str) -> bytes:
    """Give a key that orders texts by UTF-16 code unit, as ECMAScript's plain ``sort()`` does."""
    return text.encode("utf-16-be", "surrogatepass")


@lru_cache(maxsize=1)
def _collator() -> Any:
    try:
        icu = import_module("icu")
    except ImportError as error:
        raise ProjectionError("locale_order_unavailable") from error
    return icu.Collator.createInstance(icu.Locale(_LOCALE))
