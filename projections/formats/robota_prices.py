"""The price table that Robota's own estimates come from: a contract of its reports, not this project's prices.

A price is always an estimate, an exact model id included; a model that is not in the table has no cost.
"""

import re
from typing import Any, Final, NamedTuple

from projections.formats.robota_numbers import Number

_TOKENS_PER_PRICE: Final = 1_000_000


class ModelPrice(NamedTuple):
    """What a model costs, in US dollars per million tokens; ``exact`` when its very id is in the table."""

    input_usd: float
    output_usd: float
    exact: bool


_BY_MODEL: Final[dict[str, tuple[float, float]]] = {
    "claude-opus-4-7": (15, 75),
    "claude-opus-4-5": (15, 75),
    "claude-sonnet-4-6": (3, 15),
    "claude-sonnet-4-5": (3, 15),
    "claude-haiku-4-5": (0.8, 4),
    "claude-3-5-sonnet-20241022": (3, 15),
    "claude-3-5-haiku-20241022": (0.8, 4),
    "claude-3-opus-20240229": (15, 75),
    "gpt-4o": (2.5, 10),
    "gpt-4o-mini": (0.15, 0.6),
    "o1": (15, 60),
    "o1-mini": (3, 12),
    "o3": (10, 40),
    "o3-mini": (1.1, 4.4),
    "deepseek-chat": (0.14, 0.28),
    "deepseek-reasoner": (0.55, 2.19),
    "gemini-2.0-flash": (0.1, 0.4),
    "gemini-2.0-flash-thinking": (0.35, 3.5),
    "gemini-1.5-pro": (1.25, 5),
    "gemini-1.5-flash": (0.075, 0.3),
}

# In order: the first family whose name occurs anywhere in the model id, whatever its case.
_BY_FAMILY: Final = tuple(
    (re.compile(re.escape(family), re.ASCII | re.IGNORECASE), prices)
    for family, prices in (
        ("claude-opus", (15.0, 75.0)),
        ("claude-sonnet", (3.0, 15.0)),
        ("claude-haiku", (0.8, 4.0)),
        ("gpt-4o-mini", (0.15, 0.6)),
        ("gpt-4", (2.5, 10.0)),
        ("deepseek", (0.14, 0.28)),
        ("gemini-2", (0.1, 0.4)),
        ("gemini-1", (1.25, 5.0)),
    )
)


def find_price(model_id: str) -> ModelPrice | None:
    """Find a model's price: its exact id, else the first family that its id names; None when neither is known."""
    exact = _BY_MODEL.get(model_id)
    if exact is not None:
        return ModelPrice(*exact, exact=True)
    for pattern, prices in _BY_FAMILY:
        if pattern.search(model_id):
            return ModelPrice(*prices, exact=False)
    return None


def price_tokens(price: ModelPrice, prompt_tokens: Number, completion_tokens: Number) -> float:
    """Give the cost of a call in US dollars, in doubles and in the reference's order of operations."""
    input_cost_usd = prompt_tokens / _TOKENS_PER_PRICE * price.input_usd
    return input_cost_usd + completion_tokens / _TOKENS_PER_PRICE * price.output_usd


def model_cost(model_id: str, prompt_tokens: Number, completion_tokens: Number) -> dict[str, Any]:
    """Estimate what a call cost: ``{costStatus: "estimated", costUsd}``, or ``{costStatus: "unknown"}`` unpriced."""
    price = find_price(model_id)
    if price is None:
        return {"costStatus": "unknown"}
    return {"costStatus": "estimated", "costUsd": price_tokens(price, prompt_tokens, completion_tokens)}
