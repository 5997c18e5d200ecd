"""A self-signed certificate of a host, and whether one is still good."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW: Final = timedelta(hours=1)
"""By which clocks may differ."""


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
    """Whether a certificate is one, of `host`, and valid until then."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    hosts = names.get_values_for_type(x509.DNSName)
    return host in hosts and until < certificate.not_valid_after_utc
