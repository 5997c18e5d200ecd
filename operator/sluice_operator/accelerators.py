"""Which accelerator a pool will get, and how certain that is.

From the spec and, where they may be read, from the labels of the nodes the pool can land on. What
the engines themselves report is not compared yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sluice_contract.accelerators import Accelerator

from sluice_operator.api.conditions import Check
from sluice_operator.api.pools import GPU_RESOURCE, AcceleratorSpec, PoolSpec
from sluice_operator.kube.kinds import Manifest

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""Memory of one device in MiB."""


@dataclass(frozen=True)
class AcceleratorFinding:
    """The accelerator of a pool's engines."""

    accelerator: Accelerator
    verified: Check
    resource: str = GPU_RESOURCE
    named: str | None = None
    """The product that the spec names."""

    @property
    def text(self) -> str:
        """For display: `CPU` or `2 x NVIDIA-A100-SXM4-40GB`."""
        if self.accelerator.is_cpu:
            return "CPU"
        return f"{self.accelerator.count} x {self.accelerator.product or self.resource}"


@dataclass(frozen=True)
class _GpuNode:
    name: str
    product: str | None
    memory_mib: int | None
    gpus: int


def gpu_count(accelerator: AcceleratorSpec | None) -> int:
    """GPUs of one engine; 0 on CPUs."""
    return 0 if accelerator is None else accelerator.count or 1


def resource_name(accelerator: AcceleratorSpec) -> str:
    """The resource that the GPUs are."""
    return accelerator.resource_name or GPU_RESOURCE


def node_selector(
    accelerator: AcceleratorSpec | None, wanted: Mapping[str, str] | None
) -> dict[str, str]:
    """The labels a pool's node must have: those of the template, and the product."""
    product = accelerator.product if accelerator else None
    return dict(wanted or {}) | ({PRODUCT_LABEL: product} if product else {})


def find_accelerator(pool: PoolSpec, nodes: tuple[Manifest, ...] | None) -> AcceleratorFinding:
    """The accelerator of a pool's engines, and whether the nodes confirm it."""
    spec = pool.accelerator
    if spec is None:
        check = Check("True", "NotRequired", "The engines run on CPUs.")
        return AcceleratorFinding(Accelerator(), check)
    found = _find(pool, spec, nodes)
    return replace(found, resource=resource_name(spec), named=spec.product)


def _find(
    pool: PoolSpec, spec: AcceleratorSpec, nodes: tuple[Manifest, ...] | None
) -> AcceleratorFinding:
    count, resource = gpu_count(spec), resource_name(spec)
    given = Accelerator(product=spec.product, count=count)
    if nodes is None:
        text = "Nodes may not be read, so the accelerator is what the spec says."
        return AcceleratorFinding(given, Check("Unknown", "NodesNotReadable", text))
    selector = node_selector(spec, pool.template.node_selector if pool.template else None)
    found = (_gpu_node(node, resource) for node in _selected(nodes, selector))
    fitting = [node for node in found if node.gpus >= count]
    if not fitting:
        return AcceleratorFinding(given, Check("False", "NoSuchNode", _no_node(nodes, pool)))
    return _from_nodes(given, fitting)


def has_accelerator(node: Manifest, pool: PoolSpec) -> bool:
    """Whether an engine of the pool could get its accelerators on the node, were it empty."""
    if pool.accelerator is None:
        return False
    selector = node_selector(
        pool.accelerator, pool.template.node_selector if pool.template else None
    )
    return (
        bool(_selected((node,), selector))
        and _gpu_node(node, resource_name(pool.accelerator)).gpus > 0
    )


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


def _gpu_node(node: Manifest, resource: str) -> _GpuNode:
    found = _labels(node)
    memory = str(found.get(MEMORY_LABEL, ""))
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    gpus = str(allocatable.get(resource, "0"))
    return _GpuNode(
        name=node["metadata"]["name"],
        product=found.get(PRODUCT_LABEL),
        memory_mib=int(memory) if memory.isdigit() else None,
        gpus=int(gpus) if gpus.isdigit() else 0,
    )


def _no_node(nodes: tuple[Manifest, ...], pool: PoolSpec) -> str:
    assert pool.accelerator is not None
    resource = resource_name(pool.accelerator)
    wanted = pool.accelerator.product or resource
    found = (_gpu_node(node, resource) for node in nodes)
    there = sorted({node.product for node in found if node.product and node.gpus})
    count = gpu_count(pool.accelerator)
    return f"No node has {count} x {wanted}; there are: {', '.join(there) or 'no GPUs'}."
