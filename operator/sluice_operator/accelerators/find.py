"""Which accelerator a pool's engines will get, and how certain that is.

The spec says it, and so do the nodes that the pool can land on by node selector and taints, if the
operator may read nodes. Affinities are not read. Reports of running engines take precedence over
this finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.config.accelerators import Accelerator, product_row, same_product
from sluice_contract.config.sizing import Source, sizes_of

from sluice_operator.accelerators.labels import NodeGpus, gpus_of, labels_of
from sluice_operator.accelerators.node_requirements import (
    node_selector,
    product_label,
    resource_name,
    tolerations,
)
from sluice_operator.api.conditions import Check
from sluice_operator.api.pools import GPU_RESOURCE, AcceleratorSpec, Pool, gpu_count
from sluice_operator.kube.kinds import Manifest

PASSING: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that are about a passing state of a node, not about its purpose: the node will
offer its GPUs again."""
MAX_NAMES: Final = 5
NO_SUCH_NODE: Final = "NoSuchNode"
DEVICES_OF_CLAIM: Final = "DevicesOfClaim"


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
        """Display text: `CPU` or `2 x NVIDIA-A100-SXM4-40GB`."""
        if self.accelerator.is_cpu:
            return "CPU"
        return f"{self.accelerator.count} x {self.accelerator.product or self.resource}"


def find_accelerator(pool: Pool, nodes: tuple[Manifest, ...] | None) -> AcceleratorFinding:
    """The accelerator of a pool's engines, and whether the nodes confirm it."""
    spec = pool.accelerator
    if spec is None:
        check = Check("True", "NotRequired", "The engines run on CPUs.")
        return AcceleratorFinding(Accelerator(), check)
    if spec.claim_template is not None:
        return _claim_finding(pool, spec, spec.claim_template)
    accelerator, check = _find(pool, spec, nodes)
    return AcceleratorFinding(accelerator, check, resource_name(spec), spec.product)


def has_accelerator(node: Manifest, pool: Pool) -> bool:
    """Whether an engine of the pool could get its accelerators on the node, were it empty. Always
    False for devices of a claim, because nodes do not report these."""
    if pool.accelerator is None or pool.accelerator.claim_template is not None:
        return False
    if not _fits(node, pool, pool.accelerator):
        return False
    return gpus_of(node, resource_name(pool.accelerator)).count > 0


def _claim_finding(pool: Pool, spec: AcceleratorSpec, template: str) -> AcceleratorFinding:
    """The finding on devices that the scheduler allocates: only engines report which these are."""
    accelerator = Accelerator(product=spec.product, count=gpu_count(spec))
    text = f"Which devices ResourceClaimTemplate {template} gives is not read"
    check = Check("Unknown", DEVICES_OF_CLAIM, f"{text}{_sized(pool, accelerator)}.")
    return AcceleratorFinding(accelerator, check, f"device of {template}", spec.product)


def _find(
    pool: Pool, spec: AcceleratorSpec, nodes: tuple[Manifest, ...] | None
) -> tuple[Accelerator, Check]:
    count, resource = gpu_count(spec), resource_name(spec)
    requested = Accelerator(product=spec.product, count=count)
    if nodes is None:
        text = "Nodes may not be read, so the accelerator is what the spec says."
        return requested, Check("Unknown", "NodesNotReadable", text)
    candidates = [gpus_of(node, resource) for node in nodes if _fits(node, pool, spec)]
    fitting = [gpus for gpus in candidates if gpus.count >= count]
    if not fitting:
        return requested, Check("False", NO_SUCH_NODE, _no_node(nodes, pool, spec))
    smallest = min(fitting, key=_by_size)
    accelerator = _with(requested, smallest)
    return accelerator, _accelerator_check(pool, accelerator, smallest, fitting)


def _with(requested: Accelerator, gpus: NodeGpus) -> Accelerator:
    """`requested`, with the product and memory that a node's labels report."""
    product = gpus.product or requested.product
    return Accelerator(product=product, memory_mib=gpus.memory_mib, count=requested.count)


