"""All validation errors of a spec at once: invalid values, contradictions, and what this version
does not support.

Pure. Contradictions of engine settings need resolved settings, so the caller finds these. What is
not supported is a table, `ROWS`: delete a row when the feature is implemented. Engine settings have
a table of their own, which the engine shares: `sluice_contract.config.supported`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice_contract.base import ConfigError
from sluice_contract.cluster import ports
from sluice_contract.cluster.labels import Role
from sluice_contract.config.host_cache import FOLDER
from sluice_contract.config.supported import unsupported
from sluice_contract.log_lines import shown_json

from sluice_operator.api.adapters import (
    CLAIMS_MOUNT,
    DEFAULT_REVISION,
    FOLDER_URI,
    MAX_CLAIMS,
    REPOSITORY_URI,
)
from sluice_operator.api.engine import CacheSpec, EngineSpec
from sluice_operator.api.environment import HOST_CACHE_VOLUME
from sluice_operator.api.findings import Finding, InvalidSpecError
from sluice_operator.api.model_uri import BUCKETS, adapter_claims, draft_claim, scheme_of
from sluice_operator.api.pools import gpu_count
from sluice_operator.api.scaling import AutoscalingSpec
from sluice_operator.api.service import InferenceServiceSpec

INVALID: Final = "InvalidSpec"
NOT_IMPLEMENTED: Final = "NotImplemented"
AUTOSCALING: Final = "spec.autoscaling"
INTERNAL_ALONE: Final = "with provider Internal alone: whoever scales decides"
ADAPTERS: Final = "spec.model.adapters"
ROUTER_SIDECARS: Final = "spec.router.template.sidecars"
ROUTER_PORTS: Final = (ports.ROUTER_HTTP, ports.ROUTER_METRICS)
DRAFT: Final = "speculation.draft.uri"
DRAFT_URI: Final = f"{FOLDER_URI}|{REPOSITORY_URI}|dummy://[A-Za-z0-9][-._A-Za-z0-9]*"
"""URIs from which engines can load a draft model."""
DRAFTS_ALLOWED: Final = (
    "pvc://claim/path, file:///path, dummy://name, without '..', or "
    "hf://org/name@revision beside spec.model.cache, to which it is downloaded"
)
BUCKET_CACHE: Final = "a claim or a size"
BUCKET_REVISION: Final = f"{DEFAULT_REVISION}|[0-9a-f]{{40}}"
CONDITIONAL: Final = {
    "spec.model.cache": f"for a bucket (s3://, gs://, az://) {BUCKET_CACHE}",
    f"spec.engine.{DRAFT}": DRAFTS_ALLOWED,
}
"""Allowed values of fields that are refused in combination with others, for the reference."""


@dataclass(frozen=True)
class Refusal:
    """Why a spec is not carried out. `field` is the path below the object, e.g. `spec.prefill`."""

    reason: str
    field: str
    message: str
    parts: tuple[Refusal, ...] = ()
    """Each error by itself, where there are several; `message` has all of them."""

    @property
    def finding(self) -> Finding:
        """The refusal as a finding: its message without the leading field."""
        return Finding(self.field, self.message.removeprefix(f"{self.field}: "))


def validation_errors(
    spec: InferenceServiceSpec, contradictions: Iterable[Refusal]
) -> tuple[Refusal, ...]:
    """The errors of a spec whose types and rules are valid; each once over all pools.
    `contradictions`: those of its settings, once they are resolved."""
    return tuple(
        dict.fromkeys(
            (
                *contradictions,
                *scaling_contradictions(spec),
                *adapter_contradictions(spec),
                *mount_contradictions(spec),
                *host_cache_contradictions(spec),
                *router_port_contradictions(spec),
                *draft_refusals(spec),
                *bucket_refusals(spec),
                *unsupported_parts(spec),
            )
        )
    )


def invalid(
    error: InvalidSpecError, check: Callable[[InferenceServiceSpec], Iterable[Refusal]]
) -> tuple[Refusal, ...]:
    """The errors of a spec that is invalid. If its types are valid, `check` finds the rest; a field
    that breaks a rule is not named twice."""
    refusals = tuple(Refusal(INVALID, finding.field, str(finding)) for finding in error.findings)
    if not isinstance(error.parsed, InferenceServiceSpec):
        return refusals
    fields = {refusal.field for refusal in refusals}
    rest = check(error.parsed)
    return (*refusals, *(refusal for refusal in rest if refusal.field not in fields))


def joined(refusals: tuple[Refusal, ...]) -> Refusal:
    """One refusal for all `refusals`, with the reason and the field of the first."""
    message = "; ".join(item.message for item in refusals)
    return Refusal(refusals[0].reason, refusals[0].field, message, refusals)


def setting_refusals(
    spec: InferenceServiceSpec, reason: str, errors: Mapping[Role, Iterable[ConfigError]]
) -> Iterator[Refusal]:
    """The refusals of engine settings, by what a user wrote. The pool is named, unless all pools
    have the error or the field says it."""
    refused = {
        role: {_SettingError.of(spec, role, error): None for error in errors.get(role, ())}
        for role in spec.roles
    }
    for role, of_role in refused.items():
        for error in of_role:
            is_common = all(error in others for others in refused.values())
            is_plain = is_common or error.field.startswith("spec.prefill.")
            yield error.refusal(reason, "" if is_plain else f" in pool {role}")


class _SettingError(NamedTuple):
    """Error in one engine setting of a pool."""

    field: str
    value: str
    allowed: str

    @classmethod
    def of(cls, spec: InferenceServiceSpec, role: Role, error: ConfigError) -> _SettingError:
        """`error` of the settings of `role`. Where pools merge their settings, the error names the
        values and fields of other settings that it refers to."""
        field = f"{spec.engine_place(role, error.key)}.{error.key}"
        written = spec.engine_of(role).to_json_dict() if spec.merges_settings(role) else {}
        beside = [
            f"{spec.engine_place(role, key)}.{key} is {shown_json(written[key])}"
            for key in dict.fromkeys(re.findall(r"\w+", error.allowed))
            if key in written and key != error.key
        ]
        allowed = f"{error.allowed}, where {', '.join(beside)}" if beside else error.allowed
        return cls(field, shown_json(error.value), allowed)

    def refusal(self, reason: str, where: str) -> Refusal:
        text = f"{self.value}{where} is not allowed; allowed: {self.allowed}"
        return Refusal(reason, self.field, f"{self.field}: {text}")


def scaling_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """A refusal for each autoscaling value that contradicts others, or would have no effect."""
    scaling = spec.autoscaling
    if scaling is None:
        return
    if not any(map(spec.limits_when_started, spec.roles)):
        yield from _of_fixed_pools(spec, scaling)
    elif scaling.provider == "External":
        yield from _internal_only(scaling)
    if scaling.gpu_budget is not None and scaling.provider == "Internal":
        yield from _budget_contradictions(spec, scaling.gpu_budget)


def _of_fixed_pools(spec: InferenceServiceSpec, scaling: AutoscalingSpec) -> Iterator[Refusal]:
    """Refusals of settings that have no effect because no pool is scaled. A budget is not refused:
    it still limits roll-outs."""
    places = [f"{AUTOSCALING}.minReplicas and maxReplicas"]
    places += ["spec.prefill.autoscaling"] if spec.is_disaggregated else []
    allowed = f"beside {' or '.join(places)}: no pool is scaled"
    settings = _read_by_the_autoscaler(scaling)
    if scaling.provider != "Internal":
        settings["provider"] = scaling.provider
    if spec.replicas is None and not spec.is_disaggregated:
        settings["gpuBudget"] = scaling.gpu_budget
        allowed = f"beside {places[0]}, or spec.replicas"
    refused = {name: value for name, value in settings.items() if value is not None}
    for name, value in refused.items():
        yield _not_allowed(name, value, allowed)
    if "provider" in refused and "gpuBudget" not in refused and scaling.gpu_budget is not None:
        yield _not_allowed("gpuBudget", scaling.gpu_budget, INTERNAL_ALONE)
    if not refused and scaling.gpu_budget is None:
        text = f"this field is not allowed, as no pool is scaled; allowed: with {places[0]}"
        yield Refusal(INVALID, AUTOSCALING, f"{AUTOSCALING}: {text}")


def _read_by_the_autoscaler(scaling: AutoscalingSpec) -> dict[str, object]:
    """Settings of the operator's autoscaler, by their name; None: left out."""
    return {
        "target": scaling.target and scaling.target.to_json_dict(),
        "onMetricsLoss": None if scaling.on_metrics_loss == "Hold" else scaling.on_metrics_loss,
    }


