"""Node requirements of a pool's `accelerator`: resource, labels and tolerations. Warns of products
that no label spells that way.

Pure: reads the spec. Nodes themselves are read in `find`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_contract.config.accelerators import labels_near

from sluice_operator.api.pools import GPU_RESOURCE, AcceleratorSpec
from sluice_operator.kube.kinds import Manifest

NVIDIA: Final = "nvidia.com"
AMD: Final = "amd.com"
AMD_PRODUCT: Final = "amd.com/gpu.product-name"


def resource_name(accelerator: AcceleratorSpec) -> str:
    """The resource by which the nodes offer the GPUs."""
    return accelerator.resource_name or GPU_RESOURCE


def is_nvidia(accelerator: AcceleratorSpec) -> bool:
    """Whether the resource is NVIDIA's: whole GPUs or parts of them, which run CUDA."""
    return resource_name(accelerator).partition("/")[0] == NVIDIA


def product_label(accelerator: AcceleratorSpec) -> str:
    """The node label that holds the product."""
    if accelerator.product_label:
        return accelerator.product_label
    domain = resource_name(accelerator).partition("/")[0]
    return AMD_PRODUCT if domain == AMD else f"{domain}/gpu.product"


def node_selector(
    accelerator: AcceleratorSpec | None, selector: Mapping[str, str] | None
) -> dict[str, str]:
    """The labels a pool's node must have: those of the template, and the product."""
    node_labels = dict(selector or {})
    if accelerator is not None and accelerator.product:
        node_labels[product_label(accelerator)] = accelerator.product
    return node_labels


def tolerations(accelerator: AcceleratorSpec | None) -> list[Manifest]:
    """Tolerations of the taints that keep other pods off nodes with GPUs. Clusters name the taint
    after the resource or, where that is a part of a GPU, after the whole GPU."""
    if accelerator is None:
        return []
    resource = resource_name(accelerator)
    keys = dict.fromkeys((resource, f"{resource.partition('/')[0]}/gpu"))
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def unusual_spelling(accelerator: AcceleratorSpec | None) -> str | None:
    """A warning if no known node label has this product's spelling but a similar one. None if the
    spec names the label itself."""
    if accelerator is None or accelerator.product is None or accelerator.product_label:
        return None
    near = labels_near(accelerator.product)
    if not near:
        return None
    text = f"no GPU labels itself {accelerator.product} ({product_label(accelerator)})"
    return f"{text}; write one of {', '.join(near)}"
