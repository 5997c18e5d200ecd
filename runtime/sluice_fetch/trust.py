"""Makes connections trust certificates of private authorities in addition to public ones."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx2
from huggingface_hub import set_client_factory

from sluice_fetch.errors import InvalidConfigError


def trust(file: Path) -> None:
    """Makes every later connection to a hub trust the certificates in `file` too.

    Raises:
        InvalidConfigError: the file cannot be read, or holds no certificate.
    """
    context = httpx2.create_ssl_context()
    try:
        context.load_verify_locations(cafile=file)
    except (OSError, ssl.SSLError) as error:
        text = f"--ca-file: {file} is not allowed: {error}; allowed: a file of PEM certificates"
        raise InvalidConfigError(text) from None
    set_client_factory(lambda: httpx2.Client(verify=context, follow_redirects=True))
