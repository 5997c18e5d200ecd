"""Reads the GPUs of a node from its labels: NVIDIA's and AMD's own, else those of the clouds.

Pure, one table. A part of a GPU (a MIG instance, or one that is shared) is named as such, with its
own memory. Sources: NVIDIA k8s-device-plugin, `docs/gpu-feature-discovery/README.md` and "Shared
Access to GPUs"; ROCm k8s-device-plugin, `cmd/k8s-node-labeller/README.md`; GKE "Run GPUs in
Standard node pools"; Karpenter "Well-known labels" for AWS; EKS "Target AI/ML workloads to
specific nodes with labels".

Nodes without such labels are known by their machine type (`MACHINES`). Sources are the providers'
own lists, read in 2026: AWS "Accelerated computing instances" (EC2), Azure "GPU accelerated sizes",
Google Cloud "GPU machine types". Names are those of the accelerator table where it has the product.
An unknown type is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_operator.accelerators.node_requirements import AMD, AMD_PRODUCT
from sluice_operator.kube.kinds import Manifest

NVIDIA: Final = "nvidia.com"
PRODUCT: Final = "nvidia.com/gpu.product"
GKE: Final = "cloud.google.com/gke-accelerator"
GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
REPLICAS: Final = "nvidia.com/gpu.replicas"
KARPENTER: Final = "karpenter.k8s.aws/instance-gpu-"
EKS: Final = "eks.amazonaws.com/instance-gpu-"
INSTANCE_TYPES: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
Labels = Mapping[str, Any]
SHARED: Final = "-SHARED"
_PROFILE: Final = re.compile(r"\b\d+g\.(?P<gib>\d+)gb", re.IGNORECASE)
"""MIG profile, e.g. 3g.20gb: its compute slices and its memory in GiB."""
_SIZE: Final = re.compile(r"^(?P<number>\d+)(?P<unit>[MG]?)i?B?$", re.IGNORECASE)


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of one node, of the resource that was asked for."""

    node: str
    count: int
    product: str | None
    memory_mib: int | None
    """Memory of one GPU in MiB; of a shared GPU, the memory of one share."""
    label: str | None
    """Label that names the product."""


@dataclass(frozen=True)
class Reading:
    """What one label says."""

    product: str
    memory_mib: int | None = None


@dataclass(frozen=True)
class LabelSource:
    """A node label that names the product of the resources of one `domain`."""

    label: str
    read: Callable[[Labels, str], Reading]
    """Reads all labels of the node, given this label's value."""
    domain: str = ""
    """Domain of the resources, `nvidia.com` for example; empty: any."""


def gpus_of(node: Manifest, resource: str) -> NodeGpus:
    """GPUs of a node that `resource` counts, as far as its labels describe them."""
    node_labels = labels_of(node)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    count, domain = str(allocatable.get(resource, "0")), resource.partition("/")[0]
    sources = [s for s in (*_of_mig(resource), *SOURCES) if s.domain in ("", domain)]
    readings = ((source.label, source.read(node_labels, str(node_labels[source.label])))
            for source in sources if node_labels.get(source.label))  # fmt: skip
    usable = [(label, reading) for label, reading in readings if reading.product]
    label, reading = usable[0] if usable else (None, None)
    return NodeGpus(
        node=node["metadata"]["name"],
        count=int(count) if count.isdigit() else 0,
        product=reading.product if reading else None,
        memory_mib=reading.memory_mib
        if reading
        else _amount(node_labels.get("nvidia.com/gpu.memory")),
        label=label,
    )


def labels_of(node: Manifest) -> Labels:
    """A node's labels."""
    return node["metadata"].get("labels") or {}


def _discovered(labels: Labels, product: str) -> Reading:
    """Reads labels of NVIDIA's GPU feature discovery. Each client of a shared GPU has its share of
    the memory."""
    memory, clients = _amount(labels.get("nvidia.com/gpu.memory")), _amount(labels.get(REPLICAS))
    return _shared(Reading(product, memory), clients or 1)


def _gke(labels: Labels, product: str) -> Reading:
    if profile := labels.get(GKE_PARTITION):
        return Reading(f"{product}-MIG-{profile}", _of_profile(str(profile)))
    return _shared(Reading(product), _amount(labels.get(GKE_CLIENTS)) or 1)


def _amd(labels: Labels, product: str) -> Reading:
    return Reading(product, _amount(labels.get("amd.com/gpu.vram")))


