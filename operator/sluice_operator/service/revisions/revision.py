"""A revision of a service as an object: a ControllerRevision whose data is what its user asked for
and what a release of the operator decided for that. The data never changes, so nothing is decided
twice: engines and routers of a spec stay as they are under any release, and a spec that comes back
gets its former engines.

What is learnt later is an annotation that only the operator writes: whether the revision was
carried out, whether it was complete once, how far its canary is, and which engines were complete
last. A person's decision about the canary is another one, which the operator only reads.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pydantic.alias_generators import to_camel
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvBackend, KvTransfer

from sluice_operator.api.canonical import canonical
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.pool import EnginePoolSpec, ModelFetch, ModelImage
from sluice_operator.api.service import InferenceServiceSpec, Mode, mode_of, roles_of
from sluice_operator.delivery.resolved_model import spec_with_commit
from sluice_operator.kube.kinds import CONTROLLER_REVISION, DEPLOYMENT, Manifest, of_kind
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import DESIRED_HASH, HISTORY, Owner, digest, note_of
from sluice_operator.service.revisions.canary_state import FIRST_STEP, CanaryState, canary_state
from sluice_operator.service.revisions.parts import (
    TIMES,
    asked_of,
    engine_part,
    router_part,
    time_of,
    upgrade_of,
)
from sluice_operator.service.revisions.settings import Settings, settings_from

STATE: Final = f"{labels.GROUP}/state"
"""Annotation: what was learnt of a revision since it was made, as JSON."""
DECISION: Final = f"{labels.GROUP}/decision"
"""Annotation: a person's last decision about the revision's canary, as JSON."""
DECIDED: Final = ("image", "drainSeconds", "startupSeconds", "fetch", "modelImage", "metricsPort")
"""Fields of an EnginePool that have a default in each release of the operator."""


@dataclass(frozen=True)
class DecidedPool:
    """Decisions of a release about a pool."""

    fields: Manifest
    """The fields in `DECIDED` of the EnginePool."""
    file: str
    """Content of engine.json."""
    shown: Manifest
    """Settings of the pool with their sources, as status shows them."""
    queue: Mapping[str, str] = field(default_factory=dict)
    """Labels by which Kueue admits the pods."""
    engines: str = ""
    """Name of the engines' revision, which their Deployment and pods are labelled with."""

    @cached_property
    def settings(self) -> Settings:
        return settings_from(self.shown)

    def check(self) -> None:
        """Raises ValueError where this release does not know all of it."""
        if unknown := self.fields.keys() - set(DECIDED):
            raise ValueError(f"unknown: {', '.join(unknown)}")
        if image := self.fields.get("modelImage"):
            ModelImage.model_validate(image)
        _ = self.settings, self.fetch, self.backend

    @property
    def image(self) -> str:
        return str(self.fields["image"])

    @property
    def fetch(self) -> ModelFetch | None:
        """Download by each engine; None where it does none."""
        fetch = self.fields.get("fetch")
        return None if fetch is None else ModelFetch.model_validate(fetch)

    @property
    def backend(self) -> KvBackend | None:
        """Backend that carries the KV cache; None where nothing does."""
        transfer = json.loads(self.file).get("kvTransfer")
        return KvTransfer.model_validate(transfer).backend if transfer else None

    def applied_to(self, fresh: EnginePoolSpec) -> EnginePoolSpec:
        """`fresh` with what was decided."""
        own = {name: value for name, value in fresh.to_json_dict().items() if name not in DECIDED}
        return EnginePoolSpec.model_validate(own | self.fields)


@dataclass(frozen=True)
class DecidedRouter:
    """Decisions of a release about the routers."""

    image: str
    file: str
    """Content of router.json."""


