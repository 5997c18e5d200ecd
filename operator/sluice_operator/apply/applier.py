"""Carries a plan out: server-side apply of what differs, then deletion of what is left over.

Says what it wrote. Knows no kind in particular, and decides nothing about what should be there.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.labels import FIELD_MANAGER

from sluice_operator.apply.key_secrets import KeySecrets, RandomBytes
from sluice_operator.apply.plan import REPLICAS_MANAGER, Overwritten, Plan
from sluice_operator.apply.ssa_diff import is_applied, owned_fields
from sluice_operator.apply.ssa_list_conflicts import (
    REPAIR_MANAGER,
    list_replacements,
    ownership_removal,
)
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import ApiError, ConflictError, RequestError, UnavailableError
from sluice_operator.kube.kinds import (
    INFERENCE_SERVICE,
    OPTIONAL_CHILDREN,
    SERVICE_CHILDREN,
    Manifest,
)

REMEMBERED_OBJECTS: Final = 100_000
WRITTEN: Final = {
    (kind.api_version, kind.kind): kind
    for kind in (*SERVICE_CHILDREN, *OPTIONAL_CHILDREN, INFERENCE_SERVICE)
}
"""The kinds that are applied, by what a manifest says of itself."""


@dataclass(frozen=True)
class Address:
    """Names one object within a namespace."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True)
class Outcome:
    """What came of carrying a plan out."""

    refused: ApiError | None = None
    """The refusal that has stopped it: somebody's quota, policy or edit is in the way, and only a
    person can clear it. Also a failure of the API server that lasts."""
    overwritten: tuple[Overwritten, ...] = ()
    """The objects that were there and are different now."""
    interrupted: RequestError | None = None
    """The trouble that has stopped it half-way, and that passes by itself: to be raised, once what
    was overwritten before is told."""


class Applier:
    """Writes only what differs. Without memory, but for objects that the server stores otherwise
    than they were sent (a webhook, an unusual spelling): comparing says "differs" there each time,
    so what was sent and what became of it is kept, and is sent again only when either changes."""

    def __init__(self, client: ApiClient, random_bytes: RandomBytes = secrets.token_bytes) -> None:
        self._client = client
        self._key_secrets = KeySecrets(client, random_bytes)
        self._altered: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def carry_out(self, plan: Plan, children: Iterable[Manifest]) -> Outcome:
        """Makes the plan's objects what they should be; `children` are the live ones."""
        overwritten: list[Overwritten] = []
        try:
            await self._write(plan, children, overwritten)
        except (ConflictError, UnavailableError) as error:
            return Outcome(None, tuple(overwritten), interrupted=error)
        except ApiError as error:
            return Outcome(error, tuple(overwritten))
        return Outcome(None, tuple(overwritten))

    async def _write(
        self, plan: Plan, children: Iterable[Manifest], overwritten: list[Overwritten]
    ) -> None:
        there = {address(child): child for child in children}
        await self._key_secrets.create(plan.secrets)
        await self._hand_over(plan.take_over)
        for desired in plan.apply:
            live = there.get(address(desired))
            result = await self.apply(desired, live)
            if live is not None and result is not None and _version(result) != _version(live):
                overwritten.append(Overwritten(desired, live))
        await self._hand_over(plan.let_go)
        for reference in plan.prune:
            await self._client.delete(reference)

    async def _hand_over(self, manifests: tuple[Manifest, ...]) -> None:
        """Not by force: a value that has changed since it was read is another's, and looked at
        again."""
        for manifest in manifests:
            kind = WRITTEN[manifest["apiVersion"], manifest["kind"]]
            await self._client.apply(kind, manifest, manager=REPLICAS_MANAGER, force=False)

    async def apply(
        self, desired: Manifest, live: Manifest | None, subresource: str = ""
    ) -> Manifest | None:
        """Applies `desired` if `live` differs from it; the result, or None when nothing did."""
        if live is not None and self._is_current(desired, live, subresource):
            return None
        kind = WRITTEN[desired["apiVersion"], desired["kind"]]
        try:
            result = await self._client.apply(kind, desired, subresource)
        except ApiError as error:
            if live is None or not await self._replace_conflicting_lists(desired, live, error):
                raise
            result = await self._client.apply(kind, desired, subresource)
        self._note_alteration(desired, result, subresource)
        return result

    async def _replace_conflicting_lists(
        self, desired: Manifest, live: Manifest, error: ApiError
    ) -> bool:
        """Replaces lists to which others have added items that conflict with ours; False when
        `error` is about something else."""
        replacements = list_replacements(desired, live, error.causes)
        if not replacements:
            return False
        kind = WRITTEN[desired["apiVersion"], desired["kind"]]
        result = await self._client.patch(kind, live, replacements, REPAIR_MANAGER)
        await self._client.patch(kind, live, ownership_removal(result), REPAIR_MANAGER)
        return True

    def _is_current(self, desired: Manifest, live: Manifest, subresource: str) -> bool:
        if is_applied(desired, live, FIELD_MANAGER, subresource):
            return True
        kept = self._altered.get((live["metadata"]["uid"], subresource))
        return kept is not None and kept == _fingerprint(desired, live, subresource)

    def _note_alteration(self, desired: Manifest, result: Manifest, subresource: str) -> None:
        key = (result["metadata"]["uid"], subresource)
        self._altered.pop(key, None)
        if not is_applied(desired, result, FIELD_MANAGER, subresource):
            self._altered[key] = _fingerprint(desired, result, subresource)
            if len(self._altered) > REMEMBERED_OBJECTS:
                self._altered.popitem(last=False)


def address(manifest: Manifest) -> Address:
    """The address of an object."""
    return Address(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])


def _version(item: Manifest) -> str | None:
    found: str | None = item["metadata"].get("resourceVersion")
    return found


def _fingerprint(desired: Manifest, live: Manifest, subresource: str) -> str:
    owned = owned_fields(live, FIELD_MANAGER, subresource)
    return f"{_digest(desired)} {_digest(owned)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
