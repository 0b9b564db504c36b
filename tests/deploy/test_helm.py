"""The Helm chart: what it renders is committed, fits Kubernetes' schemas, and runs the worker as it wants to be run.

Without a Helm on PATH (`.ci/run` builds one) the committed rendering is tested alone. With it:

    helm template trace-projector deploy/helm --kube-version 1.30.0 --namespace traces \
        --values deploy/helm/example-values.yaml > deploy/kubernetes/trace-projector.yaml
"""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from worker.settings import Settings, load_settings, variable_names
from worker.topics import export_group, fold_group, project_group
from worker.web.pages import open_pages

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm"
EXAMPLE = CHART / "example-values.yaml"
RENDERED = (ROOT / "deploy" / "kubernetes" / "trace-projector.yaml").read_text(encoding="utf-8")
# Kinds that operators bring along, of which Kubernetes has no schema.
FOREIGN = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
# What a release without pages has not.
PAGES = {"Service of pages", "Ingress of pages"}
SPARE_S = 5.0

Document = dict[str, Any]


def by_kind(text: str) -> dict[str, Document]:
    """Give the objects by kind, and what is there for the pages as ``KIND of pages``."""
    return {
        document["kind"] + (" of pages" if document["metadata"]["name"].endswith("-web") else ""): document
        for document in yaml.safe_load_all(text)
        if document
    }


DOCUMENTS = by_kind(RENDERED)
POD: Document = DOCUMENTS["StatefulSet"]["spec"]["template"]["spec"]
[WORKER] = POD["containers"]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("helm")
    if program is None:
        pytest.skip("no helm on PATH")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def template(*arguments: str) -> subprocess.CompletedProcess[str]:
    return helm("template", "trace-projector", str(CHART), "--kube-version", "1.30.0", *arguments)


# ----------------------------------------------------------------------------------------------------------- with helm


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    for values in (CHART / "values.yaml", EXAMPLE):
        done = helm("lint", "--strict", str(CHART), "--values", str(values))
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_committed_rendering_is_current() -> None:
    assert template("--namespace", "traces", "--values", str(EXAMPLE)).stdout == RENDERED


def test_without_keda_the_number_of_workers_is_fixed() -> None:
    documents = by_kind(template().stdout)
    assert documents.keys() == DOCUMENTS.keys() - FOREIGN - PAGES
    assert documents["StatefulSet"]["spec"]["replicas"] == 2


def test_a_grace_that_is_too_short_to_drain_is_refused() -> None:
    done = template("--set", "terminationGraceSeconds=15")
    assert done.returncode != 0
    assert "more than 5 s above shutdownDrainSeconds" in done.stderr


def test_pages_without_a_password_are_refused() -> None:
    done = template("--set", "web.export=analytics")
    assert done.returncode != 0
    assert "name a secret with their password in web.tokenSecret" in done.stderr


def test_pages_need_no_way_in_from_outside() -> None:
    documents = by_kind(template("--set", "web.export=analytics,web.tokenSecret=t").stdout)
    assert documents.keys() & PAGES == {"Service of pages"}