def _aws(prefix: str) -> Callable[[Labels, str], Reading]:
    return lambda labels, product: Reading(product, _amount(labels.get(f"{prefix}memory")))


def _machine(_: Labels, instance_type: str) -> Reading:
    return Reading(product_of_type(instance_type) or "")


SOURCES: Final = (
    LabelSource(PRODUCT, _discovered, NVIDIA),
    LabelSource(AMD_PRODUCT, _amd, AMD),
    LabelSource("amd.com/gpu.family", _amd, AMD),
    LabelSource(GKE, _gke, NVIDIA),
    LabelSource(f"{KARPENTER}name", _aws(KARPENTER)),
    LabelSource(f"{EKS}name", _aws(EKS)),
    *(LabelSource(label, _machine) for label in INSTANCE_TYPES),
)
"""Labels that name a product, the most exact first."""


def _of_mig(resource: str) -> tuple[LabelSource, ...]:
    """Labels for MIG instances. A node may have instances of several sizes: each size is a resource
    with labels of its own."""
    domain, _, name = resource.partition("/")
    if domain != NVIDIA or not name.startswith("mig-"):
        return ()

    def own(labels: Labels, product: str) -> Reading:
        return Reading(product, _amount(labels.get(f"{resource}.memory")) or _of_profile(name))

    def whole(_: Labels, product: str) -> Reading:
        return Reading(f"{product}-MIG-{name.removeprefix('mig-')}", _of_profile(name))

    return (LabelSource(f"{resource}.product", own), LabelSource(PRODUCT, whole))


def _shared(reading: Reading, clients: int) -> Reading:
    if clients < 2 and not reading.product.endswith(SHARED):
        return reading
    name = reading.product.removesuffix(SHARED) + SHARED
    return Reading(name, reading.memory_mib and max(1, reading.memory_mib // max(1, clients)))


def _of_profile(profile: str) -> int | None:
    match = _PROFILE.search(profile)
    return int(match["gib"]) * 1024 if match else None


def _amount(value: object) -> int | None:
    """The number in a label: a count, or memory in MiB. AMD's labeller writes 192G where NVIDIA's
    writes MiB."""
    match = _SIZE.match(str(value or ""))
    if match is None or (number := int(match["number"])) == 0:
        return None
    return number * 1024 if match["unit"].upper() == "G" else number


def _patterns(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), product) for pattern, product in rows)


MACHINES: Final = _patterns(
    # AWS
    (r"^p3dn\.", "V100-32GB"),
    (r"^p3\.", "V100-16GB"),
    (r"^p4d\.", "A100-40GB"),
    (r"^p4de\.", "A100-80GB"),
    (r"^p5\.", "H100"),
    (r"^p5en?\.|^p5e\.", "H200"),
    (r"^p6-b200\.", "B200"),
    (r"^p6e-gb200\.", "GB200"),
    (r"^g4dn\.", "T4"),
    (r"^g5\.", "A10G"),
    (r"^gr?6\.", "L4"),
    (r"^g6e\.", "L40S"),
    # Azure
    (r"^Standard_NC\d+as_T4_v3$", "T4"),
    (r"^Standard_NC\d+s_v3$", "V100-16GB"),
    (r"^Standard_NC\d+ads_A100_v4$", "A100-80GB"),
    (r"^Standard_ND\d+asr(_A100)?_v4$", "A100-40GB"),
    (r"^Standard_ND\d+amsr_A100_v4$", "A100-80GB"),
    (r"^Standard_N[CD]\d+\w*_H100_v5$", "H100"),
    (r"^Standard_ND\d+\w*_H200_v5$", "H200"),
    (r"^Standard_ND\d+\w*_GB200_v6$", "GB200"),
    (r"^Standard_ND\d+\w*_MI300X_v5$", "MI300X"),
    # Google Cloud
    (r"^a2-highgpu-|^a2-megagpu-", "A100-40GB"),
    (r"^a2-ultragpu-", "A100-80GB"),
    (r"^a3-(high|mega|edge)gpu-", "H100"),
    (r"^a3-ultragpu-", "H200"),
    (r"^a4-highgpu-", "B200"),
    (r"^a4x-highgpu-", "GB200"),
    (r"^g2-standard-", "L4"),
    (r"^g4-standard-", "RTX-PRO-6000"),
)


def product_of_type(instance_type: str) -> str | None:
    """The GPU of a machine type; None where the table has none."""
    return next((product for pattern, product in MACHINES if pattern.search(instance_type)), None)