def _internal_only(scaling: AutoscalingSpec) -> Iterator[Refusal]:
    """Settings that only provider Internal reads."""
    settings = {"gpuBudget": scaling.gpu_budget} | _read_by_the_autoscaler(scaling)
    for name, value in settings.items():
        if value is not None:
            yield _not_allowed(name, value, INTERNAL_ALONE)


def _budget_contradictions(spec: InferenceServiceSpec, budget: int) -> Iterator[Refusal]:
    """A GPU budget must cover the fewest engines."""
    gpus = {role: gpu_count(spec.pool(role).accelerator) for role in spec.roles}
    least = sum(spec.pool(role).engines * count for role, count in gpus.items())
    if budget < least:
        counts = " + ".join(
            f"{spec.pool(role).engines} x {count} ({role})" for role, count in gpus.items()
        )
        yield _not_allowed(
            "gpuBudget", budget, f"at least {least}: the fewest engines hold {counts}"
        )


def _not_allowed(name: str, value: object, allowed: str) -> Refusal:
    field = f"{AUTOSCALING}.{name}"
    return Refusal(
        INVALID, field, f"{field}: {shown_json(value)} is not allowed; allowed: {allowed}"
    )


def adapter_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Refusals of adapters named like the model, of more claims than a pod can mount, and of user
    mounts at the path of a claim."""
    if spec.model.adapters is None:
        return
    for index, adapter in enumerate(spec.model.adapters):
        if adapter.name in spec.model.served_names:
            path = f"{ADAPTERS}[{index}].name"
            reason = (
                f"{shown_json(adapter.name)} is not allowed; allowed: none of the model's names"
            )
            yield Refusal(INVALID, path, f"{path}: {reason}")
    drafts = {draft_claim(spec.draft_uri(role), spec.model) for role in spec.roles}
    claims = ({adapter.claim for adapter in spec.model.adapters} | drafts) - {None}
    if len(claims) > MAX_CLAIMS:
        reason = f"{len(claims)} claims are not allowed; allowed: at most {MAX_CLAIMS}"
        yield Refusal(INVALID, ADAPTERS, f"{ADAPTERS}: {reason}")


def bucket_refusals(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Refusals of a bucket's model without a cache, because no engine's pod gets a bucket's
    credentials; and of a branch or a tag, which a bucket does not have."""
    model = spec.model
    if scheme_of(model.uri) not in BUCKETS:
        return
    if model.cache is None:
        field = "spec.model.cache"
        text = f"this field is required for a bucket; allowed: {BUCKET_CACHE}"
        yield Refusal(NOT_IMPLEMENTED, field, f"{field}: {text}")
    if model.revision is not None and not re.fullmatch(BUCKET_REVISION, model.revision):
        field = "spec.model.revision"
        allowed = "of a bucket main, or the commit that was resolved, in 40 digits of 0-9a-f"
        text = f"{shown_json(model.revision)} is not allowed; allowed: {allowed}"
        yield Refusal(INVALID, field, f"{field}: {text}")