@dataclass(frozen=True)
class State:
    """State of a revision, learnt since it was made."""

    carried_out: bool = False
    """All that makes pods was written."""
    complete: bool = False
    """All of it was ready once; `sluice rollout undo` goes back only to complete revisions."""
    stable: Mapping[str, str] = field(default_factory=dict)
    """Revision of the engines that were complete last, by role."""
    canary: CanaryState = FIRST_STEP
    spec: Manifest | None = None
    """Spec as carried out last, where numbers or other things that change no pod differ."""

    def to_json(self, number: int) -> str:
        """The annotation. It has the revision's number, too, so that an edit of that is seen."""
        written: Manifest = {"number": number}
        written |= {"stable": dict(self.stable)} if self.stable else {}
        written |= {"carriedOut": True} if self.carried_out else {}
        written |= {"complete": True} if self.complete else {}
        canary = self.canary.to_json_dict()
        written |= {"canary": canary} if canary else {}
        written |= {} if self.spec is None else {"spec": self.spec}
        return json.dumps(written, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Revision:
    """A user's spec, and the decisions about it."""

    name: str
    number: int
    """A greater one is newer; that of the revision in use is the greatest."""
    data: Manifest
    """All of it as it is stored, so that what another release has added stays."""
    state: State = State()
    made_at: str = ""
    decision: CanaryState = FIRST_STEP
    """A person's last decision about its canary, which only a person writes."""

    @property
    def canary(self) -> CanaryState:
        """How far its canary is, once the last decision about it is carried out."""
        return self.state.canary.after(self.decision)

    @property
    def made_of(self) -> Manifest:
        """The spec as its user wrote it, with the commit of its model."""
        spec: Manifest = self.data["spec"]
        return spec

    @property
    def spec(self) -> Manifest:
        """The spec as carried out last."""
        return self.made_of if self.state.spec is None else self.state.spec

    @cached_property
    def pools(self) -> Mapping[Role, DecidedPool]:
        return {Role(role): _pool_of(pool) for role, pool in self.data["pools"].items()}

    @property
    def engines(self) -> Mapping[Role, str]:
        """Name of the engines' revision, by role."""
        return {role: pool.engines for role, pool in self.pools.items()}

    @property
    def router(self) -> DecidedRouter:
        router = self.data["router"]
        return DecidedRouter(router["image"], router["file"])

    @cached_property
    def parsed(self) -> InferenceServiceSpec | None:
        """The spec that was resolved, as this release reads it; None if it would be refused."""
        try:
            return canonical(parse(InferenceServiceSpec, self.data["pinned"], "spec"))
        except InvalidSpecError:
            return None

    @cached_property
    def is_readable(self) -> bool:
        """Whether this release knows all that was decided."""
        try:
            for pool in self.pools.values():
                pool.check()
        except ValueError:
            return False
        return True

    def engine_part(self, role: Role) -> Manifest | None:
        """Spec of the engines of a role; None without such a pool."""
        if self.parsed is None or not self.is_readable or role not in self.parsed.roles:
            return None
        return engine_part(self.parsed, role) if role in self.pools else None

    def has_engines_of(self, spec: InferenceServiceSpec, role: Role, part: Manifest) -> bool:
        """Whether a pinned spec says the same of the engines of a role; `part`: what it says."""
        return self.engine_part(role) == part and self._has_release_of(spec, (role,))

    def _has_release_of(self, spec: InferenceServiceSpec, roles: Iterable[Role]) -> bool:
        """Whether a spec asks for no other release, and for the times that were decided. A time
        that only one of the two specs sets is compared with the decided time, or with this
        release's default."""
        assert self.parsed is not None
        if upgrade_of(spec) not in (None, upgrade_of(self.parsed)):
            return False
        for role in roles:
            now, before = spec.engine_of(role), self.parsed.engine_of(role)
            for name in TIMES:
                if getattr(now, name) is None and getattr(before, name) is None:
                    continue
                if time_of(now, name) != self.pools[role].fields[to_camel(name)]:
                    return False
        return True

    def is_of(self, spec: InferenceServiceSpec) -> bool:
        """Whether a pinned spec asks for the same pods."""
        if not self.is_readable or self.parsed is None or spec.roles != self.parsed.roles:
            return False
        if self.data["pinned"] != _dumped(spec) and _identity(self.parsed) != _identity(spec):
            return False
        return self._has_release_of(spec, spec.roles)

    def has_routers_of(self, spec: InferenceServiceSpec) -> bool:
        """Whether a pinned spec says the same of its routers, and asks for the same release and
        times: routers drain as long as engines."""
        if not self.is_readable or self.parsed is None or spec.roles != self.parsed.roles:
            return False
        same = router_part(self.parsed) == router_part(spec)
        return same and self._has_release_of(spec, spec.roles)

    def to_manifest(self, owner: Owner) -> Manifest:
        """The ControllerRevision."""
        head = owner.child(CONTROLLER_REVISION, self.name, HISTORY)
        manifest = head | {"revision": self.number, "data": self.data}
        notes = {STATE: self.state.to_json(self.number)}
        notes |= {DESIRED_HASH: digest([manifest, notes])}
        return manifest | {"metadata": manifest["metadata"] | {"annotations": notes}}


def as_written(service: Manifest) -> Manifest:
    """The spec of a service as its user wrote it, with the commit of its model; a pause is over
    when it is carried out."""
    return {key: value for key, value in spec_with_commit(service).items() if key != "paused"}


def new_revision(
    service: str,
    number: int,
    written: Manifest,
    pinned: InferenceServiceSpec,
    pools: Mapping[Role, DecidedPool],
    router: DecidedRouter,
) -> Revision:
    """A revision that was never carried out; `written`: the spec as its user wrote it. Its name is
    a hash of all of it, as its data can never be changed."""
    data = {
        "spec": written,
        "pinned": _dumped(pinned),
        "pools": {role.value: _pool_data(pool) for role, pool in pools.items()},
        "router": {"image": router.image, "file": router.file},
    }
    return Revision(f"{service}-{digest(data)}", number, data)


@dataclass(frozen=True)
class Revisions:
    """The revisions of a service that are kept, the newest last."""

    all: tuple[Revision, ...] = ()
    engines: frozenset[str] = frozenset()
    """Revisions of engines that are there."""
    reported: Mapping[str, str] = field(default_factory=dict)
    """Revisions of the engines that were complete last, by role, as the service's status says."""

    @property
    def newest_first(self) -> Iterator[Revision]:
        return reversed(self.all)

    @property
    def complete(self) -> list[Revision]:
        """Revisions that were complete once, the newest last."""
        return [revision for revision in self.all if revision.state.complete]

    @property
    def carried_out(self) -> Iterator[Revision]:
        """Revisions that were carried out, the newest first."""
        return (revision for revision in self.newest_first if revision.state.carried_out)

    def spec_with(self, roles: Collection[str]) -> InferenceServiceSpec | None:
        """The spec with pools of these roles that was carried out last."""
        for revision in self.carried_out:
            if set(roles) <= set(roles_of(mode_of(revision.spec))):
                with suppress(InvalidSpecError):  # of another release, or edited
                    return parse(InferenceServiceSpec, revision.spec, "spec")
        return None

    def router_of_other_mode(self, mode: Mode) -> DecidedRouter | None:
        """Decisions about the routers when the service was last in another mode; None without
        any."""
        others = (item for item in self.carried_out if mode_of(item.spec) != mode)
        return next((revision.router for revision in others), None)

    @property
    def stable(self) -> dict[Role, str]:
        """Revision of the engines that were complete last, by role: from the newest revision or, if
        its engines have gone or it was deleted, from the status."""
        newest = next(self.newest_first, None)
        stable = newest.state.stable if newest else self.reported
        if not self._are_there(stable) and self._are_there(self.reported):
            stable = self.reported
        return {Role(role): name for role, name in stable.items()}

    def canary_of(self, revision: Revision) -> CanaryState:
        """How far the canary of a revision is. It goes on in another revision of the same engines,
        as after a change of the routers, and begins anew in one that comes back."""
        newest = next(self.newest_first, None)
        if newest and newest.name == revision.name:
            return newest.canary
        decision = revision.decision.decision  # carried out when the revision was the newest
        if newest and newest.engines == revision.engines:
            return replace(newest.canary, decision=max(newest.canary.decision, decision))
        return CanaryState(decision=decision)

    def _are_there(self, names: Mapping[str, str]) -> bool:
        return bool(names) and self.engines.issuperset(names.values())

    @property
    def in_use(self) -> Iterator[DecidedPool]:
        """Decisions about engines that exist or are being made, the newest first."""
        for revision in filter(lambda revision: revision.is_readable, self.newest_first):
            for pool in revision.pools.values():
                if revision is self.all[-1] or pool.engines in self.engines:
                    yield pool

    @property
    def backend_in_use(self) -> KvBackend | None:
        """Backend that carries the KV cache between the existing engines."""
        return next((pool.backend for pool in self.in_use if pool.backend), None)

    @property
    def next_number(self) -> int:
        return max((revision.number for revision in self.all), default=0) + 1

    def of(self, spec: InferenceServiceSpec) -> Revision | None:
        """The revision of a pinned spec."""
        return next((revision for revision in self.newest_first if revision.is_of(spec)), None)


def revisions_of(children: tuple[Manifest, ...], status: Manifest | None = None) -> Revisions:
    """The revisions among the children of a service with this status."""
    items = (_read(item) for item in of_kind(children, CONTROLLER_REVISION))
    there = sorted(filter(None, items), key=lambda revision: (revision.number, revision.name))
    engines = frozenset(map(revision_of, of_kind(children, DEPLOYMENT)))
    rollout = (status or {}).get("rollout") or {}
    return Revisions(tuple(there), engines - {""}, rollout.get("stable") or {})


def _read(item: Manifest) -> Revision | None:
    """The revision that a ControllerRevision holds; None: it is none of the operator's."""
    name, made_at = item["metadata"]["name"], item["metadata"].get("creationTimestamp", "")
    noted = _noted(item, STATE)
    number = noted.get("number")
    if not isinstance(number, int):
        number = item["revision"]
    state, decision = _state_of(noted), canary_state(_noted(item, DECISION))
    revision = Revision(name, number, item.get("data") or {}, state, made_at, decision)
    try:
        is_ours = bool(revision.made_of and revision.data["pinned"] and revision.router.image)
        return revision if is_ours and revision.pools is not None else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _pool_data(pool: DecidedPool) -> Manifest:
    return {
        "fields": pool.fields,
        "file": pool.file,
        "settings": pool.shown,
        "queue": dict(pool.queue),
        "engines": pool.engines,
    }


def _pool_of(data: Manifest) -> DecidedPool:
    return DecidedPool(
        data["fields"], data["file"], data["settings"], data["queue"], data["engines"]
    )


def _noted(item: Manifest, name: str) -> Manifest:
    """Content of an annotation; empty where somebody has broken it, or there is none."""
    try:
        noted: object = json.loads(note_of(item, name))
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}


def _state_of(noted: Manifest) -> State:
    """State from the readable part of an annotation."""
    stable, spec = noted.get("stable"), noted.get("spec")
    names = stable if isinstance(stable, dict) else {}
    return State(
        carried_out=noted.get("carriedOut") is True,
        complete=noted.get("complete") is True,
        stable={role: str(name) for role, name in names.items() if role in set(Role)},
        canary=canary_state(noted.get("canary")),
        spec=spec if isinstance(spec, dict) else None,
    )


def _identity(spec: InferenceServiceSpec) -> Manifest:
    """Content that identifies a pinned spec's revision. It includes the seconds until a first
    engine comes, because routers read them although they depend on numbers of engines."""
    return {"asked": asked_of(spec), "waitForEngineSeconds": spec.wait_for_engine_seconds}


def _dumped(spec: InferenceServiceSpec) -> Manifest:
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
