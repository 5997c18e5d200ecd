"""Kubeconfig files. Knows their format, not which cluster they lead to."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from e2e.cluster.bare.certs import Certificate


def render_kubeconfig(
    server: str, authority: Path, client: Certificate, context: str = "sluice"
) -> str:
    """A kubeconfig that carries its certificates inside, so that it works from anywhere."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": context,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": _encode(authority),
                    },
                }
            ],
            "users": [
                {
                    "name": context,
                    "user": {
                        "client-certificate-data": _encode(client.certificate),
                        "client-key-data": _encode(client.key),
                    },
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "current-context": context,
        },
        sort_keys=False,
    )


def write_kubeconfig(
    path: Path, server: str, authority: Path, client: Certificate, context: str = "sluice"
) -> Path:
    """Writes it readable by its owner only; an equal file is left untouched."""
    text = render_kubeconfig(server, authority, client, context)
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text)
    return path


def _encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
