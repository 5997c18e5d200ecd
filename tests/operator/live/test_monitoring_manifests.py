"""What `kubectl apply -k manifests/monitoring` would apply."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
import yaml
from sluice_operator.kube.kinds import Manifest

from dashboards.alerts import ALERTS
from dashboards.pages import DASHBOARDS
from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.plane import ROOT

pytestmark = pytest.mark.apiserver


def test_it_brings_the_pages_the_alerts_and_the_operators_metrics(plane: ApiServer) -> None:
    text = plane.kubectl("kustomize", str(ROOT / "manifests" / "monitoring"))
    found: dict[str, list[Manifest]] = defaultdict(list)
    for manifest in yaml.safe_load_all(text):
        assert manifest["metadata"]["namespace"] == "monitoring"
        found[manifest["kind"]].append(manifest)
    assert found.keys() == {"ConfigMap", "PrometheusRule", "PodMonitor"}
    pages = [page for each in found["ConfigMap"] for page in each["data"].values()]
    assert {json.loads(page)["uid"] for page in pages} == {page.uid for page in DASHBOARDS}
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in found["ConfigMap"]} == {"1"}
    rules = [
        rule for group in found["PrometheusRule"][0]["spec"]["groups"] for rule in group["rules"]
    ]
    assert {rule["alert"] for rule in rules if "alert" in rule} == {each.name for each in ALERTS}
