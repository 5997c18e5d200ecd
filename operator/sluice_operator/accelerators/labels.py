"""What a node's labels say of its GPUs: NVIDIA's and AMD's own, else those of the clouds.

Pure, one table. A part of a GPU (a MIG instance, or one that is shared) is named as such, with its
own memory. Sources: NVIDIA k8s-device-plugin, `docs/gpu-feature-discovery/README.md` and "Shared
Access to GPUs"; ROCm k8s-device-plugin, `cmd/k8s-node-labeller/README.md`; GKE "Run GPUs in
Standard node pools"; Karpenter "Well-known labels" for AWS; EKS "Target AI/ML workloads to
specific nodes with labels".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_operator.accelerators.instance_types import LABELS as INSTANCE_TYPE
from sluice_operator.accelerators.instance_types import product_of_type
from sluice_operator.accelerators.wanted import AMD, AMD_PRODUCT
from sluice_operator.kube.kinds import Manifest

Labels = Mapping[str, Any]

NVIDIA: Final = "nvidia.com"
PRODUCT: Final = "nvidia.com/gpu.product"
GKE: Final = "cloud.google.com/gke-accelerator"
GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
REPLICAS: Final = "nvidia.com/gpu.replicas"
KARPENTER: Final = "karpenter.k8s.aws/instance-gpu-"
EKS: Final = "eks.amazonaws.com/instance-gpu-"

SHARED: Final = "-SHARED"
_PROFILE: Final = re.compile(r"\b\d+g\.(?P<gib>\d+)gb", re.IGNORECASE)
"""Of a MIG instance: its slices and its memory in GiB, e.g. 3g.20gb."""
_SIZE: Final = re.compile(r"^(?P<number>\d+)(?P<unit>[MG]?)i?B?$", re.IGNORECASE)


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of one node, of the resource that was asked for."""

    node: str
    count: int
    product: str | None
    memory_mib: int | None
    """Of one of them; of a shared one, its part."""
    label: str | None
    """The label that tells the product."""


@dataclass(frozen=True)
class Told:
    """What one label says."""

    product: str
    memory_mib: int | None = None


@dataclass(frozen=True)
class Source:
    """A label that names a product, of the resources of `domain`."""

    label: str
    read: Callable[[Labels, str], Told]
    """From all labels of the node, and the value of this one."""
    domain: str = ""
    """Empty: any."""


def gpus_of(node: Manifest, resource: str) -> NodeGpus:
    """What a node has of a resource, as far as its labels tell."""
    found = labels_of(node)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    count, domain = str(allocatable.get(resource, "0")), resource.partition("/")[0]
    sources = [s for s in (*_of_mig(resource), *SOURCES) if s.domain in ("", domain)]
    told = ((source.label, source.read(found, str(found[source.label])))
            for source in sources if found.get(source.label))  # fmt: skip
    known = [(label, said) for label, said in told if said.product]
    label, said = known[0] if known else (None, None)
    return NodeGpus(
        node=node["metadata"]["name"],
        count=int(count) if count.isdigit() else 0,
        product=said.product if said else None,
        memory_mib=said.memory_mib if said else _amount(found.get("nvidia.com/gpu.memory")),
        label=label,
    )


def labels_of(node: Manifest) -> Labels:
    """A node's labels."""
    return node["metadata"].get("labels") or {}


def _discovered(labels: Labels, product: str) -> Told:
    """NVIDIA's GPU feature discovery. Clients of a shared GPU share its memory."""
    memory, clients = _amount(labels.get("nvidia.com/gpu.memory")), _amount(labels.get(REPLICAS))
    return _shared(Told(product, memory), clients or 1)


def _gke(labels: Labels, product: str) -> Told:
    if profile := labels.get(GKE_PARTITION):
        return Told(f"{product}-MIG-{profile}", _of_profile(str(profile)))
    return _shared(Told(product), _amount(labels.get(GKE_CLIENTS)) or 1)


def _amd(labels: Labels, product: str) -> Told:
    return Told(product, _amount(labels.get("amd.com/gpu.vram")))


def _aws(prefix: str) -> Callable[[Labels, str], Told]:
    return lambda labels, product: Told(product, _amount(labels.get(f"{prefix}memory")))


def _machine(_: Labels, instance_type: str) -> Told:
    return Told(product_of_type(instance_type) or "")


SOURCES: Final = (
    Source(PRODUCT, _discovered, NVIDIA),
    Source(AMD_PRODUCT, _amd, AMD),
    Source("amd.com/gpu.family", _amd, AMD),
    Source(GKE, _gke, NVIDIA),
    Source(f"{KARPENTER}name", _aws(KARPENTER)),
    Source(f"{EKS}name", _aws(EKS)),
    *(Source(label, _machine) for label in INSTANCE_TYPE),
)
"""The most exact first."""


def _of_mig(resource: str) -> tuple[Source, ...]:
    """MIG instances of several sizes on a node: each size is a resource with labels of its own."""
    domain, _, name = resource.partition("/")
    if domain != NVIDIA or not name.startswith("mig-"):
        return ()

    def own(labels: Labels, product: str) -> Told:
        return Told(product, _amount(labels.get(f"{resource}.memory")) or _of_profile(name))

    def whole(_: Labels, product: str) -> Told:
        return Told(f"{product}-MIG-{name.removeprefix('mig-')}", _of_profile(name))

    return (Source(f"{resource}.product", own), Source(PRODUCT, whole))


def _shared(told: Told, clients: int) -> Told:
    if clients < 2 and not told.product.endswith(SHARED):
        return told
    name = told.product.removesuffix(SHARED) + SHARED
    return Told(name, told.memory_mib and max(1, told.memory_mib // max(1, clients)))


def _of_profile(profile: str) -> int | None:
    found = _PROFILE.search(profile)
    return int(found["gib"]) * 1024 if found else None


def _amount(value: object) -> int | None:
    """MiB, or a count; AMD's labeller writes 192G where NVIDIA's writes MiB."""
    found = _SIZE.match(str(value or ""))
    if found is None or (number := int(found["number"])) == 0:
        return None
    return number * 1024 if found["unit"].upper() == "G" else number
