"""`trace-projector doctor`: what is wrong with an installation, and how to mend it."""

import logging
from typing import Any

import click

from worker.cli import EXIT_FAILED, Invocation
from worker.commands.broker import echo_findings, echo_json, on_broker


@click.command(
    "doctor",
    epilog="""\b
Examples:
  trace-projector --config trace-projector.toml doctor
  trace-projector --config trace-projector.toml doctor --strict --json
  trace-projector doctor --watch 60
""",
)
@click.option(
    "--watch",
    "watch_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=3600),
    default=5.0,
    show_default=True,
    help="How long a group that lags is watched before it counts as stuck.",
)
@click.option("--strict", is_flag=True, help="Warnings make exit code 1, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def doctor_command(invocation: Invocation, *, watch_s: float, strict: bool, as_json: bool) -> int:
    """Find what is wrong with this installation, and say how to mend it.

    Looks at keys, files, directories, ports, brokers, topics and their policies, consumer groups, the generation,
    sinks, clocks and versions. Nothing is written, created or moved; no secret is printed.

    Exit code 1 means that there is an error (with --strict: anything at all), 2 that the settings cannot be read.
    """
    # A driver without a handler for its log would print its complaints beside ours.
    logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())
    from worker.doctor.examination import examine  # noqa: PLC0415  (late, like every heavy import of a command)

    diagnosis = on_broker(examine(invocation.settings(), watch_s))
    if as_json:
        echo_json(_json(diagnosis))
    else:
        _echo(diagnosis)
    return EXIT_FAILED if diagnosis.errors or (strict and diagnosis.findings) else 0


def _json(diagnosis: Any) -> dict[str, Any]:
    return {
        "ok": not diagnosis.findings,
        "findings": [finding._asdict() for finding in diagnosis.findings],
        "lookedAt": diagnosis.looked_at,
        "lag": diagnosis.lags,
        "versions": diagnosis.versions,
    }


def _echo(diagnosis: Any) -> None:
    for name, version in diagnosis.versions.items():
        click.echo(f"{name} {version}")
    for role, lag in diagnosis.lags.items():
        click.echo(f"lag of {role}: {lag:,}")
    click.echo()
    echo_findings(diagnosis.findings)
    warnings = len(diagnosis.findings) - diagnosis.errors
    counts = f"errors: {diagnosis.errors}, warnings: {warnings}" if diagnosis.findings else "nothing is wrong"
    click.echo(f"{counts} (looked at {', '.join(diagnosis.looked_at)})")