def test_roles_are_handed_to_the_worker() -> None:
    done = template("--set", "roles={project,fold}")
    [container] = by_kind(done.stdout)["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["worker", "--role=project", "--role=fold"]


# ------------------------------------------------------------------------------------------------------ what it renders


@pytest.mark.parametrize("version", ["1.25", "1.30", "1.37"])
@pytest.mark.parametrize("kind", sorted(DOCUMENTS.keys() - FOREIGN))
def test_an_object_fits_kubernetes_own_schema(kind: str, version: str) -> None:
    kubernetes_validate.validate(DOCUMENTS[kind], version, strict=True)


def test_a_worker_may_write_its_volumes_and_nothing_else() -> None:
    assert WORKER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["securityContext"]["runAsNonRoot"]
    written = {mount["mountPath"] for mount in WORKER["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"/var/lib/trace-projector", "/tmp"}
    mounted = {mount["name"] for mount in WORKER["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in DOCUMENTS["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert mounted == {volume["name"] for volume in POD["volumes"]} | claimed


def test_a_pod_has_the_time_that_a_worker_needs_to_drain() -> None:
    variables = {variable["name"]: variable.get("value") for variable in WORKER["env"]}
    drain_s = float(variables["TRACE_PROJECTOR_LIMITS__SHUTDOWN_DRAIN_S"])
    assert drain_s == Settings().limits.shutdown_drain_s
    assert POD["terminationGracePeriodSeconds"] > drain_s + SPARE_S


def test_probes_ask_the_pages_that_there_are() -> None:
    probes = {name: WORKER[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    [port] = WORKER["ports"]
    assert {probe["port"] for probe in probes.values()} == {port["name"]}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Give the settings of a worker in such a pod: the file, and its variables over it."""
    names = [variable["name"] for variable in WORKER["env"] if variable["name"] != "POD_NAME"]
    assert set(names) <= {*variable_names(), "TRACE_PROJECTOR_CONFIG"}
    # A service's variables begin with its name, which may be ours, and unknown settings are refused.
    assert POD["enableServiceLinks"] is False
    text = DOCUMENTS["ConfigMap"]["data"]["trace-projector.toml"]
    (tmp_path / "trace-projector.toml").write_text(text, encoding="utf-8")
    for name in [name for name in os.environ if name.startswith("TRACE_PROJECTOR_")]:
        monkeypatch.delenv(name)
    for variable in WORKER["env"]:
        if variable["name"] not in ("POD_NAME", "TRACE_PROJECTOR_CONFIG"):
            value = variable.get("value", "from a secret").replace("$(POD_NAME)", "trace-projector-0")
            monkeypatch.setenv(variable["name"], value)
    monkeypatch.setenv("TRACE_PROJECTOR_KAFKA__SASL_PASSWORD", "from a secret")
    assert "password" not in tomllib.loads(text)["kafka"]
    return load_settings(tmp_path / "trace-projector.toml")


def test_its_variables_and_its_settings_are_settings(settings: Settings) -> None:
    assert [export.name for export in settings.exports] == ["analytics"]
    assert settings.web_host == "0.0.0.0"  # noqa: S104 - the pod's own


def test_its_pages_show_a_redacted_export_to_those_who_have_the_password(settings: Settings) -> None:
    assert open_pages(settings) is not None
    assert settings.web_export == "analytics"
    assert settings.export_named("analytics").redact
    [token] = [variable for variable in WORKER["env"] if variable["name"] == "TRACE_PROJECTOR_WEB_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "traces-web", "key": "TRACE_PROJECTOR_WEB_TOKEN"}}


def test_the_way_to_the_pages_leads_to_workers_ready_or_not() -> None:
    service, ingress = DOCUMENTS["Service of pages"], DOCUMENTS["Ingress of pages"]
    assert service["spec"]["publishNotReadyAddresses"], "pages are wanted most while a worker stands still"
    [port] = service["spec"]["ports"]
    assert port["targetPort"] == WORKER["ports"][0]["name"]
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    assert ingress["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "traces-tls"}]


def test_it_scales_by_the_lag_of_groups_that_there_are() -> None:
    settings = Settings(app_id="traces")
    spec = DOCUMENTS["ScaledObject"]["spec"]
    groups = [trigger["metadata"]["consumerGroup"] for trigger in spec["triggers"]]
    assert groups == [project_group(settings), fold_group(settings), export_group(settings, "analytics")]
    assert spec["scaleTargetRef"]["name"] == DOCUMENTS["StatefulSet"]["metadata"]["name"]
    assert "replicas" not in DOCUMENTS["StatefulSet"]["spec"], "two that set it would fight"


def test_its_alerts_are_the_tested_ones() -> None:
    alerts = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text(encoding="utf-8"))
    assert DOCUMENTS["PrometheusRule"]["spec"] == alerts


def test_whatever_selects_pods_selects_these() -> None:
    labels = DOCUMENTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        DOCUMENTS["Service"]["spec"]["selector"],
        DOCUMENTS["Service of pages"]["spec"]["selector"],
        *(DOCUMENTS[kind]["spec"]["selector"]["matchLabels"] for kind in ("StatefulSet", "PodDisruptionBudget")),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    [endpoint] = DOCUMENTS["ServiceMonitor"]["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["port"]) == ("/metrics", DOCUMENTS["Service"]["spec"]["ports"][0]["name"])
    scraped = DOCUMENTS["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
    services = {name: DOCUMENTS[name]["metadata"]["labels"] for name in ("Service", "Service of pages")}
    assert [name for name, labels in services.items() if scraped <= labels.items()] == ["Service"], "each worker once"
