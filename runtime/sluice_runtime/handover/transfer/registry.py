"""The backends that `kvTransfer.backend` can name. A new backend needs a line here, a row in the
contract's `WIRES`, and a parameter of the conformance tests.

A backend's module is imported only when the backend is chosen, since its package may not be
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.config.kv_transfer import wire_error

from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.handover.transfer.backend import TransferBackend

RDMA_DEVICES: Final = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class TransferSettings:
    """Inputs of a backend."""

    host: str
    """Address by which peers reach this process: the pod's IP."""
    protocol: str = "tcp"
    device: str | None = None
    """RDMA device; None: the backend chooses."""


Factory = Callable[[TransferSettings], TransferBackend]


def refuse_missing_device(settings: TransferSettings, folder: Path = RDMA_DEVICES) -> None:
    """Raises InvalidConfigError if RDMA is configured but its device does not exist: Mooncake would
    silently use TCP, and NIXL would not name the device. `folder`: where the kernel lists
    devices."""
    if settings.protocol != "rdma":
        return
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not found:
        error = ConfigError("kvTransfer.protocol", "rdma", f"tcp, as {folder} has no device")
        raise InvalidConfigError(str(error))
    if settings.device is not None and settings.device not in found:
        allowed = f"{', '.join(found)}, of {folder}"
        error = ConfigError("kvTransfer.device", settings.device, allowed)
        raise InvalidConfigError(str(error))


def _mooncake(settings: TransferSettings) -> TransferBackend:
    refuse_missing_device(settings)
    from sluice_runtime.handover.transfer.mooncake import MooncakeBackend

    return MooncakeBackend(settings.host, settings.protocol, settings.device)


def _tcp(settings: TransferSettings) -> TransferBackend:
    from sluice_runtime.handover.transfer.tcp import TcpBackend

    return TcpBackend(settings.host)


def _nixl(settings: TransferSettings) -> TransferBackend:
    refuse_missing_device(settings)
    from sluice_runtime.handover.transfer.nixl import NixlBackend

    # Without an adapter UCX fails, since TCP is not among its transports. `:1` is a device's first
    # port.
    return NixlBackend("rc", f"{settings.device}:1" if settings.device else None)


BACKENDS: Final[Mapping[str, Factory]] = MappingProxyType(
    {"Mooncake": _mooncake, "TCP": _tcp, "NIXL": _nixl}
)


def create_backend(name: str, settings: TransferSettings) -> TransferBackend:
    """A backend that is ready to register memory.

    Raises:
        StartupError: no backend has this name, its package is missing, or it does not start.
    """
    if (wrong := wire_error("kvTransfer", name, settings.protocol)) is not None:
        raise InvalidConfigError(str(wrong))
    try:
        return BACKENDS[name](settings)
    except ImportError as error:
        allowed = f"one whose package can be loaded here ({error}); TCP needs none"
        raise InvalidConfigError(str(ConfigError("kvTransfer.backend", name, allowed))) from error