def _accelerator_check(
    pool: Pool, accelerator: Accelerator, smallest: NodeGpus, fitting: list[NodeGpus]
) -> Check:
    names = _names(gpus.node for gpus in fitting)
    if smallest.product is None:
        text = f"The nodes {names} have GPUs, and no label that tells which"
        return Check("Unknown", "ProductUnknown", f"{text}{_sized(pool, accelerator)}.")
    products = sorted({gpus.product or "unknown" for gpus in fitting})
    if len(products) > 1:
        text = f"The pool can land on {', '.join(products)}; sized for {smallest.product}"
        return Check("True", "SmallestOfSeveral", f"{text}{_sized(pool, accelerator)}.")
    source = sizes_of(accelerator)[1]
    text = f"{smallest.product} by label {smallest.label} of {names}"
    if source is Source.GENERAL:
        return Check("Unknown", "ProductUnknown", f"{text}{_sized(pool, accelerator)}.")
    reason = "NodeLabels" if source is Source.PRODUCT else "SizedByMemory"
    return Check("True", reason, f"{text}{_sized(pool, accelerator)}.")


def _sized(pool: Pool, accelerator: Accelerator) -> str:
    """Text about the origin of the sizes; empty where they follow from the product."""
    _, source, origin = sizes_of(accelerator)
    if source is Source.PRODUCT:
        return ""
    if source is Source.MEMORY:
        return f", sized by its memory ({origin})"
    engine = f"{pool.accelerator_section}.engine"
    return f", of unknown memory: sized for 40 GiB; set {engine}.chunkSize and memoryPercent"


def _by_size(gpus: NodeGpus) -> tuple[float, str]:
    """Sort key of GPUs in GiB: the smallest first. GPUs of unknown memory come before all others,
    so that nothing is sized too large."""
    if gpus.memory_mib is not None:
        return gpus.memory_mib / 1024, gpus.product or ""
    row = product_row(gpus.product) if gpus.product else None
    return (row.memory_gib if row else 0), gpus.product or ""


def _fits(node: Manifest, pool: Pool, spec: AcceleratorSpec) -> bool:
    """Whether a pod of the pool may run on the node, were it empty."""
    template = pool.template
    selector = node_selector(spec, template.node_selector if template else None)
    if not selector.items() <= labels_of(node).items():
        return False
    pod_tolerations = template.to_json_dict().get("tolerations") if template else None
    accepted = [*(pod_tolerations or ()), *tolerations(spec)]
    taints = (node.get("spec") or {}).get("taints") or ()
    return all(_is_passing(taint) or _accepts(accepted, taint) for taint in taints)


def _is_passing(taint: dict[str, Any]) -> bool:
    return taint.get("effect") == "PreferNoSchedule" or taint["key"].startswith(PASSING)


def _accepts(accepted: Iterable[dict[str, Any]], taint: dict[str, Any]) -> bool:
    """Whether a toleration accepts `taint`, by the scheduler's rules for key, operator, value and
    effect, each of which may be left out."""
    for toleration in accepted:
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        if toleration.get("operator") == "Exists" and toleration.get("key") in (
            None,
            "",
            taint["key"],
        ):
            return True
        if toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get(
            "value", ""
        ):
            return True
    return False


def _no_node(nodes: tuple[Manifest, ...], pool: Pool, spec: AcceleratorSpec) -> str:
    resource = resource_name(spec)
    node_gpus = [gpus for gpus in (gpus_of(node, resource) for node in nodes) if gpus.count]
    text = f"No node has {gpu_count(spec)} x {spec.product or resource}"
    elsewhere = [gpus for gpus in node_gpus if gpus.product and gpus.product == spec.product]
    if elsewhere and (label := elsewhere[0].label) not in (None, product_label(spec)):
        nodes_text = f"{_names(gpus.node for gpus in elsewhere)} have it as label {label}"
        label_path = f"{pool.accelerator_section}.accelerator.productLabel"
        return f"{text} as label {product_label(spec)}; {nodes_text}: set {label_path}"
    there = sorted({gpus.product or "unknown GPUs" for gpus in node_gpus})
    near = [product for product in there if spec.product and same_product(product, spec.product)]
    if near and spec.product not in there:
        return f"{text} that the pool may land on; products near it: {', '.join(near)}."
    if not there and not any(_offers(node, resource.partition("/")[0]) for node in nodes):
        on_cpus = f"leave out {pool.accelerator_section}.accelerator to serve on CPUs"
        return f"No node offers {resource}: install its device plugin, or {on_cpus}."
    if not there:
        return f"{text}, nor another GPU of {resource}."
    return f"{text} that the pool may land on; nodes have {', '.join(there)}."


def _offers(node: Manifest, domain: str) -> bool:
    """Whether the node has a device of any resource of this domain, such as a MIG instance."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return any(name.startswith(f"{domain}/") and str(n) != "0" for name, n in allocatable.items())


def _names(nodes: Iterable[str]) -> str:
    names = sorted(set(nodes))
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
