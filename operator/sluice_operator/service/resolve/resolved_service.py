"""A spec with all that is decided for it, or its refusal. Pure: each spec is resolved once.

What earlier revisions decided stays, under any release of the operator; what this release would
change of it is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pydantic.alias_generators import to_camel
from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.sizing import resolved_values

from sluice_operator.accelerators.find import AcceleratorFinding, find_accelerator
from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.pool import EnginePoolSpec, ModelFetch, ModelImage
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.delivery.delivery import pod_fetch
from sluice_operator.delivery.image import model_image, nodes_mount_images
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.manifests.config_map import ENGINE_FILE, config_map
from sluice_operator.manifests.engine import revision
from sluice_operator.manifests.engine_pool import (
    QUEUE_LABELS,
    pool_spec,
    queue_labels,
    with_queue_labels,
)
from sluice_operator.manifests.metadata import ENGINE, Owner
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.resolve.model import fetcher_of
from sluice_operator.service.resolve.pools import FreshSettings, contradictions, fresh_settings
from sluice_operator.service.resolve.replicas import (
    Replicas,
    engines_instead,
    engines_left,
    first_engines,
    former_pools,
    plan_replicas,
)
from sluice_operator.service.resolve.router import decided_by_this_release
from sluice_operator.service.resolve.settings import HANDOVER_BACKEND, EngineFile, engine_file
from sluice_operator.service.revisions.choose import Kept, kept
from sluice_operator.service.revisions.revision import (
    DECIDED,
    DecidedPool,
    Revision,
    Revisions,
    as_written,
    new_revision,
    revisions_of,
)
from sluice_operator.service.revisions.settings import Settings, settings_status
from sluice_operator.validation.errors import Refusal, validation_errors

BY_ENGINE: Final = "the engine's choice"
"""Text for a setting that only the engine resolves."""


@dataclass(frozen=True)
class ResolvedPool:
    """A pool without its roll-out."""

    spec: EnginePoolSpec
    accelerator: AcceleratorFinding
    settings: Settings
    config_map: Manifest
    replicas: Replicas
    upgrade: tuple[str, ...] = ()
    """Changes that this release would make, in words."""


@dataclass(frozen=True)
class ResolvedService:
    """A spec without contradictions, and what was decided for it."""

    spec: InferenceServiceSpec
    pools: tuple[ResolvedPool, ...]
    revision: Revision
    revisions: Revisions
    """The service's revisions that are there."""


@dataclass(frozen=True)
class Resolution:
    """A pinned spec whose settings are resolved, or refused."""

    observed: ServiceObserved
    top: Owner
    spec: InferenceServiceSpec
    revisions: Revisions
    stays: Kept
    accelerators: Mapping[Role, AcceleratorFinding]
    settings: FreshSettings
    contradictions: tuple[Refusal, ...]
    """Settings that contradict each other."""

    @cached_property
    def refusals(self) -> tuple[Refusal, ...]:
        """All that is wrong with a spec that was not carried out before."""
        return validation_errors(self.spec, self.contradictions)

    def resolved(self) -> ResolvedService:
        """Resolved service of a spec without contradictions, once its model is there."""
        assert not self.contradictions
        pools, decided = list[ResolvedPool](), dict[Role, DecidedPool]()
        for role in self.spec.roles:
            planned = _Pool(self.observed, self.top, self.spec, role, self.accelerators)
            resolved, decided[role] = planned.resolved(self.stays.pools.get(role), self._file(role))
            pools.append(resolved)
        revision = self.stays.revision or self._new_revision(decided)
        return ResolvedService(self.spec, tuple(pools), revision, self.revisions)

    def _file(self, role: Role) -> EngineFile | ConfigError:
        """The engine's file as this release makes it, or why it cannot."""
        settings, accelerator = self.settings[role], self.accelerators[role].accelerator
        if isinstance(settings, ConfigError):
            return settings
        backend = self.revisions.backend_in_use
        return engine_file(self.spec, role, accelerator, settings, backend)

    def _new_revision(self, pools: Mapping[Role, DecidedPool]) -> Revision:
        ours = decided_by_this_release(self.observed.images, self.top, self.spec)
        written = as_written(self.observed.service)
        number, router = self.revisions.next_number, self.stays.router or ours
        return new_revision(self.top.service, number, written, self.spec, pools, router)


def resolve(observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec) -> Resolution:
    """The settings of a pinned spec, and what contradicts them."""
    revisions = revisions_of(observed.children, observed.service.get("status"))
    images = {
        role: spec.engine_of(role).image or observed.images.engine_of(spec.pool(role).accelerator)
        for role in spec.roles
    }
    stays = kept(revisions, spec, images)
    accelerators = {role: find_accelerator(spec.pool(role), observed.nodes) for role in spec.roles}
    fresh = fresh_settings(spec, accelerators, stays)
    wrong = tuple(contradictions(observed, spec, stays, fresh))
    return Resolution(observed, top, spec, revisions, stays, accelerators, fresh, wrong)


