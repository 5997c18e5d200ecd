"""Headers that only the service's router may set: each is signed by it, for one request.

Knows nothing of what is signed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from fastapi import Request
from sluice_contract.http_errors import Mistake
from sluice_contract.wire.handover import (
    PREFILL_HEADER,
    InvalidSignatureError,
    Keys,
    Verified,
    refuse_other_body,
)
from sluice_contract.wire.private_calls import PRIVATE_HEADER
from sluice_contract.wire.tenants import TENANT_HEADER, verified_tenant

from sluice_runtime.server.failures import MistakenError

INVALID_SIGNATURE: Final = "invalid_signature"
ROUTER_HEADERS: Final = (TENANT_HEADER, PRIVATE_HEADER, PREFILL_HEADER)
_MISSING: Final = (
    f"{TENANT_HEADER}: missing; allowed: as the service's router signs it, to which requests go"
)
SignedT = TypeVar("SignedT")
Verify = Callable[[Sequence[bytes], str, str, str, float], Verified[SignedT]]
"""What is signed: of keys, header, id and path of the request, and Unix time; or
InvalidSignatureError."""


@dataclass(frozen=True)
class SignatureCheck:
    """Knows the router by its signature. `keys`: None, and nobody may sign. `required`: whether
    nobody but the router is served."""

    unix_clock: Callable[[], float]
    keys: Keys | None = None
    required: bool = False

    def read(
        self, request: Request, header: str, verify: Verify[SignedT]
    ) -> Verified[SignedT] | None:
        """What the router says of a request; None: nothing.

        Raises:
            MistakenError: 403, the header is not of this service's router.
        """
        value = request.headers.get(header)
        if value is None:
            return None
        if self.keys is None:
            raise _refused(f"{header}: not allowed; allowed: with handoverKeyFile")
        path = request.scope["raw_path"].decode("latin-1")
        try:
            return verify(self.keys(), value, request.state.request_id, path, self.unix_clock())
        except InvalidSignatureError as error:
            raise _refused(str(error)) from None

    def refuse_unsigned(self, request: Request) -> None:
        """Where the router's signature is required: a request that has none of its headers. Those
        that it has are still to be read.

        Raises:
            MistakenError: 403, it has none.
        """
        if self.required and not any(header in request.headers for header in ROUTER_HEADERS):
            raise _refused(_MISSING)

    def check_sender(self, request: Request, body: bytes) -> None:
        """For a route that the router has no use for: where its signature is required, a request
        needs that of a tenant.

        Raises:
            MistakenError: 403, it is not signed, or was for another body.
        """
        tenant = self.read(request, TENANT_HEADER, verified_tenant)
        if tenant is not None:
            refuse_body({TENANT_HEADER: tenant.body_sha256 or ""}, body)
        elif self.required:
            raise _refused(_MISSING)


def refuse_body(digests: Mapping[str, str], body: bytes) -> None:
    """Raises MistakenError (403) for a body that was not signed; `digests`: its SHA-256 by each
    header that says one."""
    try:
        refuse_other_body(digests, body)
    except InvalidSignatureError as error:
        raise _refused(str(error)) from None


def _refused(message: str) -> MistakenError:
    return MistakenError(Mistake(403, INVALID_SIGNATURE, message))
