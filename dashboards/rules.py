"""The rule files: recorded series, and alerts, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import yaml
from sluice_contract.cluster import labels
from sluice_operator.kube.kinds import PROMETHEUS_RULE

from dashboards.alerts import ALERTS
from dashboards.recording import recording_rules

Groups = dict[str, Any]
GENERATED: Final = "# Written by `make dashboards`; edit dashboards/*.py.\n"


def groups(runbook_url_base: str = "") -> Groups:
    """The content of a rule file."""
    alerts = [alert.to_rule(runbook_url_base) for alert in ALERTS]
    return {
        "groups": [
            {"name": "sluice-recording", "rules": recording_rules()},
            {"name": "sluice-alerts", "rules": alerts},
        ]
    }


def rule_file(runbook_url_base: str) -> str:
    """For a Prometheus of one's own: `rule_files: [sluice.rules.yaml]`."""
    return GENERATED + _yaml(groups(runbook_url_base))


def prometheus_rule(runbook_url_base: str) -> str:
    """The same for the Prometheus operator."""
    metadata = {"name": "sluice", "labels": {labels.PART_OF: labels.PART_OF_SLUICE}}
    head = {"apiVersion": PROMETHEUS_RULE.api_version, "kind": PROMETHEUS_RULE.kind}
    return GENERATED + _yaml({**head, "metadata": metadata, "spec": groups(runbook_url_base)})


def kustomization(pages: Sequence[str]) -> str:
    """The rule and a ConfigMap for each page, with the label that Grafana's sidecar looks for."""
    maps = [{"name": page.removesuffix(".json"), "files": [page]} for page in pages]
    options = {
        "disableNameSuffixHash": True,
        "labels": {"grafana_dashboard": "1", labels.PART_OF: labels.PART_OF_SLUICE},
    }
    return GENERATED + _yaml(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["prometheus_rule.yaml"],
            "configMapGenerator": maps,
            "generatorOptions": options,
        }
    )


def _yaml(document: Groups) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=100)
