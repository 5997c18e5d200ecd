"""Which accelerator a pool will land on, and how sure that is.

From the spec and, where they may be read, from the labels of the nodes the pool can land on. What
the engines themselves report is not compared yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.accelerators import Accelerator

from sluice_operator.api.pools import AcceleratorSpec, PoolSpec
from sluice_operator.conditions import Check
from sluice_operator.observed import Manifest

GPU_RESOURCE: Final = "nvidia.com/gpu"
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""Memory of one device in MiB."""


@dataclass(frozen=True)
class AcceleratorFinding:
    """What a pool's engines will run on."""

    accelerator: Accelerator
    verified: Check

    @property
    def text(self) -> str:
        """For a person: `CPU` or `2 x NVIDIA-A100-SXM4-40GB`."""
        if self.accelerator.is_cpu:
            return "CPU"
        return f"{self.accelerator.count} x {self.accelerator.product or GPU_RESOURCE}"


@dataclass(frozen=True)
class _GpuNode:
    name: str
    product: str | None
    memory_mib: int | None
    gpus: int


def gpu_count(accelerator: AcceleratorSpec | None) -> int:
    """GPUs of one engine; 0 on CPUs."""
    return 0 if accelerator is None else accelerator.count or 1


def node_selector(
    accelerator: AcceleratorSpec | None, wanted: Mapping[str, str] | None
) -> dict[str, str]:
    """The labels a pool's node must have: those of the template, and the product."""
    product = accelerator.product if accelerator else None
    return dict(wanted or {}) | ({PRODUCT_LABEL: product} if product else {})


def find_accelerator(pool: PoolSpec, nodes: tuple[Manifest, ...] | None) -> AcceleratorFinding:
    """The accelerator of a pool's engines, and whether the nodes bear it out."""
    spec, count = pool.accelerator, gpu_count(pool.accelerator)
    if spec is None:
        check = Check("True", "NotRequired", "The engines run on CPUs.")
        return AcceleratorFinding(Accelerator(), check)
    given = Accelerator(product=spec.product, count=count)
    if nodes is None:
        text = "Nodes may not be read, so the accelerator is what the spec says."
        return AcceleratorFinding(given, Check("Unknown", "NodesNotReadable", text))
    selector = node_selector(spec, pool.template.node_selector if pool.template else None)
    fitting = [node for node in map(_gpu_node, _selected(nodes, selector)) if node.gpus >= count]
    if not fitting:
        return AcceleratorFinding(given, Check("False", "NoSuchNode", _no_node(nodes, pool)))
    return _from_nodes(given, fitting)


def _from_nodes(given: Accelerator, fitting: list[_GpuNode]) -> AcceleratorFinding:
    smallest = min(fitting, key=lambda node: (node.memory_mib or 0, node.product or ""))
    found = Accelerator(product=smallest.product, memory_mib=smallest.memory_mib, count=given.count)
    names = ", ".join(sorted(node.name for node in fitting)[:5])
    if smallest.product is None:
        text = f"The nodes {names} have GPUs but no label {PRODUCT_LABEL}."
        return AcceleratorFinding(found, Check("Unknown", "ProductUnknown", text))
    products = sorted({node.product or "unknown" for node in fitting})
    if len(products) > 1:
        text = f"The pool can land on {', '.join(products)}; sized for {smallest.product}."
        return AcceleratorFinding(found, Check("True", "SmallestOfSeveral", text))
    text = f"{smallest.product} by the labels of {names}."
    return AcceleratorFinding(found, Check("True", "NodeLabels", text))


def _selected(nodes: tuple[Manifest, ...], selector: Mapping[str, str]) -> list[Manifest]:
    return [node for node in nodes if selector.items() <= _labels(node).items()]


def _labels(node: Manifest) -> dict[str, Any]:
    return node["metadata"].get("labels") or {}


def _gpu_node(node: Manifest) -> _GpuNode:
    found = _labels(node)
    memory = str(found.get(MEMORY_LABEL, ""))
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    gpus = str(allocatable.get(GPU_RESOURCE, "0"))
    return _GpuNode(
        name=node["metadata"]["name"],
        product=found.get(PRODUCT_LABEL),
        memory_mib=int(memory) if memory.isdigit() else None,
        gpus=int(gpus) if gpus.isdigit() else 0,
    )


def _no_node(nodes: tuple[Manifest, ...], pool: PoolSpec) -> str:
    assert pool.accelerator is not None
    wanted = pool.accelerator.product or GPU_RESOURCE
    there = sorted({n.product for n in map(_gpu_node, nodes) if n.product and n.gpus})
    count = gpu_count(pool.accelerator)
    return f"No node has {count} x {wanted}; there are: {', '.join(there) or 'no GPUs'}."
