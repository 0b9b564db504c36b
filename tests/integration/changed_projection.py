"""The program as a later release might be: another projection, and the version that says so.

Names of workflows are written in capitals, and there are no artifacts any more.
"""

import sys
from typing import Any

import projections.version

projections.version.PROJECTION_VERSION += 1  # type: ignore[misc]

from projections.aggregates import run as run_module  # noqa: E402
from projections.aggregates.artifact import Artifact  # noqa: E402
from projections.aggregates.emitter import Emitter  # noqa: E402

_project_run = run_module._project_run


def _changed_run(*arguments: Any) -> dict[str, Any]:
    record = _project_run(*arguments)
    return {**record, "workflowName": record["workflowName"].upper()}


def _no_artifact(self: Artifact) -> Emitter:
    return self._emitter


run_module._project_run = _changed_run  # type: ignore[assignment]
Artifact.emit = _no_artifact  # type: ignore[method-assign]

if __name__ == "__main__":
    from worker.cli import main

    main(sys.argv[1:])
