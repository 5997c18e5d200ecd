"""Headers that only the service's router may set: each is signed by it, for one request.

Knows no header and nothing of what is signed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from fastapi import Request
from sluice_contract.handover import InvalidSignatureError
from sluice_contract.http_errors import Mistake

from sluice_runtime.server.failures import MistakenError

INVALID_SIGNATURE: Final = "invalid_signature"
SignedT = TypeVar("SignedT")
Verify = Callable[[bytes, str, str, float], SignedT]
"""What is signed: of key, header, id of the request and Unix time; or InvalidSignatureError."""


@dataclass(frozen=True)
class SignatureCheck:
    """Knows the router by its signature. `key`: None, and nobody may sign."""

    unix_clock: Callable[[], float]
    key: bytes | None = None

    def read(self, request: Request, header: str, verify: Verify[SignedT]) -> SignedT | None:
        """What the router says of a request; None: nothing.

        Raises:
            MistakenError: 403, the header is not of this service's router.
        """
        value = request.headers.get(header)
        if value is None:
            return None
        if self.key is None:
            message = f"{header}: not allowed; allowed: with handoverKeyFile"
            raise MistakenError(Mistake(403, INVALID_SIGNATURE, message))
        try:
            return verify(self.key, value, request.state.request_id, self.unix_clock())
        except InvalidSignatureError as error:
            raise MistakenError(Mistake(403, INVALID_SIGNATURE, str(error))) from None
