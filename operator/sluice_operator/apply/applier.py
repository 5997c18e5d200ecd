"""Carries out a plan: server-side apply of what differs, then deletion of what is left over.

A refused write does not stop later writes, unless they would do harm without it: see
`_Run.holds_back`. The applier reports what it wrote; the plan decides what should exist.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluice_contract.cluster.labels import FIELD_MANAGER

from sluice_operator.apply.key_secrets import KeySecrets, RandomBytes
from sluice_operator.apply.plan import (
    REPLICAS_MANAGER,
    Adoption,
    Identity,
    Overwritten,
    Plan,
    identity,
    is_less,
)
from sluice_operator.apply.rewrites import Rewrites, RewrittenError
from sluice_operator.apply.ssa_diff import is_applied, owned_fields
from sluice_operator.apply.ssa_list_conflicts import (
    REPAIR_MANAGER,
    JsonPatch,
    list_replacements,
    ownership_removal,
)
from sluice_operator.clock import Clock, sooner
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import (
    ApiError,
    ConflictError,
    FailedApplyError,
    NotFoundError,
    RequestError,
    TerminatingNamespaceError,
    UnavailableError,
)
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    OPTIONAL_CHILDREN,
    PERSISTENT_VOLUME_CLAIM,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    SERVICE_CHILDREN,
    Manifest,
)
from sluice_operator.manifests.pods import mounted_secrets

REMEMBERED_OBJECTS: Final = 100_000
WRITTEN: Final = {
    (kind.api_version, kind.kind): kind
    for kind in (*SERVICE_CHILDREN, *OPTIONAL_CHILDREN, INFERENCE_SERVICE)
}
"""The kinds that are applied, by apiVersion and kind."""


_MAKE_PODS: Final = frozenset({DEPLOYMENT.kind, ENGINE_POOL.kind})
_PODS_NEED: Final = frozenset(
    kind.kind
    for kind in (CONFIG_MAP, SECRET, SERVICE_ACCOUNT, PERSISTENT_VOLUME_CLAIM, NETWORK_POLICY)
)
"""Kinds without which pods do not start or, without a NetworkPolicy, would be open to everyone."""
_OPTIONAL: Final = frozenset(kind.kind for kind in OPTIONAL_CHILDREN)


class Refused(NamedTuple):
    """One write of a plan that the API server refuses: a quota, policy or edit is in the way, and a
    person has to clear it. A failure that lasts counts too."""

    of: Identity
    error: ApiError | RewrittenError
    passing: RequestError | None = None
    """The error, if it may pass by itself; it is then reported only if it lasts."""
    is_record: bool = False
    """The object is the plan's record."""

    @property
    def is_rewritten(self) -> bool:
        """Whether another manager is in the way, and not the API server."""
        return isinstance(self.error, RewrittenError)

    @property
    def is_optional(self) -> bool:
        """Whether routers and engines work without the object."""
        return self.is_record or self.of.kind in _OPTIONAL

    @property
    def keeps_pods(self) -> bool:
        """Whether pods stay as they are because of this refusal."""
        return (
            not (self.is_optional or self.is_rewritten) and self.of.kind in _MAKE_PODS | _PODS_NEED
        )


@dataclass(frozen=True)
class ApplyOutcome:
    """The outcome of carrying out a plan."""

    refused: tuple[Refused, ...] = ()
    """Refused objects, in the order of the plan."""
    overwritten: tuple[Overwritten, ...] = ()
    """Existing objects that were changed."""
    unwritten: frozenset[Identity] = frozenset()
    """Objects that are not as planned: refused or held back."""
    is_decided: bool = False
    """Whether the plan's `decided` is written."""
    interrupted: RequestError | None = None
    """The API server does not answer, so the rest was not tried. Raise it after the events about
    overwritten edits are recorded."""
    rewritten: tuple[Refused, ...] = ()
    """Objects whose fields others write repeatedly."""
    look_again_seconds: float | None = None
    """Seconds until a repair that waits is due, or until `rewritten` may have changed."""
    again: RequestError | None = None
    """Set: not all was carried out. To be raised once the status is written."""


