"""The settings of the KV hand-over between prefill and decode engines, and the KV fingerprint:
whether an engine can use pages that another engine computed. Pages are handed over only between
engines with equal fingerprints."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from sluice_contract.base import ConfigError, ContractModel
from sluice_contract.cluster import ports

RDMA_RESOURCE: Final = "rdma/hca_shared_devices_a"
"""Resource in the sample configuration of the RDMA shared device plugin."""
RdmaResource = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        min_length=3,
        max_length=253,
    ),
]
KvBackend = Literal["Mooncake", "TCP", "NIXL"]
WIRES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"Mooncake": ("tcp", "rdma"), "TCP": ("tcp",), "NIXL": ("rdma",)}
)
"""Protocols that each backend is allowed: docs/decisions/0059-nixl-for-rdma-alone.md."""


class KvTransfer(ContractModel):
    """How prefill engines hand the KV cache to decode engines."""

    backend: KvBackend | None = Field(
        default=None,
        description="What carries the pages. Left out: TCP; for rdma Mooncake. NIXL: rdma only.",
    )
    protocol: Literal["tcp", "rdma"] = Field(default="tcp", description="What it reads over.")
    device: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="RDMA device; the backend chooses when left out.",
    )
    resource_name: RdmaResource | None = Field(
        default=None,
        description=f"Resource of the device, for the operator; left out: {RDMA_RESOURCE}.",
    )
    bootstrap_port: int = Field(
        default=ports.BOOTSTRAP, ge=1, le=65535, description="Rendezvous port of prefill engines."
    )

    @property
    def backend_or_default(self) -> KvBackend:
        """The default backend: the authenticated one; for RDMA, Mooncake."""
        return self.backend or ("Mooncake" if self.protocol == "rdma" else "TCP")


def wire_error(path: str, backend: str, protocol: str) -> ConfigError | None:
    """Error if the backend cannot read over this protocol; None if it can. `path`: key of the KV
    transfer settings."""
    if backend not in WIRES:
        return ConfigError(f"{path}.backend", backend, ", ".join(WIRES))
    if protocol not in WIRES[backend]:
        allowed = f"{' or '.join(WIRES[backend])} with backend {backend}"
        return ConfigError(f"{path}.protocol", protocol, allowed)
    return None


PAGE_MAJOR: Final = "page-layer-kv-token-head-dim"
"""The order of a pool's dimensions, outermost first: a page is one contiguous piece of memory."""


class KvFingerprint(ContractModel):
    """Everything that a page's bytes depend on besides its tokens. Numbers of layers and key heads,
    and head size, follow from the model."""

    model: str
    """The model's URI."""
    model_revision: str | None = None
    """Commit of a model from a hub; None for other models."""
    weights: str = ""
    """Digest of the weight files that an engine found; empty where only the engine's configuration
    is known."""
    page_size_tokens: int
    kv_dtype: str
    """Resolved dtype of the KV cache, e.g. `bfloat16`: never `auto`."""
    layout: str = PAGE_MAJOR
    tensor_parallel_size: int
    """GPUs of the engine. Not compared: between engines with different numbers of GPUs, pages are
    split by heads."""

    @property
    def compared(self) -> KvFingerprint:
        """The compared fields, equal for engines that can use each other's pages."""
        return self.model_copy(update={"tensor_parallel_size": 0})

    def __str__(self) -> str:
        """One line that is stable across versions, for logs and messages."""
        revision = f"@{self.model_revision}" if self.model_revision else ""
        weights = f" weights={self.weights}" if self.weights else ""
        return (
            f"{self.model}{revision} {self.kv_dtype} page={self.page_size_tokens} "
            f"{self.layout}{weights}"
        )


def differences(first: KvFingerprint, second: KvFingerprint) -> tuple[str, ...]:
    """Differences in compared fields, each with both values, e.g. `pageSizeTokens: 16 and 32`;
    empty when equal."""
    ours, theirs = (one.compared.model_dump(by_alias=True) for one in (first, second))
    return tuple(
        f"{name}: {value} and {theirs[name]}"
        for name, value in ours.items()
        if value != theirs[name]
    )
