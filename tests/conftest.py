"""What every test has: the Kafka broker of tests/brokers, an order, and as many examples as tests/sizes.py says."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.sizes import SIZE, examples

pytest_plugins = ["tests.brokers.plugin"]

# In CI the same examples every time; a slow machine is no failure anywhere.
settings.register_profile(
    SIZE,
    max_examples=examples(100),
    derandomize=bool(os.environ.get("CI")),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(SIZE)


@pytest.fixture(autouse=True)
def own_log_configuration() -> Iterator[None]:
    """Let no test hear its logs as the one before it wanted them: commands that run in this process configure them."""
    kept = structlog.get_config()
    yield
    structlog.configure(**kept)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that mostly wait for a broker among those that compute, so that no core waits with them."""
    # By whole files: what the tests of one share is made once.
    files: dict[tuple[bool, Path], list[pytest.Item]] = {}
    for item in items:
        waits = item.get_closest_marker("integration") is not None
        files.setdefault((waits, item.path), []).append(item)
    placed = chain.from_iterable(
        _along([tests for (waits, _), tests in files.items() if waits == wanted]) for wanted in (True, False)
    )
    items[:] = chain.from_iterable(tests for _, tests in sorted(placed, key=lambda one: one[0]))


def _along(files: Sequence[list[pytest.Item]]) -> Iterator[tuple[float, list[pytest.Item]]]:
    """Give each file its place on the way from 0 to 1."""
    count = sum(map(len, files))
    before = 0
    for tests in files:
        yield before / count, tests
        before += len(tests)
