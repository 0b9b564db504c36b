"""Every alert fires when what it is for happens, and then alone; none does while all is well; each has its runbook."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml

from tests.deploy.promtool import play, promtool
from worker.cli import cli
from worker.metrics import COUNTERS, GAUGES, PREFIX
from worker.settings import Settings, variable_names

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "alerts.yaml"
RUNBOOK = (ROOT / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
MINUTES = 90
FIRING = 'sum by (alertname) (ALERTS{alertstate="firing"})'
ROLES = ("project", "fold", "export:analytics")


def steady(value: float) -> str:
    return f"{value}x{MINUTES}"


def growing(step: float, start: float = 0) -> str:
    return f"{start}+{step}x{MINUTES}"


def beginning(minute: int, value: float) -> str:
    """Give a series that is not there before a minute and never changes from then on."""
    return f"{f'_x{minute - 1} ' if minute else ''}{value}x{MINUTES - minute}"


def series(name: str, **labels: str) -> str:
    told = {"instance": "worker-1:6066", "job": "trace-projector", **labels}
    return f"{PREFIX}{name}{{{','.join(f'{label}={value!r}' for label, value in told.items())}}}".replace("'", '"')


def of_source(name: str, **labels: str) -> str:
    return series(name, topic="workflow-runs", partition="0", **labels)


def healthy() -> dict[str, str]:
    """Give what a worker exports that reads 140 messages a minute, of which each tenth means nothing."""
    found = {
        of_source("consumed_messages_total"): growing(140, 140),
        of_source("projected_messages_total"): growing(126, 121),
        of_source("ignored_messages_total", reason="no_change"): growing(14, 14),
        of_source("in_flight_messages"): steady(5),
        of_source("stopped_partitions"): steady(0),
        series("fenced"): steady(1),
    }
    for role in ROLES:
        found |= {
            series("assigned_partitions", role=role): steady(8),
            series("ready_partitions", role=role): steady(8),
            series("paused_partitions", role=role): steady(0),
            series("commit_standstill_seconds", role=role): steady(2),
            series("oldest_in_flight_seconds", role=role): steady(1),
            series("lag_messages", role=role, topic="t", partition="0"): " ".join(["40 90"] * (MINUTES // 2)),
            series("settled_batches_total", role=role): growing(60),
            # A broker that is restarted is no reason to wake anybody.
            series("retries_total", role=role): f"0x30 3x{MINUTES - 31}",
        }
    return found


class Case(NamedTuple):
    """What is different from a healthy worker, and the minute at which the alert fires."""

    changes: dict[str, str]
    minute: int
    without: bool = False


CASES = {
    "TraceProjectorNoWorker": Case({}, 10, without=True),
    "TraceProjectorRoleUnassigned": Case(
        {series("assigned_partitions", role="fold"): steady(0), series("ready_partitions", role="fold"): steady(0)}, 11
    ),
    "TraceProjectorPartitionStopped": Case({of_source("stopped_partitions"): f"0x10 1x{MINUTES}"}, 13),
    "TraceProjectorPartitionCorrupt": Case({of_source("corrupt_partitions", role="project"): beginning(10, 1)}, 13),
    "TraceProjectorStandstill": Case({series("commit_standstill_seconds", role="fold"): growing(60)}, 9),
    "TraceProjectorLagGrows": Case({series("lag_messages", role="fold", topic="t", partition="1"): growing(1000)}, 40),
    "TraceProjectorDeadLetters": Case(
        {
            # It is there from its first value on, and never again.
            of_source("dead_lettered_messages_total", reason="invalid_json"): beginning(30, 14),
            of_source("ignored_messages_total", reason="no_change"): f"14+14x29 420+14x{MINUTES - 30}",
        },
        33,
    ),
    "TraceProjectorFactsRefused": Case(
        {series("dead_lettered_facts_total", partition="0", reason="bad"): beginning(30, 1)}, 33
    ),
    "TraceProjectorRetries": Case({series("retries_total", role="export:analytics"): growing(2)}, 20),
    "TraceProjectorPaused": Case({series("paused_partitions", role="export:analytics"): f"0x5 8x{MINUTES}"}, 17),
    "TraceProjectorRestoring": Case({series("ready_partitions", role="fold"): steady(5)}, 16),
    "TraceProjectorOldBatch": Case({series("oldest_in_flight_seconds", role="project"): growing(60)}, 8),
    "TraceProjectorMessagesMissed": Case(
        {series("missing_offsets_total", role="fold", topic="t", partition="0"): beginning(60, 500)}, 62
    ),
    "TraceProjectorBatchSkipped": Case(
        {series("corrupt_batches_total", role="project", topic="t", partition="0"): beginning(60, 1)}, 62
    ),
    "TraceProjectorRecordsWithheld": Case(
        {series("withheld_records_total", export="analytics", reason="no_class"): f"1x60 4x{MINUTES - 61}"}, 62
    ),
    "TraceProjectorUnfenced": Case({series("fenced"): steady(0)}, 11),
    "TraceProjectorUnaccounted": Case({of_source("projected_messages_total"): growing(125, 121)}, 15),
}


def test_promtool_takes_the_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", str(ALERTS))


@pytest.mark.parametrize("minute", range(0, MINUTES, 9))
def test_no_alert_fires_while_all_is_well(minute: int, tmp_path: Path) -> None:
    play(ALERTS, healthy(), FIRING, minute, {}, tmp_path)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_when_it_should_and_alone(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    told = ({"up": steady(1)} if case.without else healthy()) | case.changes
    play(ALERTS, told, f"({FIRING}) > bool 0", case.minute, {f'{{alertname="{alert}"}}': 1}, tmp_path)


def test_every_alert_has_a_section_in_the_runbook_and_every_section_its_alert() -> None:
    assert re.findall(r"^## (\S+)$", RUNBOOK, re.MULTILINE) == list(RULES)
    for alert, rule in RULES.items():
        assert rule["annotations"]["runbook"] == f"deploy/RUNBOOK.md#{alert.lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def exported() -> set[str]:
    return {f"{PREFIX}{name}_total" for name in COUNTERS} | {f"{PREFIX}{name}" for name in GAUGES}


def test_alerts_name_metrics_that_a_worker_exports() -> None:
    for rule in RULES.values():
        named = set(re.findall(rf"{PREFIX}[a-z_]+", rule["expr"]))
        assert named
        assert named <= exported()


def test_the_runbook_names_commands_metrics_and_settings_that_there_are() -> None:
    commands = set(re.findall(r"trace-projector (?:--config \S+ )?([a-z-]+)", RUNBOOK))
    assert "doctor" in commands
    assert commands <= set(cli.list_commands(click.Context(cli)))
    settings = {name.lower() for name in variable_names(Settings, "")}
    for section, name in re.findall(r"\b(limits|kafka)\.([a-z_]+)", RUNBOOK):
        assert f"{section}__{name}" in settings, name
    for name in re.findall(r"\b([a-z_]+_total)\b", RUNBOOK):
        assert f"{PREFIX}{name}" in exported()
