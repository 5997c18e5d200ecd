"""Engines of a story whose steps take as long as on an accelerator (`e2e/paced_engine.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e import paced_engine
from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE


def paced_template(config_map: str, step_seconds: float) -> dict[str, Any]:
    """The `template` of a service whose engines take `step_seconds` for a step."""
    return {
        "env": [
            {"name": "PYTHONPATH", "value": "/app:/paced"},
            {"name": "PACED_STEP_SECONDS", "value": str(step_seconds)},
        ],
        "volumes": [{"name": "paced", "configMap": {"name": config_map}}],
        "volumeMounts": [{"name": "paced", "mountPath": "/paced", "readOnly": True}],
    }


@contextmanager
def pace_in_config_map(kubectl: Kubectl, name: str) -> Iterator[None]:
    """Fills this ConfigMap, for the length of the block, with the files that pace engines."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"sitecustomize.py": Path(paced_engine.__file__).read_text()},
    }
    kubectl.apply(json.dumps(config_map))
    try:
        yield
    finally:
        kubectl.run("delete", "configmap", name, "-n", NAMESPACE)
