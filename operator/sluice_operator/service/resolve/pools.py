"""Engine settings of the pools of a service, and what contradicts them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic.alias_generators import to_camel
from sluice_contract.base import ConfigError
from sluice_contract.cluster import ports
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.kv_transfer import KvTransfer, wire_error
from sluice_contract.config.sizing import GENERAL, Value, resolved_values
from sluice_contract.log_lines import shown_json

from sluice_operator.accelerators.find import AcceleratorFinding
from sluice_operator.accelerators.node_requirements import is_nvidia, resource_name
from sluice_operator.api.pools import gpu_count
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.template import MAX_LABELS
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.engine_pool import queue_labels
from sluice_operator.service.observe import Images, ServiceObserved
from sluice_operator.service.resolve.settings import pool_settings
from sluice_operator.service.revisions.choose import DEFAULTED, Kept
from sluice_operator.service.revisions.settings import Settings
from sluice_operator.validation.errors import INVALID, Refusal, setting_refusals

AGREED: Final = (*DEFAULTED, "weight_dtype")
"""Settings in which engines that hand each other the KV cache must be alike."""
KV_TRANSFER: Final = "spec.engine.kvTransfer"


FreshSettings = Mapping[Role, Settings | ConfigError]
"""The settings of each pool as this release resolves them, or why it cannot."""


def fresh_settings(
    spec: InferenceServiceSpec, accelerators: Mapping[Role, AcceleratorFinding], stays: Kept
) -> FreshSettings:
    """The settings of each pool as this release resolves them. For a pool that stays, they only
    show what would change."""
    return {
        role: _fresh(spec, role, found.accelerator, {} if role in stays.pools else stays.shared)
        for role, found in accelerators.items()
    }


def _fresh(
    spec: InferenceServiceSpec, role: Role, accelerator: Accelerator, shared: Settings
) -> Settings | ConfigError:
    try:
        return pool_settings(spec, role, accelerator, shared)
    except ConfigError as error:
        return error


def contradictions(
    observed: ServiceObserved, spec: InferenceServiceSpec, stays: Kept, fresh: FreshSettings
) -> Iterator[Refusal]:
    """Engine settings that contradict each other once they are resolved. Settings in use were
    accepted before and stay accepted."""
    settings_of: dict[Role, Settings] = {}
    errors: dict[Role, tuple[ConfigError, ...]] = {}
    for role in spec.roles:
        pool, resolved = stays.pools.get(role), fresh[role]
        if pool is not None:
            settings_of[role] = pool.settings
            continue
        yield from _too_many_labels(observed.service, spec, role)
        yield from _without_image(observed.images, spec, role)
        yield from _at_metrics_port(spec, role)
        if isinstance(resolved, ConfigError):
            errors[role] = resolved.errors
        else:
            settings_of[role] = resolved
    if spec.is_disaggregated:
        yield from _not_shared(spec, settings_of, stays.shared)
    yield from setting_refusals(spec, INVALID, errors)
    for role, settings in settings_of.items():
        yield from _against_accelerator(spec, role, settings)
    if spec.is_disaggregated:
        yield from _of_handover(spec)


def _too_many_labels(
    service: Manifest, spec: InferenceServiceSpec, role: Role
) -> Iterator[Refusal]:
    """Refusals of pools whose own labels leave no room for the labels of the service's queue."""
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
    # An image at the top level is used by both pools.
    section = "spec" if spec.accelerator is not None else spec.pool(role).accelerator_section
    field = f"{section}.engine.image"
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
    spec: InferenceServiceSpec, settings_of: Mapping[Role, Settings], shared: Settings
) -> Iterator[Refusal]:
    """Refusals of settings in which the pools of a service must agree and do not, even if other
    settings contradict each other, too."""
    values = {
        role: _agreed_values(spec, role, settings_of.get(role), shared) for role in spec.roles
    }
    (first, ours), *others = values.items()
    for other, theirs in others:
        for name in AGREED:
            if ours[name] != theirs[name]:
                yield _unlike(spec, values, name, first, other)


def _agreed_values(
    spec: InferenceServiceSpec, role: Role, settings: Settings | None, shared: Settings
) -> dict[str, Value]:
    """The values of `AGREED` in the pool of `role`: from `settings` or, without them, as the spec
    would have them resolved."""
    if settings is None:
        written = spec.engine_of(role)
        values = GENERAL | resolved_values(shared)
        values |= {name: v for name in AGREED if (v := getattr(written, name)) is not None}
    else:
        values = resolved_values(settings)
    return {name: values.get(name, "auto") for name in AGREED}


def _unlike(
    spec: InferenceServiceSpec,
    values: Mapping[Role, Mapping[str, Value]],
    name: str,
    pool: Role,
    beside: Role,
) -> Refusal:
    key = to_camel(name)
    place = spec.engine_place(pool, key)
    ours, theirs = (shown_json(values[role][name]) for role in (pool, beside))
    text = f"{place}.{key}: {ours} in pool {pool} is not allowed beside {theirs} in pool {beside}"
    reason = "allowed: the same in both, which hand each other the KV cache"
    return Refusal(INVALID, f"{place}.{key}", f"{text}; {reason}")


def _of_handover(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Refusals of a hand-over whose transport lacks a requested feature, or whose port is taken."""
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
    """Refusals of a protocol that the backend does not have, and of devices without RDMA."""
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
    """Refusals of tensor parallelism over fewer or more GPUs than an engine has."""
    accelerator, size = spec.pool(role).accelerator, settings["tensor_parallel_size"].value
    if accelerator is not None and size != (count := gpu_count(accelerator)):
        path = f"{spec.engine_place(role, 'tensorParallelSize')}.tensorParallelSize"
        allowed = f"{spec.place(role, 'accelerator')}.count ({count})"
        text = f"{path}: {size} is not allowed; allowed: {allowed}"
        yield Refusal(INVALID, path, text)
