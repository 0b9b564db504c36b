"""The built-in price table: published API prices of the models that the reference prices, as data.

Change a price by adding a row with a later ``effectiveFrom``, and the version with every change: estimates name it, and
replaying old usage must give the old amounts. A file in the settings replaces the whole table.
"""

from typing import Any, Final

BUILT_IN_PRICES: Final[dict[str, Any]] = {
    "version": 2,
    "unit": "USD per million tokens",
    "rows": [
        {
            "modelPrefix": "claude-opus-5-5",
            "effectiveFrom": "2026-01-01",
            "input": 4,
            "cacheRead": 0.2,
            "cacheWrite5m": 5,
            "cacheWrite1h": 8,
            "output": 20,
        },
        {
            "modelPrefix": "claude-opus-5",
            "effectiveFrom": "2026-01-01",
            "input": 5,
            "cacheRead": 0.5,
            "cacheWrite5m": 6.25,
            "cacheWrite1h": 10,
            "output": 25,
        },
        {
            "modelPrefix": "claude-opus-4-8",
            "effectiveFrom": "2026-01-01",
            "input": 5,
            "cacheRead": 0.5,
            "cacheWrite5m": 6.25,
            "cacheWrite1h": 10,
            "output": 25,
        },
        {
            "modelPrefix": "claude-sonnet-5-5",
            "effectiveFrom": "2026-01-01",
            "input": 2,
            "cacheRead": 0.2,
            "cacheWrite5m": 2.5,
            "cacheWrite1h": 4,
            "output": 10,
        },
        {
            "modelPrefix": "claude-sonnet-5",
            "effectiveFrom": "2026-01-01",
            "input": 2,
            "cacheRead": 0.2,
            "cacheWrite5m": 2.5,
            "cacheWrite1h": 4,
            "output": 10,
        },
        {
            "modelPrefix": "claude-fable-5-1",
            "effectiveFrom": "2026-01-01",
            "input": 10,
            "cacheRead": 0.25,
            "cacheWrite5m": 12.5,
            "cacheWrite1h": 20,
            "output": 50,
        },
        {
            "modelPrefix": "claude-fable-5",
            "effectiveFrom": "2026-01-01",
            "input": 10,
            "cacheRead": 0.25,
            "cacheWrite5m": 12.5,
            "cacheWrite1h": 20,
            "output": 50,
        },
        {
            "modelPrefix": "claude-haiku-4-5",
            "effectiveFrom": "2026-01-01",
            "input": 1,
            "cacheRead": 0.1,
            "cacheWrite5m": 1.25,
            "cacheWrite1h": 2,
            "output": 5,
        },
        {
            "modelPrefix": "<synthetic>",
            "effectiveFrom": "2026-01-01",
            "input": 0,
            "cacheRead": 0,
            "cacheWrite5m": 0,
            "cacheWrite1h": 0,
            "output": 0,
        },
    ],
}
