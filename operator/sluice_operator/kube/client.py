"""Objects of the API server: get, list, apply, delete, and what the Lease and events need.

Writes name this operator as field manager. What to write is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from sluice_contract.cluster.labels import FIELD_MANAGER

from sluice_operator.kube.connection import APPLY, JSON_PATCH, Request, Response, Transport
from sluice_operator.kube.errors import (
    FORBIDDEN,
    NOT_FOUND,
    ApiError,
    Cause,
    ConflictError,
    FailedApplyError,
    NotFoundError,
    TerminatingNamespaceError,
    UnavailableError,
)
from sluice_operator.kube.kinds import Kind, Manifest, Reference

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
ONE_METADATA: Final = METADATA_ONLY.replace("List;", ";")
PAGE_ITEMS: Final = 100
NAMESPACE_TERMINATING: Final = "NamespaceTerminating"
"""The cause in the API server's refusal to create something in a namespace that is deleted."""

CountWrite = Callable[[str, str], None]
"""Called with verb and plural before every write request."""
Written = Callable[[Kind, Manifest], None]
"""Called with what the API server has made of an object that was written."""


def ignore_written(kind: Kind, result: Manifest) -> None:
    """Default of `written`, for callers that read the API server again."""


class ApiClient:
    """One method per verb. All raise `ApiError` or `UnavailableError`; `apply` raises
    `FailedApplyError` for a 5xx of the API server itself. `written` may be set later, by the store
    of what was written."""

    def __init__(self, transport: Transport, count_write: CountWrite) -> None:
        self._transport = transport
        self._count_write = count_write
        self.written: Written = ignore_written

    def certain(self) -> ApiClient:
        """A reader of the current state: this one."""
        return self

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """The object, or None when it does not exist."""
        try:
            return await self._send(Request("GET", path(kind, namespace, name)))
        except NotFoundError:
            return None

    async def list_objects(
        self, kind: Kind, namespace: str | None, label_selector: str = ""
    ) -> tuple[Manifest, ...]:
        """Every object of `kind` that matches, in all namespaces when `namespace` is None."""
        items = [
            {"apiVersion": kind.api_version, "kind": kind.kind, **item}
            async for items, _ in self.pages(kind, namespace, label_selector)
            for item in items
        ]
        return tuple(items)

    async def list_with_version(
        self, kind: Kind, part: Callable[[Manifest], Manifest]
    ) -> tuple[list[Manifest], str]:
        """The `part` of every object of a cluster-wide `kind`, and the version to watch from."""
        parts: list[Manifest] = []
        version = ""
        async for items, listed_at in self.pages(kind, None):
            version = listed_at
            parts += map(part, items)
        return parts, version

    async def list_kinds(
        self, kinds: Iterable[Kind], namespace: str, label_selector: str
    ) -> tuple[Manifest, ...]:
        """Every object of each of `kinds` that matches, read at the same time."""
        listings = (self.list_objects(kind, namespace, label_selector) for kind in kinds)
        return tuple(item for items in await asyncio.gather(*listings) for item in items)

    async def apply(
        self,
        kind: Kind,
        manifest: Manifest,
        subresource: str = "",
        manager: str = FIELD_MANAGER,
        *,
        force: bool = True,
    ) -> Manifest:
        """Server-side apply of all that `manager` wants of an object. Fields to which others have
        given other values are taken over, or, without `force`, a `ConflictError`."""
        metadata = manifest["metadata"]
        self._count_write("apply", kind.plural)
        result = await self._send(
            Request(
                "PATCH",
                path(kind, metadata.get("namespace"), metadata["name"], subresource),
                {
                    "fieldManager": manager,
                    "force": "true" if force else "false",
                    "fieldValidation": "Strict",
                },
                manifest,
                APPLY,
            )
        )
        self.written(kind, result)
        return result

    async def patch(
        self, kind: Kind, live: Manifest, operations: list[dict[str, Any]], manager: str
    ) -> Manifest:
        """A JSON patch of the object, as field manager `manager`."""
        metadata = live["metadata"]
        self._count_write("patch", kind.plural)
        target = path(kind, metadata["namespace"], metadata["name"])
        query = {"fieldManager": manager}
        result = await self._send(Request("PATCH", target, query, operations, JSON_PATCH))
        self.written(kind, result)
        return result

    async def patch_unread(
        self, kind: Kind, namespace: str, name: str, operations: list[dict[str, Any]]
    ) -> None:
        """Applies a JSON patch to an object that was not read; the answer has only metadata."""
        self._count_write("patch", kind.plural)
        target, query = path(kind, namespace, name), {"fieldManager": FIELD_MANAGER}
        request = Request("PATCH", target, query, operations, JSON_PATCH, ONE_METADATA)
        await self._send(request)

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Creates the object; `ConflictError` when there is one already."""
        self._count_write("create", kind.plural)
        collection = path(kind, manifest["metadata"]["namespace"])
        query = {"fieldManager": FIELD_MANAGER}
        return await self._send(Request("POST", collection, query, manifest))

    async def would_create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """The object that `create` would return, by a dry run that creates nothing. Raises as
        `create`."""
        collection = path(kind, manifest["metadata"]["namespace"])
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All"}
        return await self._send(Request("POST", collection, query, manifest))

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Compare and swap: `ConflictError` unless `resourceVersion` is still the current one."""
        metadata = manifest["metadata"]
        self._count_write("update", kind.plural)
        target = path(kind, metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER}
        return await self._send(Request("PUT", target, query, manifest))

    async def delete(self, reference: Reference) -> None:
        """Deletes the object if it still has the reference's uid."""
        self._count_write("delete", reference.kind.plural)
        target = path(reference.kind, reference.namespace, reference.name)
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if reference.uid is not None:
            options["preconditions"] = {"uid": reference.uid}
        try:
            await self._send(Request("DELETE", target, body=options))
        except NotFoundError:
            return

    async def serves(self, kind: Kind) -> bool:
        """Whether `kind`, of a named group, is served according to both discovery documents (the
        index of groups lags behind)."""
        group = kind.api_version.partition("/")[0]
        index = await self._send(Request("GET", "/apis"))
        if all(entry["name"] != group for entry in index["groups"]):
            return False
        try:
            listing = await self._send(Request("GET", _group_path(kind)))
        except NotFoundError:
            return False
        return any(resource["name"] == kind.plural for resource in listing["resources"])

    async def may_list(self, kind: Kind, namespace: str | None) -> bool:
        """Whether the operator may list a kind; found out by listing one object."""
        try:
            await self.version_of_list(kind, namespace)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return False
        return True

    async def version_of_list(self, kind: Kind, namespace: str | None) -> str:
        """The version from which a watch would begin now."""
        page = await self._send(Request("GET", path(kind, namespace), {"limit": "1"}))
        return str(page.get("metadata", {}).get("resourceVersion", ""))

    async def pages(
        self,
        kind: Kind,
        namespace: str | None,
        label_selector: str = "",
        *,
        metadata_only: bool = False,
    ) -> AsyncIterator[tuple[list[Manifest], str]]:
        """What a listing holds, some hundred objects at a time, each time with its version."""
        accept = METADATA_ONLY if metadata_only else "application/json"
        query = {"limit": str(PAGE_ITEMS)}
        if label_selector:
            query["labelSelector"] = label_selector
        while True:
            request = Request("GET", path(kind, namespace), query, accept=accept)
            page = await self._send(request)
            metadata = page["metadata"]
            # null where a list of metadata is empty
            yield page["items"] or [], metadata.get("resourceVersion", "")
            if not (token := metadata.get("continue")):
                return
            query = {**query, "continue": token}

    async def _send(self, request: Request) -> Manifest:
        response = await self._transport.send(request)
        if response.status < 300:
            assert isinstance(response.body, dict)
            return response.body
        raise _error(request, response)


