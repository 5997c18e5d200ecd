"""One pool of a service: resolved by this release of the operator, or as another one resolved
the same inputs. Pure. Also lists what this release would change of a pool that stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic.alias_generators import to_camel
from sluice_contract.base import ConfigError
from sluice_contract.cluster import ports
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvTransfer, wire_error
from sluice_contract.config.sizing import Value, resolved_values
from sluice_contract.http_errors import shown_json

from sluice_operator.accelerators.find import AcceleratorFinding, find_accelerator
from sluice_operator.accelerators.node_requirements import is_nvidia, resource_name
from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.pool import EnginePoolSpec, ModelFetch, ModelImage
from sluice_operator.api.pools import gpu_count
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.template import MAX_LABELS
from sluice_operator.delivery.delivery import pod_fetch
from sluice_operator.delivery.image import model_image, nodes_mount_images
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.manifests.config_map import engine_config_map
from sluice_operator.manifests.engine_pool import (
    QUEUE_LABELS,
    pool_spec,
    queue_labels,
    with_queue_labels,
)
from sluice_operator.manifests.metadata import Owner
from sluice_operator.service.observe import Children, Images, ServiceObserved
from sluice_operator.service.resolve.model import fetcher_of
from sluice_operator.service.resolve.release_decisions import (
    DEFAULTED,
    Pin,
    backend_in_use,
    engine_inputs,
    kept_pins,
    pinned_spec,
    shared_settings,
)
from sluice_operator.service.resolve.replicas import (
    Replicas,
    engines_instead,
    engines_left,
    first_engines,
    former_pools,
    plan_replicas,
)
from sluice_operator.service.resolve.settings import (
    HANDOVER_BACKEND,
    EngineFile,
    Settings,
    engine_file,
    pool_settings,
    settings_status,
)
from sluice_operator.validation.errors import INVALID, Refusal

AGREED: Final = (*DEFAULTED, "weight_dtype")
"""In which engines that hand each other the KV cache must be alike."""
KV_TRANSFER: Final = "spec.engine.kvTransfer"
BY_ENGINE: Final = "the engine's choice"
"""Of a setting that is not resolved here."""


@dataclass(frozen=True)
class ResolvedPool:
    """A pool without its roll-out."""

    spec: EnginePoolSpec
    accelerator: AcceleratorFinding
    settings: Settings
    config_map: Manifest
    replicas: Replicas
    upgrade: tuple[str, ...] = ()
    """What this release would change."""
    is_decided_anew: bool = False
    """This release has decided it, and not an earlier one."""


def resolve_pool(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec, role: Role
) -> ResolvedPool:
    """The pool of `role`, of a spec without contradictions."""
    inputs = engine_inputs(spec, role)
    accelerator = find_accelerator(spec.pool(role), observed.nodes)
    shared = shared_settings(observed.children, spec)
    pin = _kept_pins(observed, spec).get(role)
    try:
        # Beside a pin, `file` only tells what this release would change.
        taken = None if pin else shared
        in_use = backend_in_use(observed.children)
        file = engine_file(spec, role, accelerator.accelerator, taken, in_use)
    except ConfigError as error:
        assert pin is not None, "contradictions are refused before"
        file = EngineFile(pin.settings, pin.text)
        refused: tuple[str, ...] = (f"pool {role} would be refused: {error}",)
    else:
        refused = ()
    config, image = _config_map(top, role, file), _default_image(observed.images, spec, role, pin)
    first = _first_engines(observed, spec, role, accelerator)
    replicas = plan_replicas(spec, role, _live(observed.children, role), first)
    name = config["metadata"]["name"]
    fresh = pool_spec(top.service, spec, role, replicas.count, image, name, inputs)
    fresh = fresh.model_copy(update=_model_source(observed, spec.model, top.service))
    queue = queue_labels(observed.service["metadata"].get("labels"))
    queued = with_queue_labels(fresh, queue)
    if pin is None:
        return ResolvedPool(
            queued, accelerator, file.settings, config, replicas, is_decided_anew=True
        )
    kept, kept_spec = EngineFile(pin.settings, pin.text), pinned_spec(fresh, pin)
    return ResolvedPool(
        spec=kept_spec,
        accelerator=accelerator,
        settings=pin.settings,
        config_map=_config_map(top, role, kept),
        replicas=replicas,
        upgrade=refused or tuple(_changes(kept_spec, queued, file, pin)),
    )


def _kept_pins(observed: ServiceObserved, spec: InferenceServiceSpec) -> dict[Role, Pin]:
    images = {
        role: spec.engine_of(role).image or observed.images.engine_of(spec.pool(role).accelerator)
        for role in spec.roles
    }
    return kept_pins(observed.children, spec, images)


def _model_source(
    observed: ServiceObserved, model: ModelSpec, service: str
) -> dict[str, ModelFetch | ModelImage | None]:
    """What each engine downloads itself, or is given of a model that is an image."""
    fetcher = fetcher_of(observed.images, observed.installation)
    mounted = observed.accepts_image_volumes and nodes_mount_images(observed.nodes)
    return {
        "fetch": pod_fetch(service, model, fetcher),
        "model_image": model_image(model, fetcher.image, mounted=mounted),
    }


def _first_engines(
    observed: ServiceObserved, spec: InferenceServiceSpec, role: Role, finding: AcceleratorFinding
) -> int:
    """The engines that the pool of `role` begins with. A scaled pool has at least as many engines
    as it takes to replace those of another mode, because it takes over their load, and as many as
    a pool of its role that was deleted has left."""
    first = first_engines(spec, role, finding.accelerator)
    scaling = spec.pool(role).autoscaling
    if scaling is None:
        return first
    left = engines_left(observed.children, observed.service["metadata"]["name"], role)
    first = max(first, min(left, scaling.max_replicas))
    former = former_pools(observed.service, observed.children, spec)
    if not former:
        return first
    prefill = find_accelerator(spec.pool(spec.roles[0]), observed.nodes).accelerator
    instead = engines_instead(spec, role, prefill, former)
    return max(first, min(instead, scaling.max_replicas))


def contradictions(observed: ServiceObserved, spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Engine settings that contradict each other once they are resolved. Settings in use were
    accepted before and stay accepted."""
    settings_of: dict[Role, Settings] = {}
    shared = shared_settings(observed.children, spec)
    pins = _kept_pins(observed, spec)
    for role in spec.roles:
        pin = pins.get(role)
        accelerator = find_accelerator(spec.pool(role), observed.nodes).accelerator
        if pin is None:
            yield from _too_many_labels(observed.service, spec, role)
            yield from _without_image(observed.images, spec, role)
            yield from _at_metrics_port(spec, role)
        try:
            settings_of[role] = (
                pin.settings if pin else pool_settings(spec, role, accelerator, shared)
            )
        except ConfigError as error:
            for mistake in error.errors:
                path = spec.engine_place(role, mistake.key)
                yield Refusal(INVALID, f"{path}.{mistake.key}", f"{path}.{mistake}")
    for role, settings in settings_of.items():
        yield from _against_accelerator(spec, role, settings)
    if len(settings_of) > 1:
        yield from _not_shared(spec, settings_of)
    if spec.is_disaggregated:
        yield from _of_handover(spec)