@dataclass(frozen=True)
class _Pool:
    """One pool of a spec that is being resolved."""

    observed: ServiceObserved
    top: Owner
    spec: InferenceServiceSpec
    role: Role
    accelerators: Mapping[Role, AcceleratorFinding]

    def resolved(
        self, former: DecidedPool | None, file: EngineFile | ConfigError
    ) -> tuple[ResolvedPool, DecidedPool]:
        """The pool, and what is decided about it: `former` where that stays. `file`: as this
        release makes it, or why it cannot."""
        queue = queue_labels(self.observed.service["metadata"].get("labels"))
        replicas = self._replicas()
        if former is None:
            assert isinstance(file, EngineFile)
            config = self._config_map(file.text)
            bare = self._bare(replicas, self._image(), config)
            made, settings = with_queue_labels(bare, queue), file.settings
            fields = made.to_json_dict()
            decided = DecidedPool(
                {name: fields[name] for name in DECIDED if name in fields},
                file.text,
                settings_status(settings),
                queue,
                revision(made),
            )
            return self._with(made, settings, config, replicas), decided
        config = self._config_map(former.file)
        bare = self._bare(replicas, self._image() or former.image, config)
        made = with_queue_labels(former.applied_to(bare), former.queue)
        if isinstance(file, ConfigError):
            upgrade: tuple[str, ...] = (f"pool {self.role} would be refused: {file}",)
        else:
            upgrade = tuple(_changes(made, with_queue_labels(bare, queue), file, former))
        return self._with(made, former.settings, config, replicas, upgrade), former

    def _with(
        self,
        made: EnginePoolSpec,
        settings: Settings,
        config: Manifest,
        replicas: Replicas,
        upgrade: tuple[str, ...] = (),
    ) -> ResolvedPool:
        accelerator = self.accelerators[self.role]
        return ResolvedPool(made, accelerator, settings, config, replicas, upgrade)

    def _bare(self, replicas: Replicas, image: str, config: Manifest) -> EnginePoolSpec:
        """The pool by this release's defaults, without labels for Kueue."""
        name, service = config["metadata"]["name"], self.top.service
        made = pool_spec(service, self.spec, self.role, replicas.count, image, name)
        return made.model_copy(update=self._model_source(self.spec.model))

    def _image(self) -> str:
        return self.observed.images.engine_of(self.spec.pool(self.role).accelerator)

    def _config_map(self, text: str) -> Manifest:
        return config_map(self.top, ENGINE_FILE, text, ENGINE, self.role)

    def _model_source(self, model: ModelSpec) -> dict[str, ModelFetch | ModelImage | None]:
        """Fields by which each engine downloads its model, or gets one that is an image."""
        observed = self.observed
        fetcher = fetcher_of(observed.images, observed.installation)
        mounted = observed.accepts_image_volumes and nodes_mount_images(observed.nodes)
        return {
            "fetch": pod_fetch(self.top.service, model, fetcher),
            "model_image": model_image(model, fetcher.image, mounted=mounted),
        }

    def _replicas(self) -> Replicas:
        pools = of_kind(self.observed.children, ENGINE_POOL)
        live = next((pool for pool in pools if pool["spec"]["role"] == self.role), None)
        return plan_replicas(self.spec, self.role, live, self._first_engines())

    def _first_engines(self) -> int:
        """The number of engines that the pool begins with. A scaled pool begins with at least as
        many as a deleted pool of its role has left. It also takes over the load of pools of another
        mode, so it begins with enough engines to replace these."""
        spec, role, there = self.spec, self.role, self.observed.children
        first = first_engines(spec, role, self.accelerators[role].accelerator)
        scaling = spec.pool(role).autoscaling
        if scaling is None:
            return first
        left = engines_left(there, self.top.service, role)
        first = max(first, min(left, scaling.max_replicas))
        former = former_pools(self.observed.service, there, spec)
        if not former:
            return first
        prefill = self.accelerators[spec.roles[0]].accelerator
        instead = engines_instead(spec, role, prefill, former)
        return max(first, min(instead, scaling.max_replicas))


def _changes(
    kept: EnginePoolSpec, fresh: EnginePoolSpec, file: EngineFile, decided: DecidedPool
) -> Iterator[str]:
    """Differences between the two, for a person."""
    names = ("image", "drain_seconds", "startup_seconds", "metrics_port")
    pairs = [(to_camel(name), getattr(kept, name), getattr(fresh, name)) for name in names]
    if kept.fetch and fresh.fetch:
        for name in ("image", "endpoint"):
            pair = (f"fetch.{name}", getattr(kept.fetch, name), getattr(fresh.fetch, name))
            pairs.append(pair)
        pairs.append(("fetch.network", str(kept.fetch.network), str(fresh.fetch.network)))
    if kept.model_image and fresh.model_image:
        for name in ("copier", "mounted"):
            old, new = getattr(kept.model_image, name), getattr(fresh.model_image, name)
            pairs.append((f"modelImage.{name}", old, new))
    pairs += [(f"label {name}", _label(kept, name), _label(fresh, name)) for name in QUEUE_LABELS]
    before, after = resolved_values(decided.settings), resolved_values(file.settings)
    # What carries the KV cache stays.
    for name in sorted((before.keys() | after.keys()) - {HANDOVER_BACKEND}):
        pair = (to_camel(name), before.get(name, BY_ENGINE), after.get(name, BY_ENGINE))
        pairs.append(pair)
    changes = [f"{name} {old} to {new}" for name, old, new in pairs if old != new]
    if not changes and file.text != decided.file:
        changes = ["the engine's file"]
    yield from (f"pool {fresh.role}: {change}" for change in changes)


def _label(spec: EnginePoolSpec, name: str) -> str:
    labels = (spec.template.labels if spec.template else None) or {}
    return labels.get(name, "none")
