"""The rule files: recorded series, and alerts, as Prometheus reads them."""

from __future__ import annotations

from typing import Any, Final

import yaml

from dashboards.alerts import ALERTS

Groups = dict[str, Any]
GENERATED: Final = "# Written by `make dashboards`; edit dashboards/*.py.\n"


def groups() -> Groups:
    """The content of a rule file."""
    return {"groups": [{"name": "sluice", "rules": [alert.to_rule() for alert in ALERTS]}]}


def rule_file() -> str:
    """For a Prometheus of one's own: `rule_files: [sluice.rules.yaml]`."""
    return GENERATED + _yaml(groups())


def _yaml(document: Groups) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=100)