def _too_many_labels(
    service: Manifest, spec: InferenceServiceSpec, role: Role
) -> Iterator[Refusal]:
    """Refuses a pool whose own labels leave no room for those that name the service's queue."""
    template = spec.pool(role).template
    own = set(template.labels or ()) if template else set()
    more = sorted(queue_labels(service["metadata"].get("labels")).keys() - own)
    if not more or len(own) + len(more) <= MAX_LABELS:
        return
    field = f"{spec.place(role, 'template')}.labels"
    beside = f"{len(own)} labels are not allowed beside {' and '.join(more)} of the service"
    allowed = f"at most {MAX_LABELS} on a pod, these included"
    yield Refusal(INVALID, field, f"{field}: {beside}; allowed: {allowed}")


def _without_image(images: Images, spec: InferenceServiceSpec, role: Role) -> Iterator[Refusal]:
    """Refuses a GPU pool without an image for GPUs: the image for CPUs would start, find no GPU and
    end."""
    accelerator = spec.pool(role).accelerator
    if spec.engine_of(role).image or images.engine_of(accelerator):
        return
    assert accelerator is not None
    field = f"{spec.engine_place(role, 'image')}.image"
    resource = resource_name(accelerator)
    why = "is not set" if is_nvidia(accelerator) else "is for nvidia.com"
    allowed = f"an engine image for {resource}, as SLUICE_GPU_ENGINE_IMAGE of the operator {why}"
    yield Refusal(INVALID, field, f"{field}: null is not allowed; allowed: {allowed}")


def _at_metrics_port(spec: InferenceServiceSpec, role: Role) -> Iterator[Refusal]:
    """Refuses ports that collide with an engine's metrics port."""
    port, transfer, template = (
        ports.ENGINE_METRICS,
        spec.kv_transfer(role),
        spec.pool(role).template,
    )
    fields = [
        f"{spec.place(role, 'template')}.sidecars[{index}].ports"
        for index, sidecar in enumerate(template.sidecars or () if template else ())
        if any(p.container_port == port and p.protocol == "TCP" for p in sidecar.ports or ())
    ]
    if role is Role.PREFILL and transfer is not None and transfer.bootstrap_port == port:
        fields.append(f"{KV_TRANSFER}.bootstrapPort")
    for field in fields:
        allowed = "another port, as the engine has its metrics there"
        yield Refusal(INVALID, field, f"{field}: {port} is not allowed; allowed: {allowed}")


