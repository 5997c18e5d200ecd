"""Engines of a story that are slower than their processor, or fail (`e2e/altered_engine.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e import altered_engine
from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE


def altered_template(config_map: str, **variables: float) -> dict[str, Any]:
    """The `template` of a service whose engines are altered by these variables."""
    values = [{"name": name, "value": str(value)} for name, value in variables.items()]
    return {
        "env": [{"name": "PYTHONPATH", "value": "/app:/altered"}, *values],
        "volumes": [{"name": "altered", "configMap": {"name": config_map}}],
        "volumeMounts": [{"name": "altered", "mountPath": "/altered", "readOnly": True}],
    }


def paced_template(config_map: str, step_seconds: float) -> dict[str, Any]:
    """The `template` of a service whose engines take `step_seconds` for a step."""
    return altered_template(config_map, PACED_STEP_SECONDS=step_seconds)


@contextmanager
def altered_in_config_map(kubectl: Kubectl, name: str) -> Iterator[None]:
    """Fills this ConfigMap, for the length of the block, with the files that alter engines."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"sitecustomize.py": Path(altered_engine.__file__).read_text()},
    }
    kubectl.apply(json.dumps(config_map))
    try:
        yield
    finally:
        kubectl.run("delete", "configmap", name, "-n", NAMESPACE)
