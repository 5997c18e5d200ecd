"""Backends by the names of `kvTransfer.backend`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from sluice_contract.config.kv_transfer import WIRES, KvBackend
from sluice_runtime.errors import InvalidConfigError, StartupError
from sluice_runtime.handover.transfer import registry
from sluice_runtime.handover.transfer.registry import (
    BACKENDS,
    TransferSettings,
    create_backend,
    refuse_missing_device,
)
from sluice_runtime.handover.transfer.tcp_server import listen

LOCAL = TransferSettings(host="127.0.0.1")


def test_every_name_of_the_contract_is_there_and_no_other() -> None:
    assert set(BACKENDS) == set(WIRES) == set(get_args(KvBackend))


@pytest.mark.parametrize("name", ["Gloo", "NCCL", "nixl", "Memory", "fake", "memory", ""])
def test_another_name_is_refused(name: str) -> None:
    says = rf'kvTransfer.backend: "{name}" is not allowed; allowed: Mooncake, TCP, NIXL$'
    with pytest.raises(InvalidConfigError, match=says):
        create_backend(name, LOCAL)


@pytest.mark.parametrize(
    ("name", "module", "protocol"),
    [("Mooncake", "mooncake.engine", "tcp"), ("NIXL", "nixl_cu13._bindings", "rdma")],
)
def test_a_package_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, protocol: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(registry, "refuse_missing_device", lambda settings: None)
    says = rf"{name}.*{re.escape(module)}.*TCP needs none"
    with pytest.raises(InvalidConfigError, match=says):
        create_backend(name, TransferSettings("127.0.0.1", protocol))


@pytest.mark.parametrize(
    ("devices", "device", "says"),
    [
        ([], None, r'kvTransfer\.protocol: "rdma" is not allowed; allowed: tcp, as .* no device'),
        (["mlx5_0", "mlx5_1"], "mlx5_2", r'kvTransfer\.device: "mlx5_2".* mlx5_0, mlx5_1, of'),
        (["mlx5_0"], "mlx5_0", None),
        (["mlx5_0"], None, None),
    ],
)
def test_an_rdma_device_that_is_not_there_is_named(
    tmp_path: Path, devices: list[str], device: str | None, says: str | None
) -> None:
    for name in devices:
        (tmp_path / name).mkdir()
    settings = TransferSettings("127.0.0.1", "rdma", device)
    if says is None:
        refuse_missing_device(settings, tmp_path)
        return
    with pytest.raises(InvalidConfigError, match=says):
        refuse_missing_device(settings, tmp_path)


@pytest.mark.parametrize(
    ("name", "protocol", "allowed"), [("TCP", "rdma", "tcp"), ("NIXL", "tcp", "rdma")]
)
def test_a_backend_has_its_own_protocols_and_takes_no_other(
    name: str, protocol: str, allowed: str
) -> None:
    says = rf'kvTransfer\.protocol: "{protocol}" is not allowed; allowed: {allowed} with backend'
    with pytest.raises(InvalidConfigError, match=f"{says} {name}$"):
        create_backend(name, TransferSettings("127.0.0.1", protocol))


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(StartupError, match=r"cannot listen on 192\.0\.2\.1, ports 15000 to 17000"):
        listen("192.0.2.1")
