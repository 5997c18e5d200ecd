"""A node whose container runtime cannot mount images, so that models of images are copied.

It has no kubelet, and no pod is ever put on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from e2e.kubectl import Kubectl
from e2e.stories.gpus import patch_node

NAME: Final = "old"
RUNTIME: Final = "containerd://1.7.29"


@contextmanager
def old_node(kubectl: Kubectl) -> Iterator[None]:
    """Adds a node with an old container runtime for the length of the block. The operator learns of
    it by its watch, a moment later."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}}
    kubectl.apply(json.dumps(node | {"spec": {"unschedulable": True}}))
    try:
        status = {"nodeInfo": {"containerRuntimeVersion": RUNTIME}}
        patch_node(kubectl, NAME, {"status": status}, "--subresource=status")
        yield
    finally:
        kubectl.run("delete", "node", NAME)
