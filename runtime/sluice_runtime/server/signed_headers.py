"""Verifies the headers that only the service's router may set.

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
"""A function of the keys, the header, the request's id and path, and the Unix time, that returns
the signed content or raises InvalidSignatureError."""


class SignedHeaders(NamedTuple):
    """Content of the headers that the service's router has signed for one request."""

    prefill: PrefillEngine | None
    """The engine that computes the request's prompt."""
    private: bool
    """Whether the request is a private call."""
    tenant: TenantClaims | None
    digests: dict[str, str]
    """SHA-256 of the body, by the header that has it; each must match the request's body."""

    @property
    def tenant_salt(self) -> str:
        """Salt that separates tenants' cached prefixes; empty if no tenant is named."""
        return "" if self.tenant is None else self.tenant.salt


@dataclass(frozen=True)
class SignatureCheck:
    """Verifies the router's signature. Without `keys` it accepts no such header. `required`:
    whether this engine serves only signed requests."""

    unix_clock: Callable[[], float]
    keys: Keys | None = None
    required: bool = False

    def read(
        self, request: Request, header: str, verify: Verify[SignedT]
    ) -> Verified[SignedT] | None:
        """Signed content of one of the router's headers; None: the request does not have it.

        Raises:
            MistakenError: 403, this service's router did not sign the header.
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
        """If the router's signature is required, refuses a request without any of the router's
        headers. Does not verify the headers.

        Raises:
            MistakenError: 403, the request has no such header.
        """
        if self.required and not any(header in request.headers for header in ROUTER_HEADERS):
            raise _refused(_MISSING)

    def check_sender(self, request: Request, body: bytes) -> None:
        """Checks a request's sender by the tenant's header, which must be valid if the request has
        it, and is required if this engine serves only signed requests.

        Raises:
            MistakenError: 403, it is not signed, or was for another body.
        """
        tenant = self.read(request, TENANT_HEADER, verified_tenant)
        if tenant is not None:
            refuse_body({TENANT_HEADER: tenant.body_sha256}, body)
        elif self.required:
            raise _refused(_MISSING)

    def check_private(self, request: Request, body: bytes) -> None:
        """Checks that the router sent a request for a route that only it may use.

        Raises:
            MistakenError: 403, it is not signed, or was for another body.
        """
        private = self.read(request, PRIVATE_HEADER, verified_call)
        if private is None:
            raise _refused(f"{PRIVATE_HEADER}: missing; allowed: as the service's router signs it")
        refuse_body({PRIVATE_HEADER: private.body_sha256}, body)


@dataclass(frozen=True)
class RoleCheck:
    """Decides, by this engine's role, which engine computes a request's prompt."""

    role: Role
    signatures: SignatureCheck

    def prefill_engine(self, request: Request) -> Verified[PrefillEngine] | None:
        """The prefill engine that computes the prompt of this request; None: this engine computes
        it.

        Raises:
            MistakenError: 400, an engine of this role does not serve this request; 403, this
                service's router did not sign the header.
            UnavailableError: the router took this engine for a decode engine, which it was until
                recently.
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
    """Verifies the signed headers of a request for a route that generates.

    Raises:
        MistakenError: 400 or 403, this engine does not serve the request; see `RoleCheck` and
            `SignatureCheck`.
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
    """Raises MistakenError (403) if the body is not the signed one. `digests`: as
    `SignedHeaders.digests`."""
    if not digests:
        return
    try:
        refuse_other_body(digests, body)
    except InvalidSignatureError as error:
        raise _refused(str(error)) from None


def apply_tenant(request: RequestT, tenant: TenantClaims) -> RequestT:
    """The request with its tenant's priority, and with a salt by which only this tenant shares its
    cached prefixes. The client's own salt, if it has one, separates them further.

    Raises:
        InvalidRequestError: the request asks for a higher priority than its tenant may have.
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