class _Run:
    """The outcome of a plan so far."""

    def __init__(self, children: Iterable[Manifest]) -> None:
        self.there = {identity(child): child for child in children}
        self.refused: list[Refused] = []
        self.overwritten: list[Overwritten] = []
        self.unwritten: set[Identity] = set()
        self.is_decided = False
        self.record: Identity | None = None
        self.rewritten: list[Refused] = []
        self.look_again_seconds: float | None = None

    @contextmanager
    def collecting(self, of: Identity) -> Iterator[None]:
        """Records a refusal raised in the block; it is about the object `of`."""
        try:
            yield
        except TerminatingNamespaceError:
            raise
        except RewrittenError as error:
            self.unwritten.add(of)
            self.look_again(error.again_seconds)
        except FailedApplyError as error:
            self._note(Refused(of, error.refusal, error))
        except ConflictError as error:
            self._note(Refused(of, error, error))
        except ApiError as error:
            self._note(Refused(of, error))

    def look_again(self, seconds: float) -> None:
        """Asks for another look after that many seconds, or sooner."""
        self.look_again_seconds = sooner(self.look_again_seconds, seconds)

    def _note(self, refused: Refused) -> None:
        is_record = refused.of == self.record
        self.refused.append(refused._replace(is_record=is_record))
        if not is_record:
            self.unwritten.add(refused.of)

    def holds_back(self, desired: Manifest) -> bool:
        """Whether `desired` has to wait: the new owner of its replicas has not taken them over; its
        pods lack what they need; it binds a refused role; or it would end pods whose replacement
        was refused."""
        of = identity(desired)
        live = self.there.get(of)
        waits = (
            of in self.unwritten
            or (of.kind in _MAKE_PODS and self._lacks_what_pods_need())
            or (of.kind == ROLE_BINDING.kind and self.is_behind(ROLE.kind))
            or (live is not None and self.is_behind(of.kind) and is_less(desired, live))
        )
        if waits:
            self.unwritten.add(of)
        return waits

    def _lacks_what_pods_need(self) -> bool:
        return any(
            refusal.of.kind in _PODS_NEED
            and refusal.of not in self.there
            and not self._is_used(refusal.of)
            for refusal in self.refused
        )

    def _is_used(self, of: Identity) -> bool:
        """Whether pods were made that need the object, a Secret. The Secret then exists, although
        it is never read; a full quota refuses to create even an existing object."""
        deployments = (item for its, item in self.there.items() if its.kind == DEPLOYMENT.kind)
        return of.kind == SECRET.kind and any(of.name in mounted_secrets(d) for d in deployments)

    def is_behind(self, kind: str) -> bool:
        """Whether an object of this kind is not as planned."""
        return any(of.kind == kind for of in self.unwritten)


