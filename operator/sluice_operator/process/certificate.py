"""`python -m sluice_operator.process.certificate`: renews admission's self-signed certificate.

Runs as a Job and a CronJob. It reads the Secret as files, and writes the Secret and the bundle that
the API server trusts. Exits with 1 if that fails.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import sys
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice_operator.clock import SystemClock
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Connection
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import SECRET, Kind, Manifest
from sluice_operator.log import fields, log_to_stderr
from sluice_operator.process.admission import CERTIFICATE, KEY

CONFIGURATION: Final = Kind(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
)
CONFIGURATION_NAME: Final = "sluice-operator"
NAME: Final = "sluice-operator-admission"
"""Name of Service and Secret."""
MANAGER: Final = "sluice-certificate"
VALID_DAYS: Final = 90
RENEWED_AHEAD: Final = timedelta(days=30)
SKEW: Final = timedelta(hours=1)
"""Allowed difference between clocks."""
REQUEST_SECONDS: Final = 10.0
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
logger = logging.getLogger("sluice_operator.certificate")


def main() -> int:
    """The program's exit status."""
    log_to_stderr("INFO", "text")
    folder, namespace = os.environ["SLUICE_ADMISSION_FOLDER"], os.environ["POD_NAMESPACE"]
    try:
        asyncio.run(_run(Path(folder), namespace))
    except OperatorError as error:
        logger.error("stopping", extra=fields(error=error))
        return 1
    return 0


async def _run(folder: Path, namespace: str) -> None:
    async with aclosing(Connection(REQUEST_SECONDS)) as connection:
        client = ApiClient(connection, lambda verb, plural: None)
        await renew(client, folder, namespace, SystemClock().now())


async def renew(client: ApiClient, folder: Path, namespace: str, now: datetime) -> None:
    """Makes sure that the certificate is valid for a month, and that the API server trusts it.

    Raises:
        OperatorError: something could not be read or written.
    """
    host = f"{NAME}.{namespace}.svc"
    used = _read(folder / CERTIFICATE)
    configuration = await client.get(CONFIGURATION, None, CONFIGURATION_NAME)
    if configuration is None:
        raise OperatorError(f"no {CONFIGURATION.kind} {CONFIGURATION_NAME}")
    made = None
    if not (is_good(used, host, now + RENEWED_AHEAD) and _read(folder / KEY)):
        made = self_signed(NAME, host, VALID_DAYS)
    trusted = _PEM.findall(_bundle(configuration))
    certificates = [made.certificate if made else used]
    certificates += [
        certificate for certificate in (used, *trusted) if is_good(certificate, host, now)
    ]
    bundle = list(dict.fromkeys(certificate.strip() + "\n" for certificate in certificates))
    if {certificate.strip() for certificate in bundle} - {
        certificate.strip() for certificate in trusted
    }:
        # First, so that replicas are trusted with the former certificate as well as with the new
        # one.
        await client.apply(CONFIGURATION, _trusting(configuration, bundle), manager=MANAGER)
    if made is not None:
        await client.apply(SECRET, _secret(namespace, made), manager=MANAGER)
    logger.info("certificate", extra=fields(host=host, renewed=made is not None))


def _read(file: Path) -> str:
    """The text of a file; empty where the file is missing."""
    return file.read_text() if file.exists() else ""


def _bundle(configuration: Manifest) -> str:
    (webhook,) = configuration["webhooks"]
    return base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()


def _trusting(configuration: Manifest, certificates: list[str]) -> Manifest:
    (webhook,) = configuration["webhooks"]
    bundle = base64.b64encode("".join(certificates).encode()).decode()
    return {
        "apiVersion": CONFIGURATION.api_version,
        "kind": CONFIGURATION.kind,
        "metadata": {"name": CONFIGURATION_NAME},
        "webhooks": [{"name": webhook["name"], "clientConfig": {"caBundle": bundle}}],
    }


def _secret(namespace: str, made: CertificatePair) -> Manifest:
    files = {CERTIFICATE: made.certificate, KEY: made.key}
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": NAME, "namespace": namespace},
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str


def self_signed(name: str, host: str, days: int) -> CertificatePair:
    """A new key, and its certificate for `host`, which is its own authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    text = certificate.public_bytes(serialization.Encoding.PEM)
    return CertificatePair(text.decode(), private.decode())


def is_good(pem: str, host: str, until: datetime) -> bool:
    """Whether `pem` is a certificate of `host` that is valid until then."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    hosts = names.get_values_for_type(x509.DNSName)
    return host in hosts and until < certificate.not_valid_after_utc


if __name__ == "__main__":
    sys.exit(main())
