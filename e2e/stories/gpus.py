"""GPUs that a story pretends: the node says that it has them, and so does a test's engine image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from e2e.kubectl import Kubectl

A100: Final = "NVIDIA-A100-SXM4-40GB"
GPU: Final = "nvidia.com/gpu"
LABELS: Final = {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.memory": "40960"}
GPUS_ON_NODE: Final = 4
ENV: Final = [
    {"name": "PRETENDED_PRODUCT", "value": A100},
    {"name": "PRETENDED_MEMORY_MIB", "value": "40960"},
]
"""Of engines that say they have them."""


def patch_node(kubectl: Kubectl, node: str, change: Mapping[str, Any], *words: str) -> None:
    """A merge patch; `words`: of kubectl, such as --subresource=status."""
    kubectl.run("patch", "node", node, "--type=merge", "-p", json.dumps(change), *words)
