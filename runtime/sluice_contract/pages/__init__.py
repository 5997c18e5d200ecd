"""Web pages of a service for people: one to chat with its model, one that shows its routes.

Each page is one file, which loads nothing but the service's own routes. A page's headers allow no
other script or origin.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

VERSION_PATH: Final = "/version"
"""Route that the pages link to; its answer is `{"version": "0.1.0"}`."""
CONTENT_TYPE: Final = "text/html; charset=utf-8"


class Page(NamedTuple):
    """Body and headers of an answer."""

    body: bytes
    headers: Mapping[str, str]


def _page(name: str) -> Page:
    folder = Path(__file__).parent
    style, script, content = (
        (folder / file).read_text() for file in ("style.css", f"{name}.js", f"{name}.html")
    )
    body = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n{content}<script>{script}</script>\n</html>\n"
    )
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_hash(style)};"
        f" script-src {_hash(script)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Page(body.encode(), headers)


def _hash(text: str) -> str:
    """Source of an inline script or style, for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PAGES: Final[Mapping[str, Page]] = {"/": _page("chat"), "/docs": _page("api")}
"""Path → page."""
