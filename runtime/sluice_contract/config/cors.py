"""Which web pages may send requests from a browser (CORS): one setting for router and engine.

Pure values; each server's library, or its own few lines, puts them into headers.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from sluice_contract.base import UNORDERED, ContractModel
from sluice_contract.http_heads import (
    CLIENT_REQUEST_ID_HEADER,
    IGNORED_FIELDS_HEADER,
    REQUEST_ID_HEADER,
)

Origin = Annotated[
    str, StringConstraints(pattern=r"^(\*|https?://[^/?#@*,\s]+)$", min_length=1, max_length=512)
]
ANY_ORIGIN: Final = "*"
METHODS: Final = ("GET", "POST")
READABLE_HEADERS: Final = (
    REQUEST_ID_HEADER, CLIENT_REQUEST_ID_HEADER, IGNORED_FIELDS_HEADER, "Retry-After",
)  # fmt: skip
"""Headers of an answer that pages may read in addition to those that browsers always show."""
PREFLIGHT_SECONDS: Final = 600
"""How long a browser may remember the answer to a preflight."""


class Cors(ContractModel):
    """Which web pages may send requests."""

    allowed_origins: list[Origin] = Field(
        min_length=1,
        max_length=64,
        json_schema_extra=UNORDERED,
        description="Origins of web pages that may send requests from a browser, such as "
        "https://chat.example.com; '*': any.",
    )
