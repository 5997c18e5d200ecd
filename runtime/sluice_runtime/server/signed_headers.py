"""Headers that only the service's router may set, and what they allow.

The router signs each header for one request. The headers name the engine that computes the prompt,
mark a private call, and name the tenant. A mixed engine serves anybody, a decode engine only
requests that the router has signed, a prefill engine none: no client can make a decode engine
connect to an address of its choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from fastapi import Request
from sluice_contract.cluster.labels import Role
from sluice_contract.http_errors import Mistake
from sluice_contract.wire.handover import (
    PREFILL_HEADER,
    InvalidSignatureError,
    Keys,
    Verified,
    refuse_other_body,
    verified_header,
)
from sluice_contract.wire.private_calls import PRIVATE_HEADER, verified_call
from sluice_contract.wire.tenants import TENANT_HEADER, TenantClaims, verified_tenant

from sluice_runtime.errors import InvalidRequestError, UnavailableError
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.fields import AnsweredRequest
from sluice_runtime.wire.messages import PrefillEngine

INVALID_SIGNATURE: Final = "invalid_signature"
WRONG_ROLE: Final = "wrong_role"
ROUTER_HEADERS: Final = (TENANT_HEADER, PRIVATE_HEADER, PREFILL_HEADER)
_MISSING: Final = (
    f"{TENANT_HEADER}: missing; allowed: as the service's router signs it, to which requests go"
)
_ONLY: Final = {
    Role.PREFILL: "this engine only computes prompts",
    Role.DECODE: "this engine only decodes",
}
SignedT = TypeVar("SignedT")
RequestT = TypeVar("RequestT", bound=AnsweredRequest)
Verify = Callable[[Sequence[bytes], str, str, str, float], Verified[SignedT]]
"""Returns what was signed, from keys, header, id and path of the request, and Unix time; or raises
InvalidSignatureError."""


class SignedHeaders(NamedTuple):
    """Content of the headers that the service's router has signed for one request."""

    prefill: PrefillEngine | None
    """The engine that computes its prompt."""
    private: bool
    """Whether it is a private call."""
    tenant: TenantClaims | None
    digests: dict[str, str]
    """SHA-256 that the body must have, by the header that names it."""

    @property
    def tenant_salt(self) -> str:
        """Salt that separates tenants; empty where none is named."""
        return "" if self.tenant is None else self.tenant.salt


@dataclass(frozen=True)
class SignatureCheck:
    """Verifies the router's signature. `keys`: None if there are none, and then no header is
    accepted. `required`: whether only signed requests are served."""

    unix_clock: Callable[[], float]
    keys: Keys | None = None
    required: bool = False

    def read(
        self, request: Request, header: str, verify: Verify[SignedT]
    ) -> Verified[SignedT] | None:
        """Signed content of a header of the router; None: the header is missing.

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
        """Where the router's signature is required: refuses a request that has none of its headers.
        Does not verify those that the request has.

        Raises:
            MistakenError: 403, it has none.
        """
        if self.required and not any(header in request.headers for header in ROUTER_HEADERS):
            raise _refused(_MISSING)

    def check_sender(self, request: Request, body: bytes) -> None:
        """Checks a request for a route that the router does not use: where its signature is
        required, a request needs that of a tenant.

        Raises:
            MistakenError: 403, it is not signed, or was for another body.
        """
        tenant = self.read(request, TENANT_HEADER, verified_tenant)
        if tenant is not None:
            refuse_body({TENANT_HEADER: tenant.body_sha256}, body)
        elif self.required:
            raise _refused(_MISSING)

    def check_private(self, request: Request, body: bytes) -> None:
        """Checks a request for a route that only the router uses.

        Raises:
            MistakenError: 403, it is not signed, or was for another body.
        """
        private = self.read(request, PRIVATE_HEADER, verified_call)
        if private is None:
            raise _refused(f"{PRIVATE_HEADER}: missing; allowed: as the service's router signs it")
        refuse_body({PRIVATE_HEADER: private.body_sha256}, body)


@dataclass(frozen=True)
class RoleCheck:
    """Says for each request which engine computes its prompt."""

    role: Role
    signatures: SignatureCheck

    def prefill_engine(self, request: Request) -> Verified[PrefillEngine] | None:
        """The engine that computes the prompt of this request; None: this one does.

        Raises:
            MistakenError: 400, such requests are not for this engine; 403, the header is not of
                this service's router.
            UnavailableError: the router has yet to learn that this is no decode engine any more.
        """
        is_named = PREFILL_HEADER in request.headers
        if self.role is Role.MIXED:
            if is_named:
                allowed = "not allowed; this engine computes prompts itself"
                raise MistakenError(Mistake(400, WRONG_ROLE, f"{PREFILL_HEADER}: {allowed}"))
            return None
        if self.role is Role.PREFILL and is_named:
            raise UnavailableError(f"{_ONLY[self.role]}, and decoded until a moment ago")
        if self.role is Role.PREFILL or not is_named:
            message = f"{_ONLY[self.role]}; requests go to the service's router"
            raise MistakenError(Mistake(400, WRONG_ROLE, message))
        signed = self.signatures.read(request, PREFILL_HEADER, verified_header)
        if signed is None:
            return None
        address = signed.content
        prefill = PrefillEngine(address.host, address.port, address.epoch, address.name)
        return Verified(prefill, signed.body_sha256)


def read_signed_headers(request: Request, role: RoleCheck) -> SignedHeaders:
    """Signed headers of a request for a route that generates.

    Raises:
        MistakenError: 400 or 403, this engine does not serve it; as `RoleCheck`, `SignatureCheck`.
    """
    signatures = role.signatures
    signatures.refuse_unsigned(request)
    prefill = role.prefill_engine(request)
    private = signatures.read(request, PRIVATE_HEADER, verified_call)
    tenant = signatures.read(request, TENANT_HEADER, verified_tenant)
    headers = {PREFILL_HEADER: prefill, PRIVATE_HEADER: private, TENANT_HEADER: tenant}
    return SignedHeaders(
        prefill.content if prefill else None,
        private is not None,
        tenant.content if tenant else None,
        {header: signed.body_sha256 for header, signed in headers.items() if signed is not None},
    )


def refuse_body(digests: Mapping[str, str], body: bytes) -> None:
    """Raises MistakenError (403) for a body that was not signed; `digests`: its SHA-256 by each
    header that names one."""
    if not digests:
        return
    try:
        refuse_other_body(digests, body)
    except InvalidSignatureError as error:
        raise _refused(str(error)) from None


def apply_tenant(request: RequestT, tenant: TenantClaims) -> RequestT:
    """The request with its tenant's priority, and cached prefixes that only this tenant shares. A
    salt of the client's own separates them further.

    Raises:
        InvalidRequestError: it asks for a higher priority than its tenant may.
    """
    priority, highest = request.priority, tenant.max_priority
    if priority is not None and priority > highest:
        raise InvalidRequestError(
            f"priority: {priority} is not allowed; allowed: at most {highest} with this API key",
            "priority",
        )
    update = {
        "priority": tenant.default_priority if priority is None else priority,
        "cache_salt": tenant.salt + (request.cache_salt or ""),
    }
    return request.model_copy(update=update)


def _refused(message: str) -> MistakenError:
    return MistakenError(Mistake(403, INVALID_SIGNATURE, message))
