"""The documented metrics are those that a worker exports, and the dashboard asks for no other."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.promtool import promtool
from worker.metrics import COUNTERS, GAUGES, PREFIX, Metrics

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "deploy" / "METRICS.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
Row = tuple[str, str, tuple[str, ...], str]


def documented() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for name, kind, labels, meaning in re.findall(
        rf"^\| `({PREFIX}\w+)` \| (\w+) \| (.*?) \| (.*) \|$", TABLE, re.MULTILINE
    ):
        rows[name] = (name, kind, tuple(sorted(re.findall(r"`(\w+)`", labels))), meaning)
    return rows


def exported() -> dict[str, Row]:
    """Give what a scrape shows of a worker that has counted everything once."""
    metrics = Metrics()
    for counter, description in COUNTERS.items():
        labels: dict[str, Any] = dict.fromkeys(description.labels, "x")
        metrics.count(counter, **labels)
    for gauge, description in GAUGES.items():
        row = (("x",) * len(description.labels), 1.0)
        metrics.watch(gauge, lambda row=row: [row])  # type: ignore[misc]
    rows: dict[str, Row] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            rows[sample.name] = (sample.name, family.type, tuple(sorted(sample.labels)), family.documentation)
    return rows


def test_the_table_is_what_a_worker_exports() -> None:
    assert documented() == exported()
    assert len(exported()) == len(COUNTERS) + len(GAUGES)


@pytest.mark.parametrize("panel", EXPRESSIONS)
def test_an_expression_of_the_dashboard_asks_for_what_is_exported(panel: str) -> None:
    expr = EXPRESSIONS[panel]
    rows = exported()
    names = re.findall(rf"{PREFIX}\w+", expr)
    assert names
    assert set(names) <= rows.keys()
    asked = {label for labels in re.findall(r"by \(([^)]*)\)", expr) for label in re.split(r",\s*", labels)}
    assert asked <= {"instance", "job", *(label for name in names for label in rows[name][2])}
    is_counter = {name for name in names if rows[name][1] == "counter"}
    assert is_counter in (set(), set(names)), "a sum of counters and gauges means nothing"


def test_promtool_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    # What Grafana puts in, put in.
    told = [expr.replace("$__rate_interval", "5m").replace("$job", ".*") for expr in EXPRESSIONS.values()]
    rules = [{"record": f"dashboard:{number}", "expr": expr} for number, expr in enumerate(told)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yaml"))


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set(re.findall(rf"{PREFIX}\w+", " ".join(EXPRESSIONS.values())))
    assert shown == exported().keys()


def test_panels_have_an_id_each_and_do_not_lie_on_one_another() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + across, place["y"] + down) for across in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
