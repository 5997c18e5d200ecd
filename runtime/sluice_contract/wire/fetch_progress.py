"""Progress of a download: the fetcher serves it at `GET /progress`, and the operator shows it."""

from __future__ import annotations

from pydantic import Field

from sluice_contract.base import ContractModel


class FetchProgress(ContractModel):
    """Bytes of a commit."""

    bytes: int = Field(ge=0, description="There already, those of earlier tries too.")
    total: int = Field(ge=0, description="Bytes of all files together.")
    bytes_per_second: int = Field(ge=0, description="Speed of the last thirty seconds.")
    eta_seconds: int | None = Field(
        default=None, ge=0, description="Time that is left; absent where nothing came lately."
    )
