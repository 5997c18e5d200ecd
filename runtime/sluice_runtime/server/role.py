"""What an engine's role allows on the routes that generate: a mixed engine serves anybody, a decode
engine the service's router, a prefill engine nobody.

A decode engine takes a request only with the router's signature for it, so that no client can make
it connect anywhere. Knows no route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from sluice_contract.handover import PREFILL_HEADER, InvalidSignatureError, verified_header
from sluice_contract.http_errors import Mistake
from sluice_contract.labels import Role

from sluice_runtime.messages import PrefillEngine
from sluice_runtime.server.failures import MistakenError

WRONG_ROLE: Final = "wrong_role"
INVALID_SIGNATURE: Final = "invalid_signature"
_ONLY: Final = {
    Role.PREFILL: "this engine only computes prompts",
    Role.DECODE: "this engine only decodes",
}


@dataclass(frozen=True)
class RoleCheck:
    """Says for each request which engine computes its prompt. `key`: of a decode engine."""

    role: Role
    unix_clock: Callable[[], float]
    key: bytes | None = None

    def prefill_of(self, request: Request) -> PrefillEngine | None:
        """The engine that computes the prompt of this request; None: this one does.

        Raises:
            MistakenError: 400, such requests are not for this engine; 403, the header is not of
                this service's router.
        """
        value = request.headers.get(PREFILL_HEADER)
        if self.role is Role.MIXED:
            if value is not None:
                allowed = "not allowed; this engine computes prompts itself"
                raise MistakenError(Mistake(400, WRONG_ROLE, f"{PREFILL_HEADER}: {allowed}"))
            return None
        if self.role is Role.PREFILL or value is None:
            message = f"{_ONLY[self.role]}; requests go to the service's router"
            raise MistakenError(Mistake(400, WRONG_ROLE, message))
        return self._verified(value, request.state.request_id)

    def _verified(self, value: str, request_id: str) -> PrefillEngine:
        assert self.key is not None, "read at start"
        try:
            named = verified_header(self.key, value, request_id, self.unix_clock())
        except InvalidSignatureError as error:
            raise MistakenError(Mistake(403, INVALID_SIGNATURE, str(error))) from None
        return PrefillEngine(named.host, named.port, named.epoch, named.name)
