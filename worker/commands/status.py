"""`trace-projector status`: what every role has consumed, what became of it, and what it has still to do."""

from typing import Any

import click

from worker.cli import EXIT_FAILED, Invocation
from worker.commands.broker import echo_json, echo_table, on_broker


@click.command(
    "status",
    epilog="""\b
Examples:
  trace-projector --config trace-projector.toml status
  trace-projector status --worker http://10.0.0.7:6066 --worker http://10.0.0.8:6066 --json
""",
)
@click.option(
    "--worker",
    "urls",
    metavar="URL",
    multiple=True,
    help="Ask this worker's pages, too; may be given again.  [default: http://WEB_HOST:WEB_PORT of the settings]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def status_command(invocation: Invocation, *, urls: tuple[str, ...], as_json: bool) -> int:
    """Show per role and partition what was consumed, what became of it, and the lag.

    Offsets, lags and members come from the broker, whether or not a worker runs. What became of messages comes from the
    workers' own metrics and counts from their start: consumed = projected + ignored + dead-lettered + in flight.

    Exit code 1 means that a partition stands still because of too many dead letters, that a worker named with --worker
    does not answer, or that the equation does not hold.
    """
    from worker.status import read_status  # noqa: PLC0415  (late, like every heavy import of a command)

    settings = invocation.settings()
    host = f"[{settings.web_host}]" if ":" in settings.web_host else settings.web_host
    status = on_broker(read_status(settings, urls or (f"http://{host}:{settings.web_port}",)))
    if as_json:
        echo_json(_json(status))
    else:
        _echo(status)
    accounts = [one.accounts for one in status.partitions if one.accounts is not None]
    is_wrong = any(one.is_stopped or one.unaccounted for one in accounts)
    return EXIT_FAILED if is_wrong or (urls and any(worker.problem for worker in status.workers)) else 0


def _json(status: Any) -> dict[str, Any]:
    return {
        "groups": [group._asdict() for group in status.groups],
        "partitions": [_partition_json(one) for one in status.partitions],
        "workers": [{"url": worker.url, "problem": worker.problem} for worker in status.workers],
        "missingTopics": status.missing_topics,
    }


def _partition_json(one: Any) -> dict[str, Any]:
    document = {
        "role": one.role,
        "topic": one.place.topic,
        "partition": one.place.partition,
        "committed": one.committed,
        "end": one.end,
        "lag": one.lag,
    }
    accounts = one.accounts
    if accounts is not None:
        document |= {
            "consumed": accounts.consumed,
            "projected": accounts.projected,
            "ignored": dict(accounts.ignored),
            "deadLettered": dict(accounts.dead_lettered),
            "inFlight": accounts.in_flight,
            "unaccounted": accounts.unaccounted,
            "stopped": accounts.is_stopped,
        }
    return document


def _echo(status: Any) -> None:
    header = (
        *("role", "topic", "partition", "committed", "end", "lag"),
        *("consumed", "projected", "ignored", "dead", "in flight", ""),
    )
    rows = [_row(one) for one in status.partitions]
    if rows:
        echo_table(header, rows, numbers=header[2:-1])
        click.echo()
    echo_table(("role", "group", "members"), status.groups, numbers=("members",))
    for title, name in (("ignored", "ignored"), ("dead-lettered", "dead_lettered")):
        reasons = _reasons(status, name)
        if reasons:
            click.echo(f"{title}: {', '.join(f'{reason} {count:,}' for reason, count in sorted(reasons.items()))}")
    for worker in status.workers:
        if worker.problem:
            click.echo(f"no counts: {worker.url} {worker.problem}", err=True)
    for topic in status.missing_topics:
        click.echo(f"there is no topic {topic} yet", err=True)


def _row(one: Any) -> tuple[object, ...]:
    accounts = one.accounts
    counts: tuple[object, ...] = ("-",) * 5
    remark = ""
    if accounts is not None:
        dead, ignored = sum(accounts.dead_lettered.values()), sum(accounts.ignored.values())
        counts = (accounts.consumed, accounts.projected, ignored, dead, accounts.in_flight)
        remark = "stopped: too many dead letters" if accounts.is_stopped else ""
        remark = f"unaccounted: {accounts.unaccounted}" if accounts.unaccounted else remark
    committed = "-" if one.committed is None else one.committed
    return one.role, one.place.topic, one.place.partition, committed, one.end, one.lag, *counts, remark


def _reasons(status: Any, name: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in status.partitions:
        if one.accounts is not None:
            for reason, count in getattr(one.accounts, name).items():
                total[reason] = total.get(reason, 0) + count
    return total
