"""Nodes with GPUs as their makers' documentation shows them: labels, and what they offer.

Sources, by the name of the node: gfd-*: NVIDIA k8s-device-plugin, `docs/gpu-feature-discovery/
README.md` ("Generated Labels", MIG strategies) and "Shared Access to GPUs" of its README; amd-*:
ROCm k8s-device-plugin, `cmd/k8s-node-labeller`, AMD "GPU Management" (aim-engine); gke-*: Google
Cloud "Run GPUs in GKE Standard node pools", "Share GPUs", "Run multi-instance GPUs"; karpenter-*:
Karpenter for AWS, "Scheduling: Well-Known Labels"; eks-*: AWS "Target AI/ML workloads to specific
nodes with labels"; the rest: machine types of AWS, Azure and Google Cloud.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluice_operator.kube.kinds import Manifest

GPU: Final = "nvidia.com/gpu"
AMD: Final = "amd.com/gpu"
TYPE: Final = "node.kubernetes.io/instance-type"


class Recorded(NamedTuple):
    """A node, the resource that is asked for, and what should be found."""

    labels: dict[str, str]
    product: str | None
    memory_mib: int | None
    chunk_size: int
    origin: str
    """What the sizes follow from."""
    resource: str = GPU
    count: int = 8  # type: ignore[assignment]  # the field hides tuple.count, which nothing calls


def _karpenter(name: str, memory: int, instance_type: str) -> dict[str, str]:
    prefix = "karpenter.k8s.aws/instance-gpu-"
    values = {"name": name, "memory": str(memory), "manufacturer": "nvidia", "count": "8"}
    return {TYPE: instance_type} | {f"{prefix}{key}": value for key, value in values.items()}


def _gfd(product: str, memory: int, **more: str) -> dict[str, str]:
    found = {f"nvidia.com/{key.replace('_', '.')}": value for key, value in more.items()}
    return {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)} | found


NODES: Final[dict[str, Recorded]] = {
    "gfd-a100": Recorded(
        _gfd("A100-SXM4-40GB", 39_538), "A100-SXM4-40GB", 39_538, 4096, "A100-40GB TP1"
    ),
    "gfd-h100-on-aws": Recorded(
        _gfd("NVIDIA-H100-80GB-HBM3", 81_559) | _karpenter("h100", 81_920, "p5.48xlarge"),
        "NVIDIA-H100-80GB-HBM3", 81_559, 8192, "H100 TP1",
    ),
    "gfd-unknown-product": Recorded(
        _gfd("NVIDIA-Brand-New", 98_304), "NVIDIA-Brand-New", 98_304, 8192, "96 GiB TP1"
    ),
    "gfd-mig-single": Recorded(
        _gfd("A100-SXM4-40GB-MIG-1g.5gb", 5120, mig_strategy="single"),
        "A100-SXM4-40GB-MIG-1g.5gb", 5120, 2048, "5 GiB TP1", count=56,
    ),
    "gfd-mig-mixed": Recorded(
        _gfd("A100-SXM4-40GB", 40_536, mig_strategy="mixed")
        | {
            "nvidia.com/mig-3g.20gb.product": "A100-SXM4-40GB-MIG-3g.20gb",
            "nvidia.com/mig-3g.20gb.memory": "20096",
        },
        "A100-SXM4-40GB-MIG-3g.20gb", 20_096, 2048, "20 GiB TP1", "nvidia.com/mig-3g.20gb",
    ),
    "gfd-mig-without-its-labels": Recorded(
        _gfd("NVIDIA-H100-80GB-HBM3", 81_559),
        "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", 40_960, 4096, "40 GiB TP1", "nvidia.com/mig-3g.40gb",
    ),
    "gfd-time-sliced": Recorded(
        {
            **_gfd("Tesla-T4-SHARED", 15_360),
            "nvidia.com/gpu.replicas": "4",
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
        },
        "Tesla-T4-SHARED", 3_840, 2048, "4 GiB TP1", count=4,
    ),
    "gfd-shared-resource": Recorded(
        {**_gfd("NVIDIA-H200", 143_771), "nvidia.com/gpu.replicas": "2"},
        "NVIDIA-H200-SHARED", 71_885, 8192, "70 GiB TP1", "nvidia.com/gpu.shared",
    ),
    "amd-product-name": Recorded(
        {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
        "AMD_Instinct_MI300X_OAM", 196_608, 16_384, "MI300X TP1", AMD,
    ),
    "amd-family": Recorded(
        {"amd.com/gpu.family": "MI325X", "amd.com/gpu.vram": "262144"},
        "MI325X", 262_144, 16_384, "MI325X TP1", AMD,
    ),
    "gke-a100": Recorded(
        {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100", TYPE: "a2-highgpu-1g"},
        "nvidia-tesla-a100", None, 4096, "A100-40GB TP1",
    ),
    "gke-h100-mega": Recorded(
        {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"},
        "nvidia-h100-mega-80gb", None, 8192, "H100 TP1",
    ),
    "gke-l4-time-shared": Recorded(
        {
            "cloud.google.com/gke-accelerator": "nvidia-l4",
            "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
            "cloud.google.com/gke-max-shared-clients-per-gpu": "2",
        },
        "nvidia-l4-SHARED", None, 4096, "unknown accelerator TP1",
    ),
    "gke-mig": Recorded(
        {
            "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
            "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
        },
        "nvidia-tesla-a100-MIG-1g.5gb", 5120, 2048, "5 GiB TP1",
    ),
    "karpenter-a100": Recorded(
        _karpenter("a100", 40_960, "p4d.24xlarge"), "a100", 40_960, 4096, "40 GiB TP1"
    ),
    "karpenter-t4": Recorded(
        _karpenter("t4", 16_384, "g4dn.xlarge"), "t4", 16_384, 2048, "T4 TP1"
    ),
    "eks-auto-mode": Recorded(
        {"eks.amazonaws.com/instance-gpu-name": "l40s",
         "eks.amazonaws.com/instance-gpu-memory": "45776"},
        "l40s", 45_776, 4096, "L40S TP1",
    ),
    "aws-p4de": Recorded({TYPE: "p4de.24xlarge"}, "A100-80GB", None, 8192, "A100-80GB TP1"),
    "aws-p5": Recorded({TYPE: "p5.4xlarge"}, "H100", None, 8192, "H100 TP1"),
    "aws-p5en": Recorded({TYPE: "p5en.48xlarge"}, "H200", None, 8192, "H200 TP1"),
    "aws-p6": Recorded({TYPE: "p6-b200.48xlarge"}, "B200", None, 16_384, "B200 TP1"),
    "aws-g6e": Recorded({TYPE: "g6e.xlarge"}, "L40S", None, 4096, "L40S TP1"),
    "aws-g6": Recorded({TYPE: "g6.xlarge"}, "L4", None, 2048, "L4 TP1"),
    "azure-a100-80": Recorded(
        {TYPE: "Standard_ND96amsr_A100_v4"}, "A100-80GB", None, 8192, "A100-80GB TP1"
    ),
    "azure-a100-40": Recorded(
        {TYPE: "Standard_ND96asr_v4"}, "A100-40GB", None, 4096, "A100-40GB TP1"
    ),
    "azure-h100": Recorded(
        {TYPE: "Standard_NC40ads_H100_v5"}, "H100", None, 8192, "H100 TP1"
    ),
    "azure-mi300x": Recorded(
        {TYPE: "Standard_ND96isr_MI300X_v5"}, "MI300X", None, 16_384, "MI300X TP1", AMD
    ),
    "google-a3-ultra": Recorded({TYPE: "a3-ultragpu-8g"}, "H200", None, 8192, "H200 TP1"),
    "google-a4x": Recorded({TYPE: "a4x-highgpu-4g"}, "GB200", None, 16_384, "B200 TP1"),
    "a-machine-of-nobody": Recorded(
        {TYPE: "m5.large"}, None, None, 4096, "unknown accelerator TP1"
    ),
    "only-memory": Recorded(
        {"nvidia.com/gpu.memory": "24576"}, None, 24_576, 2048, "24 GiB TP1"
    ),
}  # fmt: skip


def node(name: str) -> Manifest:
    """The node as an API server has it."""
    recorded = NODES[name]
    return {
        "metadata": {"name": name, "labels": recorded.labels},
        "spec": {},
        "status": {"allocatable": {"cpu": "8", recorded.resource: str(recorded.count)}},
    }
