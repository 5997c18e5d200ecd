"""How prefill engines hand the KV cache to decode engines, as a person sets it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from sluice_contract import ports
from sluice_contract.base import ContractModel

RDMA_RESOURCE: Final = "rdma/hca_shared_devices_a"
"""As in the sample configuration of the RDMA shared device plugin."""
RdmaResource = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        min_length=3,
        max_length=253,
    ),
]
KvBackend = Literal["Mooncake", "TCP"]


class KvTransfer(ContractModel):
    """How prefill engines hand the KV cache to decode engines."""

    backend: KvBackend | None = Field(
        default=None,
        description="What carries the pages. Left out: TCP; for rdma Mooncake.",
    )
    protocol: Literal["tcp", "rdma"] = Field(default="tcp", description="Mooncake's transport.")
    device: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="RDMA device; Mooncake chooses when left out.",
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
        """Where nobody has said it: the one that is authenticated; RDMA is Mooncake's alone."""
        return self.backend or ("Mooncake" if self.protocol == "rdma" else "TCP")
