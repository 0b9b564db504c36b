"""Options of the core's tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write the goldens of fixtures/runs from what the projection gives now (a person reads the difference)",
    )
