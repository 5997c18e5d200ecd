"""A refusal: why a spec is not carried out, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.api.findings import Finding

INVALID: Final = "InvalidSpec"


@dataclass(frozen=True)
class Refusal:
    """Why a spec is not carried out. `field` is the path below the object, e.g. `spec.mode`."""

    reason: str
    field: str
    message: str
    parts: tuple[Refusal, ...] = ()
    """Each error by itself, where there are several; `message` has all of them."""

    @property
    def finding(self) -> Finding:
        """The same as a finding: the message without its leading field."""
        return Finding(self.field, self.message.removeprefix(f"{self.field}: "))