def _not_shared(
    spec: InferenceServiceSpec, settings_of: Mapping[Role, Settings]
) -> Iterator[Refusal]:
    """Refusals of settings in which the pools of a service must agree and do not."""
    (first, settings), *others = settings_of.items()
    for other, theirs in others:
        for name in AGREED:
            if _value(settings, name) != _value(theirs, name):
                yield _unlike(spec, settings_of, name, first, other)


def _unlike(
    spec: InferenceServiceSpec,
    settings_of: Mapping[Role, Settings],
    name: str,
    pool: Role,
    beside: Role,
) -> Refusal:
    key = to_camel(name)
    place = spec.engine_place(pool, key)
    ours, theirs = (shown_json(_value(settings_of[role], name)) for role in (pool, beside))
    text = f"{place}.{key}: {ours} in pool {pool} is not allowed beside {theirs} in pool {beside}"
    reason = "allowed: the same in both, which hand each other the KV cache"
    return Refusal(INVALID, f"{place}.{key}", f"{text}; {reason}")


def _value(settings: Settings, name: str) -> Value:
    """Of a setting that all pools must have alike; `auto` where none is resolved."""
    return settings[name].value if name in settings else "auto"


def _of_handover(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """The wire of the KV hand-over must be able to do what is asked, and its port free."""
    transfer = spec.kv_transfer(Role.PREFILL)
    assert transfer is not None
    port, first, last = transfer.bootstrap_port, ports.KV_TRANSFER_MIN, ports.KV_TRANSFER_MAX
    if port == ports.ENGINE_HTTP or first <= port <= last:
        field = f"{KV_TRANSFER}.bootstrapPort"
        allowed = f"a port that engines do not use: not {ports.ENGINE_HTTP}, nor {first} to {last}"
        yield Refusal(INVALID, field, f"{field}: {port} is not allowed; allowed: {allowed}")
    yield from _of_wire(KV_TRANSFER, transfer)
    drafts = spec.speculation(Role.DECODE)
    if drafts is not None and drafts.method == "Eagle":
        field = "spec.engine.speculation.method"
        allowed = "NGram or Draft in two pools, as the KV cache of a head is not handed over"
        yield Refusal(INVALID, field, f'{field}: "Eagle" is not allowed; allowed: {allowed}')


def _of_wire(path: str, transfer: KvTransfer) -> Iterator[Refusal]:
    """A backend reads over its own protocols, and only RDMA needs devices."""
    if (error := wire_error(path, transfer.backend_or_default, transfer.protocol)) is not None:
        yield Refusal(INVALID, error.key, str(error))
    if transfer.protocol == "rdma":
        return
    for key, value in {"device": transfer.device, "resourceName": transfer.resource_name}.items():
        if value:
            text = f"{shown_json(value)} is not allowed; allowed: only with protocol rdma"
            yield Refusal(INVALID, f"{path}.{key}", f"{path}.{key}: {text}")


def _against_accelerator(
    spec: InferenceServiceSpec, role: Role, settings: Settings
) -> Iterator[Refusal]:
    """Tensor parallelism takes all GPUs of an engine."""
    accelerator, size = spec.pool(role).accelerator, settings["tensor_parallel_size"].value
    if accelerator is not None and size != (count := gpu_count(accelerator)):
        path = f"{spec.engine_place(role, 'tensorParallelSize')}.tensorParallelSize"
        allowed = f"{spec.place(role, 'accelerator')}.count ({count})"
        text = f"{path}: {size} is not allowed; allowed: {allowed}"
        yield Refusal(INVALID, path, text)


def _live(children: Children, role: Role) -> Manifest | None:
    pools = of_kind(children, ENGINE_POOL)
    return next((pool for pool in pools if pool["spec"]["role"] == role), None)


def _config_map(top: Owner, role: Role, file: EngineFile) -> Manifest:
    return engine_config_map(top, file.text, role, settings_status(file.settings))


def _default_image(images: Images, spec: InferenceServiceSpec, role: Role, pin: Pin | None) -> str:
    """The image of this release, else the image in use."""
    configured = images.engine_of(spec.pool(role).accelerator)
    return configured or (str(pin.fields.get("image", "")) if pin else "")


def _changes(
    kept: EnginePoolSpec, fresh: EnginePoolSpec, file: EngineFile, pin: Pin
) -> Iterator[str]:
    """What differs between the two, for a person."""
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
    before, after = resolved_values(pin.settings), resolved_values(file.settings)
    # What carries the KV cache stays.
    for name in sorted((before.keys() | after.keys()) - {HANDOVER_BACKEND}):
        pair = (to_camel(name), before.get(name, BY_ENGINE), after.get(name, BY_ENGINE))
        pairs.append(pair)
    changes = [f"{name} {old} to {new}" for name, old, new in pairs if old != new]
    if not changes and file.text != pin.text:
        changes = ["the engine's file"]
    yield from (f"pool {fresh.role}: {change}" for change in changes)


def _label(spec: EnginePoolSpec, name: str) -> str:
    labels = (spec.template.labels if spec.template else None) or {}
    return labels.get(name, "none")