class Applier:
    """Writes only what differs.

    The server may store an object differently from what was sent (a webhook, an unusual spelling),
    and a comparison would then differ every time. For such objects the applier remembers what it
    sent and what was stored. It sends again only when either changes.
    """

    def __init__(
        self, client: ApiClient, clock: Clock, random_bytes: RandomBytes = secrets.token_bytes
    ) -> None:
        self._client = client
        self._rewrites = Rewrites(clock)
        self._key_secrets = KeySecrets(client, clock, random_bytes)
        self._altered: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def carry_out(self, plan: Plan, children: Iterable[Manifest]) -> ApplyOutcome:
        """Makes the plan's objects what they should be; `children` are the live ones.

        Raises:
            TerminatingNamespaceError: the namespace is being deleted with all its objects.
        """
        run, interrupted = _Run(children), None
        try:
            await self._write(plan, run)
        except UnavailableError as error:
            interrupted = error
        return ApplyOutcome(
            tuple(run.refused),
            tuple(run.overwritten),
            frozenset(run.unwritten),
            run.is_decided,
            interrupted,
            tuple(run.rewritten),
            run.look_again_seconds,
        )

    async def _write(self, plan: Plan, run: _Run) -> None:
        for secret in plan.secrets:
            with run.collecting(identity(secret.manifest)):
                wait_seconds = await self._key_secrets.create(secret)
                run.look_again_seconds = sooner(run.look_again_seconds, wait_seconds)
        if plan.decided is not None:
            run.record = identity(plan.decided)
            run.is_decided = await self._apply_planned(plan.decided, run)
        for manifest in plan.take_over:
            with run.collecting(identity(manifest)):
                await self._hand_over(manifest)
        for desired in plan.apply:
            if not run.holds_back(desired):
                await self._apply_planned(desired, run, plan.paths.get(identity(desired)))
        for adoption in plan.adopt:
            with run.collecting(identity(adoption.live)):
                await self._adopt(adoption)
        if plan.record is not None and not any(map(run.is_behind, _MAKE_PODS)):
            run.record = identity(plan.record)
            await self._apply_planned(plan.record, run)
        for manifest in plan.let_go:
            if identity(manifest) not in run.unwritten:
                with run.collecting(identity(manifest)):
                    await self._hand_over(manifest)
        for reference in plan.prune:
            # An object that is not as planned may be the replacement of this one.
            if not run.is_behind(reference.kind.kind):
                with run.collecting(Identity(reference.kind.kind, reference.name)):
                    await self._client.delete(reference)

    async def _apply_planned(
        self, desired: Manifest, run: _Run, paths: Mapping[str, str] | None = None
    ) -> bool:
        """Whether the object is as planned now."""
        live, is_written = run.there.get(identity(desired)), False
        with run.collecting(identity(desired)):
            result = await self.apply(desired, live)
            if live is not None and result is not None and _version(result) != _version(live):
                run.overwritten.append(Overwritten(desired, live, paths or {}))
            if result is not None:
                run.there[identity(desired)] = result
            is_written = True
        if live is not None and (error := self._rewrites.lasting(live)) is not None:
            run.rewritten.append(Refused(identity(desired), error))
            run.look_again(error.again_seconds)
        return is_written

    async def _adopt(self, adoption: Adoption) -> None:
        """Writes the owner references of an object as it was read: a `ConflictError` if it has
        changed since. With server-side apply, a controller that is gone would have to be removed
        first."""
        live = adoption.live
        kind = WRITTEN[live["apiVersion"], live["kind"]]
        with suppress(NotFoundError):
            await self._client.patch(kind, live, adoption_patch(adoption), FIELD_MANAGER)

    async def _hand_over(self, manifest: Manifest) -> None:
        """Takes over fields without force. A value that has changed since it was read belongs to
        somebody else: the write conflicts, and the object is read again."""
        kind = WRITTEN[manifest["apiVersion"], manifest["kind"]]
        await self._client.apply(kind, manifest, manager=REPLICAS_MANAGER, force=False)

    async def apply(
        self, desired: Manifest, live: Manifest | None, subresource: str = ""
    ) -> Manifest | None:
        """Applies `desired` if `live` differs from it; the result, or None when nothing did.

        Raises:
            RewrittenError: others write the same field, and the next repair has to wait.
        """
        if live is not None and self._is_current(desired, live, subresource):
            return None
        if live is not None:
            self._rewrites.hold_back(desired, live, subresource)
        kind = WRITTEN[desired["apiVersion"], desired["kind"]]
        try:
            result = await self._client.apply(kind, desired, subresource)
        except ApiError as error:
            if live is None or not await self._replace_conflicting_lists(desired, live, error):
                raise
            result = await self._client.apply(kind, desired, subresource)
        self._note_alteration(desired, result, subresource)
        if live is not None:
            self._rewrites.note_applied(desired, live, subresource)
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


def adoption_patch(adoption: Adoption) -> JsonPatch:
    """The JSON patch of an adoption, for the version of the object that was read."""
    version = _version(adoption.live)
    return [
        {"op": "add", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/metadata/ownerReferences", "value": list(adoption.owners)},
    ]


def _version(item: Manifest) -> str | None:
    version: str | None = item["metadata"].get("resourceVersion")
    return version


def _fingerprint(desired: Manifest, live: Manifest, subresource: str) -> str:
    owned = owned_fields(live, FIELD_MANAGER, subresource)
    return f"{_digest(desired)} {_digest(owned)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
