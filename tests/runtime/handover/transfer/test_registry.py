"""Backends by the names of `kvTransfer.backend`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest
from sluice_contract.config.kv_transfer import KvBackend
from sluice_runtime.errors import InvalidConfigError, StartupError
from sluice_runtime.handover.transfer.registry import (
    BACKENDS,
    TransferSettings,
    create_backend,
    refuse_missing_device,
)
from sluice_runtime.handover.transfer.tcp_server import listen

LOCAL = TransferSettings(host="127.0.0.1")


def test_every_name_of_the_contract_is_there_and_no_other() -> None:
    assert set(BACKENDS) == set(get_args(KvBackend))


@pytest.mark.parametrize("name", ["NIXL", "Memory", "fake", "memory", ""])
def test_another_name_is_refused(name: str) -> None:
    says = rf'kvTransfer.backend: "{name}" is not allowed; allowed: Mooncake, TCP$'
    with pytest.raises(InvalidConfigError, match=says):
        create_backend(name, LOCAL)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(InvalidConfigError, match=r"Mooncake.*mooncake\.engine.*TCP needs none"):
        create_backend("Mooncake", LOCAL)


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


def test_rdma_needs_mooncake() -> None:
    with pytest.raises(InvalidConfigError, match=r'kvTransfer\.protocol: "rdma" is not allowed'):
        create_backend("TCP", TransferSettings(host="127.0.0.1", protocol="rdma"))


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(StartupError, match=r"cannot listen on 192\.0\.2\.1, ports 15000 to 17000"):
        listen("192.0.2.1")
