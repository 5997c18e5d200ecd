"""Certificates and kubeconfigs, checked with openssl and with a client's parser."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
import yaml

from e2e.cluster.bare.certs import Certificate, create_authority, create_signing_key, issue
from e2e.cluster.bare.kubeconfig import write_kubeconfig
from e2e.cluster.command import run, succeeds
from e2e.cluster.errors import CommandFailedError


@pytest.fixture
def authority(tmp_path: Path) -> Certificate:
    return create_authority(tmp_path, "ca")


def test_a_server_certificate_is_valid_for_its_hosts_only(
    authority: Certificate, tmp_path: Path
) -> None:
    made = issue(authority, tmp_path, "server", user="server", hosts=["198.18.0.2", "node"])
    verify: list[str | Path] = [
        "openssl",
        "verify",
        "-x509_strict",
        "-CAfile",
        authority.certificate,
    ]
    run([*verify, "-verify_ip", "198.18.0.2", made.certificate])
    run([*verify, "-verify_hostname", "node", made.certificate])
    assert not succeeds([*verify, "-verify_ip", "198.18.0.3", made.certificate])


def test_an_issued_certificate_cannot_issue_others(authority: Certificate, tmp_path: Path) -> None:
    made = issue(authority, tmp_path, "user", user="user")
    text = run(["openssl", "x509", "-in", made.certificate, "-noout", "-ext", "basicConstraints"])
    assert "CA:FALSE" in text


def test_user_and_groups_are_the_subject(authority: Certificate, tmp_path: Path) -> None:
    made = issue(authority, tmp_path, "user", user="system:node:a", groups=["system:nodes"])
    subject = run(["openssl", "x509", "-in", made.certificate, "-noout", "-subject"])
    assert subject.strip() == "subject=O = system:nodes, CN = system:node:a"


def test_what_exists_is_kept(authority: Certificate, tmp_path: Path) -> None:
    before = authority.certificate.read_bytes()
    key = create_signing_key(tmp_path / "sa.key").read_bytes()
    assert create_authority(tmp_path, "ca").certificate.read_bytes() == before
    assert create_signing_key(tmp_path / "sa.key").read_bytes() == key


def test_a_failing_command_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError, match=r"missing\.crt"):
        run(["openssl", "x509", "-in", tmp_path / "missing.crt"])


def test_a_kubeconfig_carries_its_certificates_and_is_private(
    authority: Certificate, tmp_path: Path
) -> None:
    client = issue(authority, tmp_path, "admin", user="admin")
    path = write_kubeconfig(
        tmp_path / "kubeconfig", "https://198.18.0.2:6443", authority.certificate, client
    )
    config = yaml.safe_load(path.read_text())
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]) == client.certificate.read_bytes()
    assert config["clusters"][0]["cluster"]["server"] == "https://198.18.0.2:6443"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