def path(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """The URL path of a collection, an object or a subresource."""
    parts = [_group_path(kind)]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (kind.plural, name, subresource) if part]
    return "/".join(parts)


def _group_path(kind: Kind) -> str:
    root = "/apis" if "/" in kind.api_version else "/api"
    return f"{root}/{kind.api_version}"


def _error(request: Request, response: Response) -> Exception:
    status = response.body if isinstance(response.body, dict) else {}
    reason, message = status.get("reason", ""), status.get("message", "")
    kinds: dict[int, type[ApiError]] = {404: NotFoundError, 409: ConflictError}
    failure = kinds.get(response.status, ApiError)
    causes = _causes(status)
    if _ends_namespace(response.status, status, causes):
        failure = TerminatingNamespaceError
    refusal = failure(str(request), response.status, reason, message, causes)
    if response.status >= 500 and request.content_type == APPLY and status:
        return FailedApplyError(refusal, response.retry_after_seconds)
    if response.status == 429 or response.status >= 500:
        cause = f"{response.status} {reason}: {message}"
        return UnavailableError(str(request), cause, response.retry_after_seconds)
    return refusal


def _ends_namespace(code: int, status: Manifest, causes: tuple[Cause, ...]) -> bool:
    """Whether the answer to a creation says that its namespace is being deleted, or is gone."""
    if code == FORBIDDEN:
        return any(cause.reason == NAMESPACE_TERMINATING for cause in causes)
    return code == NOT_FOUND and (status.get("details") or {}).get("kind") == "namespaces"


def _causes(status: Manifest) -> tuple[Cause, ...]:
    causes = (status.get("details") or {}).get("causes") or ()
    return tuple(Cause(cause.get("reason", ""), cause.get("field", "")) for cause in causes)
