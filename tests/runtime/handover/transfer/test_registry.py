"""Backends by the names of `kvTransfer.backend`."""

from __future__ import annotations

import sys
from typing import get_args

import pytest
from sluice_contract.config import KvTransfer
from sluice_runtime.errors import InvalidConfigError, StartupError
from sluice_runtime.handover.transfer.registry import BACKENDS, TransferSettings, create_backend
from sluice_runtime.handover.transfer.tcp_server import listen

LOCAL = TransferSettings(host="127.0.0.1")


def test_every_name_of_the_contract_is_there_and_no_other() -> None:
    assert set(BACKENDS) == set(get_args(KvTransfer.model_fields["backend"].annotation))


@pytest.mark.parametrize("name", ["NIXL", "Memory", "fake", "memory", ""])
def test_another_name_is_refused(name: str) -> None:
    says = rf'kvTransfer.backend: "{name}" is not allowed; allowed: Mooncake, TCP$'
    with pytest.raises(InvalidConfigError, match=says):
        create_backend(name, LOCAL)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(InvalidConfigError, match=r"Mooncake.*mooncake\.engine.*TCP needs none"):
        create_backend("Mooncake", LOCAL)


def test_rdma_needs_mooncake() -> None:
    with pytest.raises(InvalidConfigError, match=r'kvTransfer\.protocol: "rdma" is not allowed'):
        create_backend("TCP", TransferSettings(host="127.0.0.1", protocol="rdma"))


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(StartupError, match=r"cannot listen on 192\.0\.2\.1, ports 15000 to 17000"):
        listen("192.0.2.1")
