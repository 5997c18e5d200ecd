"""engine.hostCache: where prefixes that an engine's own cache evicts are kept."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator, WithJsonSchema

from sluice_contract.base import ContractModel

MAX_LENGTH: Final = 16
FOLDER: Final = "/var/lib/sluice/host-cache"
"""Folder at which the operator mounts the disk part."""
BYTES_PATTERN: Final = r"^[1-9][0-9]*([kMGTP]|[KMGTP]i)?$"
_UNITS: Final[dict[str, int]] = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", start=1)},
}


def _size(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and re.fullmatch(BYTES_PATTERN, value) and len(value) <= MAX_LENGTH:
        return value
    raise ValueError("bytes such as 64Gi or 500G, at least 1")


ByteSize = Annotated[
    int | str,
    PlainValidator(_size),
    WithJsonSchema(
        {
            "pattern": BYTES_PATTERN,
            "minimum": 1,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""An amount such as 64Gi, as Kubernetes writes it, or a number of bytes."""


def bytes_of(size: int | str) -> int:
    """Bytes of a `ByteSize`, or any other quantity of Kubernetes; rounded up."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", str(size))
    assert match is not None, "not a quantity"
    number, unit = Decimal(match[1]), match[2]
    if unit == "m":
        return math.ceil(number / 1000)
    return math.ceil(number * _UNITS[unit])


class HostCacheDisk(ContractModel):
    """The part of the host cache on the node's disk."""

    size: ByteSize = Field(description="Such as 500Gi.")


class HostCacheSettings(ContractModel):
    """Prefixes that the device's cache evicts, in the host's memory and on its disk."""

    memory: ByteSize = Field(description="Beside the container's other memory, e.g. 64Gi.")
    disk: HostCacheDisk | None = Field(default=None, description="For what memory has no room for.")
