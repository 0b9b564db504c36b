"""Where the rows are: ``pytest tests/conformance --vectors DIR`` (default: fixtures/conformance)."""

from pathlib import Path

import pytest

DEFAULT_VECTORS = Path(__file__).parents[2] / "fixtures" / "conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", type=Path, default=None, help="directory with titan/, harn/, … rows")


@pytest.fixture(scope="session")
def vectors(request: pytest.FixtureRequest) -> Path:
    # When the whole suite runs, this file is loaded too late for its option to be on the command line.
    given: Path | None = request.config.getoption("vectors", None)
    return DEFAULT_VECTORS if given is None else given