def draft_refusals(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Refusals of draft models at addresses from which engines cannot load them."""
    for role in spec.roles:
        if refused := refused_draft(spec.engine_of(role), spec.model.cache):
            field = f"{spec.engine_place(role, DRAFT)}.{DRAFT}"
            yield Refusal(NOT_IMPLEMENTED, field, f"{field}: {refused}")


def refused_draft(engine: EngineSpec, cache: CacheSpec | None) -> str:
    """Refusal of a draft model at an unsupported address; empty for all others. `cache`: that of
    spec.model."""
    draft = engine.speculation.draft if engine.speculation else None
    if draft is None:
        return ""
    is_known = re.fullmatch(DRAFT_URI, draft.uri) and "/../" not in f"{draft.uri}/"
    if is_known and (cache is not None or not draft.uri.startswith("hf://")):
        return ""
    return f"{shown_json(draft.uri)} is not implemented yet; allowed: {DRAFTS_ALLOWED}"


def mount_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """User mounts at a path that adapters or a draft model need: the API server refuses two mounts
    at one path."""
    adapters = adapter_claims(spec.model) if spec.model.adapters is not None else []
    for role in spec.roles:
        claims = {*adapters, draft_claim(spec.draft_uri(role), spec.model)} - {None}
        ours = {f"{CLAIMS_MOUNT}/{claim}" for claim in claims}
        template = spec.pool(role).template
        for index, mount in enumerate((template and template.volume_mounts) or ()):
            if mount.folder in ours:
                path = f"{spec.place(role, 'template')}.volumeMounts[{index}].mountPath"
                what = "adapters are" if spec.model.adapters else "the draft model is"
                allowed = f"all but {', '.join(sorted(ours))}, where {what}"
                reason = f"{shown_json(mount.mount_path)} is not allowed; allowed: {allowed}"
                yield Refusal(INVALID, path, f"{path}: {reason}")


def router_port_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Sidecars at a port of the routers: containers of a pod share an address."""
    template = spec.router.template if spec.router else None
    sidecars = (template.sidecars if template else None) or ()
    for index, sidecar in enumerate(sidecars):
        for place, port in enumerate(sidecar.ports or ()):
            if port.protocol == "TCP" and port.container_port in ROUTER_PORTS:
                path = f"{ROUTER_SIDECARS}[{index}].ports[{place}].containerPort"
                allowed = f"all but {' and '.join(map(str, ROUTER_PORTS))}, the router's own"
                reason = f"{port.container_port} is not allowed; allowed: {allowed}"
                yield Refusal(INVALID, path, f"{path}: {reason}")


def host_cache_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """A user's volumes and mounts in place of those of a host cache's disk."""
    for role in spec.roles:
        cache, template = spec.host_cache(role), spec.pool(role).template
        if cache is None or cache.disk is None or template is None:
            continue
        disk = f"{spec.engine_place(role, 'hostCache')}.hostCache.disk"
        for index, volume in enumerate(template.volumes or ()):
            if volume.name == HOST_CACHE_VOLUME:
                path = f"{spec.place(role, 'template')}.volumes[{index}].name"
                yield _beside_host_cache(path, volume.name, HOST_CACHE_VOLUME, disk)
        for index, mount in enumerate(template.volume_mounts or ()):
            if f"{mount.folder}/".startswith(f"{FOLDER}/"):
                path = f"{spec.place(role, 'template')}.volumeMounts[{index}].mountPath"
                reserved = f"{FOLDER} and what is below it"
                yield _beside_host_cache(path, mount.mount_path, reserved, disk)


def _beside_host_cache(path: str, value: str, reserved: str, disk: str) -> Refusal:
    allowed = f"all but {reserved}, where {disk} is"
    reason = f"{shown_json(value)} is not allowed; allowed: {allowed}"
    return Refusal(INVALID, path, f"{path}: {reason}")


@dataclass(frozen=True)
class UnsupportedField:
    """A field, when it is refused, and what is allowed instead."""

    field: str
    refuses: Callable[[InferenceServiceSpec], bool]
    value: Callable[[InferenceServiceSpec], object]
    allowed: str


ROWS: Final = (
    UnsupportedField(
        "spec.slo",
        lambda s: (
            s.slo is not None and s.slo.ttft_milliseconds is None and s.slo.itl_milliseconds is None
        ),
        lambda _: "a value",
        "a promise: ttftMilliseconds, itlMilliseconds or both",
    ),
)


def unsupported_parts(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """A refusal for everything the spec asks for and this version does not have."""
    for row in ROWS:
        if row.refuses(spec):
            yield _not_implemented(row.field, row.value(spec), row.allowed)
    pools = {role: spec.pool(role) for role in spec.roles}
    errors = {
        role: tuple(unsupported(pool.engine, on_cpus=pool.accelerator is None))
        for role, pool in pools.items()
    }
    yield from setting_refusals(spec, NOT_IMPLEMENTED, errors)


def _not_implemented(field: str, value: object, allowed: str) -> Refusal:
    shown = shown_json(value) if value != "a value" else "this field"
    return Refusal(
        NOT_IMPLEMENTED, field, f"{field}: {shown} is not implemented yet; allowed: {allowed}"
    )
