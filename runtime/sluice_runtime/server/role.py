"""What an engine's role allows on the routes that generate: a mixed engine serves anybody, a decode
engine the service's router, a prefill engine nobody.

A decode engine takes a request only with the router's signature for it, so that no client can make
it connect anywhere. Knows no route.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fastapi import Request
from sluice_contract.cluster.labels import Role
from sluice_contract.http_errors import Mistake
from sluice_contract.wire.handover import PREFILL_HEADER, Verified, verified_header

from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.signatures import SignatureCheck
from sluice_runtime.wire.messages import PrefillEngine

WRONG_ROLE: Final = "wrong_role"
_ONLY: Final = {
    Role.PREFILL: "this engine only computes prompts",
    Role.DECODE: "this engine only decodes",
}


@dataclass(frozen=True)
class RoleCheck:
    """Says for each request which engine computes its prompt."""

    role: Role
    signatures: SignatureCheck

    def prefill_of(self, request: Request) -> Verified[PrefillEngine] | None:
        """The engine that computes the prompt of this request; None: this one does.

        Raises:
            MistakenError: 400, such requests are not for this engine; 403, the header is not of
                this service's router.
        """
        is_named = PREFILL_HEADER in request.headers
        if self.role is Role.MIXED:
            if is_named:
                allowed = "not allowed; this engine computes prompts itself"
                raise MistakenError(Mistake(400, WRONG_ROLE, f"{PREFILL_HEADER}: {allowed}"))
            return None
        if self.role is Role.PREFILL or not is_named:
            message = f"{_ONLY[self.role]}; requests go to the service's router"
            raise MistakenError(Mistake(400, WRONG_ROLE, message))
        signed = self.signatures.read(request, PREFILL_HEADER, verified_header)
        if signed is None:
            return None
        named = signed.content
        prefill = PrefillEngine(named.host, named.port, named.epoch, named.name)
        return Verified(prefill, signed.body_sha256)
