"""The certificates that are made work, and it is seen when one does not any more."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sluice_operator.process.certificate import CertificatePair, is_good, self_signed

from e2e.cluster.command import run

HOST = f"sluice-operator-admission.{'n' * 63}.svc"
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def pair() -> CertificatePair:
    return self_signed("sluice-operator-admission", HOST, 90)


async def test_a_client_that_trusts_it_accepts_it(pair: CertificatePair, tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_text(pair.certificate)
    key.write_text(pair.key)
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(certificate, key)
    async with await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=ours
    ) as server:
        port = server.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cadata=pair.certificate)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting, server_hostname=HOST
        )
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="other")


def test_openssl_reads_it_as_it_is_meant(pair: CertificatePair, tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    file.write_text(pair.certificate)
    text = run(["openssl", "x509", "-in", file, "-noout", "-text"])
    for part in (f"DNS:{HOST}", "CA:FALSE", "TLS Web Server Authentication", "prime256v1"):
        assert part in text
    assert "Signature Algorithm: ecdsa-with-SHA256" in text


def test_each_has_a_key_and_a_number_of_its_own(pair: CertificatePair) -> None:
    other = self_signed("sluice-operator-admission", HOST, 90)
    assert other.key != pair.key
    assert other.certificate != pair.certificate


def test_it_is_good_for_its_host_and_its_time(pair: CertificatePair) -> None:
    assert is_good(pair.certificate, HOST, NOW + timedelta(days=89))
    assert not is_good(pair.certificate, HOST, NOW + timedelta(days=91))
    assert not is_good(pair.certificate, "other.svc", NOW)


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAA==\n"])
def test_what_is_no_certificate_is_not_good(text: str) -> None:
    assert not is_good(text, HOST, NOW)
