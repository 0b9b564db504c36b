"""The commands of an operator, run as a user runs them, with what they print."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker.cli import run


class Commands:
    """Runs commands as a user does and keeps what they printed."""

    def __init__(self, config: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._config = config
        self._capfd = capfd

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        code = run(["--config", str(self._config), *arguments])
        told = self._capfd.readouterr()
        return code, told.out, told.err

    def json(self, *arguments: str) -> Any:
        _code, out, err = self.run(*arguments, "--json")
        assert out, err
        return json.loads(out)
