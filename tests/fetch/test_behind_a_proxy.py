"""The command in a company's network: through its proxy, with its own certificate authority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import close_session, set_client_factory
from huggingface_hub.utils._http import default_client_factory
from sluice_contract.cluster.termination import EXIT_REFUSED
from sluice_fetch.__main__ import EXIT_TRANSIENT

from tests.fetch.corporate import Authority, Proxy, proxying
from tests.fetch.hub_server import Hub, serving
from tests.fetch.test_fetch import Run, needed_of, snapshot_of

HUB, FILES = "hub.corp.test", "files.corp.test"
"""Names that nobody resolves, so what arrives came through the proxy."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), HUB, FILES, "localhost")


@pytest.fixture
def corporate(
    hub: Hub, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Hub, Proxy]]:
    """A hub on TLS under names that only the proxy knows; the proxy is in the environment."""
    with serving(Hub(hub.files), authority.context) as behind:
        ports = [urlsplit(url).port or 0 for url in (behind.url, behind.files_url)]
        with proxying(dict(zip((HUB, FILES), ports, strict=True))) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            for name in ("NO_PROXY", "no_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.delenv(name, raising=False)
            behind.url, behind.files_url = f"https://{HUB}", f"https://{FILES}"
            set_client_factory(default_client_factory)  # what another test has read is forgotten
            yield behind, proxy
            close_session()
            set_client_factory(default_client_factory)


def test_a_model_comes_through_the_proxy_from_a_hub_of_a_private_authority(
    corporate: tuple[Hub, Proxy], authority: Authority, tmp_path: Path
) -> None:
    hub, proxy = corporate
    assert Run(hub, tmp_path, "--ca-file", str(authority.file)).code == 0
    assert snapshot_of(tmp_path) == needed_of(hub)
    assert set(proxy.asked) == {f"{HUB}:443", f"{FILES}:443"}


def test_without_its_authority_the_hub_is_not_trusted(
    corporate: tuple[Hub, Proxy], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub, _ = corporate
    assert Run(hub, tmp_path).code == EXIT_TRANSIENT
    assert "certificate verify failed" in Run.lines(capsys)[-1]["message"]
    assert hub.requests == []


def test_what_needs_no_proxy_is_asked_directly(
    corporate: tuple[Hub, Proxy],
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    hub, proxy = corporate
    hub.url = f"https://localhost:{proxy.names[HUB]}"
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert Run(hub, tmp_path, "--ca-file", str(authority.file)).code == 0
    assert set(proxy.asked) == {f"{FILES}:443"}


def test_a_file_without_certificates_is_refused_by_name(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("none")
    for file in (empty, tmp_path / "missing.pem"):
        assert Run(hub, tmp_path, "--ca-file", str(file)).code == EXIT_REFUSED
        message = Run.lines(capsys)[-1]["message"]
        assert message.startswith(f"--ca-file: {file} is not allowed")
