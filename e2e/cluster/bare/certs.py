"""Keys and certificates, made by the openssl command. Knows nothing of who uses them.

Existing files are kept: calling twice with one directory returns the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.command import run

VALID_DAYS = "3650"
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
# Without a configuration of our own, openssl's default one marks every certificate as an authority.
OPENSSL_CONFIG = "[req]\ndistinguished_name = subject\n[subject]\n"


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, PEM files."""

    certificate: Path
    key: Path


def create_authority(directory: Path, name: str) -> Certificate:
    """A self-signed authority `NAME.crt`, `NAME.key`."""
    extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"]
    return _request(directory, name, f"/CN={name}", extensions, [])


def issue(
    authority: Certificate,
    directory: Path,
    name: str,
    *,
    user: str,
    groups: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> Certificate:
    """A certificate `NAME.crt` for a user (client) and for hosts (server; addresses or names)."""
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=clientAuth,serverAuth",
    ]
    if hosts:
        extensions.append("subjectAltName=" + ",".join(map(_alternative_name, hosts)))
    subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
    signer = ["-CA", str(authority.certificate), "-CAkey", str(authority.key)]
    return _request(directory, name, subject, extensions, signer)


def create_signing_key(path: Path) -> Path:
    """An EC private key for service account tokens."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not genpkey: the API server reads the public half out of this older form only.
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path])
    return path


def _request(
    directory: Path, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str]
) -> Certificate:
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key")
    if made.certificate.exists():
        return made
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "openssl.cnf"
    config.write_text(OPENSSL_CONFIG)
    extension_words = [word for extension in extensions for word in ("-addext", extension)]
    # Written under another name first: a half-made certificate is never taken for a whole one.
    partial = made.certificate.with_suffix(".partial")
    command: list[str | Path] = ["openssl", "req", "-x509", "-config", config, *NEW_KEY]
    command += ["-days", VALID_DAYS, "-subj", subject, *extension_words, *signer]
    run([*command, "-keyout", made.key, "-out", partial])
    partial.rename(made.certificate)
    return made


def _alternative_name(host: str) -> str:
    is_address = host.replace(".", "").isdigit()
    return f"{'IP' if is_address else 'DNS'}:{host}"
