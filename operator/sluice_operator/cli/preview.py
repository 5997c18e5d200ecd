"""The plans for an InferenceService, without a cluster: what applying it would create.

Pure. Where nodes are not given, accelerators are what the spec says. A cluster with the Gateway API
and its Inference Extension is assumed, but without the Prometheus operator. In clusters without the
extension, or with a Gateway that does not know it, HTTPRoutes lead to the Service instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from pydantic.alias_generators import to_camel
from sluice_contract.cluster.labels import Role
from sluice_contract.config.engine import parse_engine_config
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_contract.config.model_facts import ModelFacts
from sluice_contract.config.sizing import Source, sizes_of
from sluice_contract.config.supported import unused_without_adapters

from sluice_operator.accelerators.node_requirements import unusual_spelling
from sluice_operator.api.adapters import DEFAULT_REVISION
from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.findings import Finding, InvalidSpecError
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import ModelStatus
from sluice_operator.api.validate import ServiceDocument, parse_service
from sluice_operator.cli.engine_numbers import (
    canary_json,
    canary_lines,
    engines_text,
    own_scale_lines,
)
from sluice_operator.cli.gpu_support import gpu_advice, unsupported_gpu
from sluice_operator.cli.kv_capacity import (
    BYTES,
    UNSAID_DTYPE,
    capacity_json,
    capacity_lines,
    running_lines,
)
from sluice_operator.cli.model_fit import (
    ModelSizes,
    fit_advice,
    fit_findings,
    gated_lines,
    model_sizes,
)
from sluice_operator.delivery.adapters import assumed_adapters
from sluice_operator.delivery.image import has_digest, is_image
from sluice_operator.delivery.resolved_model import (
    assumed_pin,
    is_fetched,
    pin_of,
    previewed,
    with_draft,
)
from sluice_operator.kube.kinds import HTTP_ROUTE, INFERENCE_POOL, Manifest, of_kind
from sluice_operator.manifests.config_map import ENGINE_FILE
from sluice_operator.manifests.monitoring import slo_groups
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import PoolChildren, plan_pool
from sluice_operator.pool.status import NO_PREFILL
from sluice_operator.service.observe import Images, ServiceObserved
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.plan_events import RDMA_RIGHTS
from sluice_operator.service.report.priorities_count import priorities_check
from sluice_operator.service.resolve.replicas import split_text
from sluice_operator.service.revisions.settings import settings_status
from sluice_operator.service.rollout.planned_rollout import PlannedPool


@dataclass(frozen=True)
class Preview:
    """The plans of one InferenceService and of its pools."""

    service: Manifest
    plan: ServicePlan
    pool_plans: tuple[PoolChildren, ...]
    model: ModelStatus | None = None
    """A hub's model as the document's status has resolved it; None: not resolved."""
    sizes: ModelSizes | None = None
    """The model's sizes; None: unknown."""
    adapters: tuple[Manifest, ...] = ()
    """Status that adapters of a hub would have."""

    @property
    def facts(self) -> ModelFacts | None:
        return self.sizes.facts if self.sizes else None

    @property
    def misfits(self) -> tuple[Finding, ...]:
        """Findings of pools whose GPUs run no engine, else of those whose engines cannot hold or
        divide the model. The plan must not be a refusal."""
        spec, pools = self.plan.spec, self.plan.pools
        assert spec is not None
        unsupported = (unsupported_gpu(spec, pool) for pool in pools)
        findings = tuple(dict.fromkeys(finding for finding in unsupported if finding))
        return findings or fit_findings(spec, self.sizes, pools)

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Everything that would be made, in order."""
        return (*self.plan.apply, *(m for plan in self.pool_plans for m in plan.apply))

    def slo(self, runbook_url_base: str) -> list[Manifest]:
        """Groups of rules for Prometheus; none without a promise."""
        spec, metadata = self.plan.spec, self.service["metadata"]
        if spec is None or spec.slo is None:
            return []
        return slo_groups(metadata["namespace"], metadata["name"], spec.slo, runbook_url_base)


def preview(
    document: Any,
    images: Images,
    nodes: tuple[Manifest, ...] | None = None,
    model_config: str | None = None,
) -> Preview:
    """The plans of an InferenceService that is not in a cluster yet. `nodes`: the cluster's nodes,
    if known. `model_config`: text of the model's config.json, if given.

    Raises:
        InvalidSpecError: the document's types are invalid. If only rules are broken, there is a
            plan, which refuses it.
    """
    parsed = _read(document)
    metadata = {"namespace": "default", **parsed.metadata.to_json_dict()}
    # As the API server would store it: with defaults. Not paused, as nothing is planned then.
    stored = parsed.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_unset=True
    )
    service = {**document, "metadata": metadata, "spec": stored | {"paused": False}}
    model = parsed.spec.model
    resolved, status = None, dict[str, Any]()
    if is_fetched(model):
        recorded = document.get("status")
        resolved = pin_of({"status": recorded if isinstance(recorded, dict) else None}, model)
        pin = resolved or assumed_pin(model)
        status["model"] = previewed(pin, metadata["name"], model)
    if adapters := assumed_adapters(metadata["name"], with_draft(parsed.spec)):
        status["adapters"] = list(adapters)
    if status:
        service["status"] = status
    kinds = (INFERENCE_POOL, HTTP_ROUTE)
    observed = ServiceObserved(service, images, nodes=nodes, optional_kinds=kinds)
    plan = plan_service(observed)
    if applied := tuple(of_kind(plan.apply, INFERENCE_POOL)):
        # The HTTPRoute leads to the InferencePool once that is there.
        plan = plan_service(replace(observed, children=applied))
    pools = tuple(plan_pool(PoolObserved(pool.manifest, service)) for pool in plan.pools)
    sizes = model_sizes(model, resolved, model_config)
    return Preview(service, plan, pools, resolved, sizes, adapters)


def _read(document: Any) -> ServiceDocument:
    try:
        return parse_service(document)
    except InvalidSpecError as error:
        if isinstance(error.parsed, ServiceDocument):
            return error.parsed
        raise


def as_text(shown: Preview, *, lists_objects: bool = False) -> str:
    """A text for people. The plan must not be a refusal. `lists_objects`: whether the objects are
    named."""
    return "\n".join((*_lines(shown), *_object_lines(shown, lists_objects))) + "\n"


def as_json(shown: Preview) -> Manifest:
    """JSON for programs. The plan must not be a refusal."""
    plan = shown.plan
    pools = zip(plan.pools, shown.pool_plans, strict=True)
    return {
        "name": shown.service["metadata"]["name"],
        "namespace": shown.service["metadata"]["namespace"],
        "refusal": None,
        "slo": _slo(plan),
        "canary": canary_json(plan.spec, plan.pools) if plan.spec else None,
        "kvTransfer": transfer.to_json_dict() if (transfer := _kv_transfer(plan)) else None,
        "pools": {pool.role.value: _pool(pool, below, shown) for pool, below in pools},
        "objects": _objects(shown),
    }


def _objects(shown: Preview) -> list[Manifest]:
    """All that would be made. A Secret with a key is not among the manifests: its content is drawn
    when it is made."""
    secrets = (secret.manifest for secret in shown.plan.secrets)
    return [_identity(manifest) for manifest in (*secrets, *shown.manifests)]


def _slo(plan: ServicePlan) -> Manifest:
    """The SLO, value by value with its source; empty where there is none."""
    slo = plan.spec.slo if plan.spec else None
    if slo is None:
        return {}
    user, general = (Source.USER.value, "spec"), (Source.GENERAL.value, "default")
    return {
        to_camel(name): {"value": value, "source": source, "from": origin}
        for name, value in slo
        if value is not None
        for source, origin in [user if name in slo.model_fields_set else general]
    }


def _kv_transfer(plan: ServicePlan) -> KvTransfer | None:
    """How the KV cache goes from prefill to decode engines; None where it does not."""
    transfer = plan.spec.kv_transfer(Role.PREFILL) if plan.spec else None
    if transfer is None:
        return None
    file = parse_engine_config(plan.pools[0].config_map["data"][ENGINE_FILE])
    assert file.kv_transfer is not None
    return transfer.model_copy(update={"backend": file.kv_transfer.backend})


def _pool(pool: PlannedPool, below: PoolChildren, shown: Preview) -> Manifest:
    plan, role = shown.plan, pool.role
    assert plan.spec is not None
    return {
        "replicas": pool.replicas,
        "inherits": list(plan.spec.inherited(role)),
        "image": {"name": _image(below), "assumed": _is_assumed(plan.spec, role)},
        "revision": below.revision,
        "accelerator": pool.accelerator.text,
        "memoryLimit": _memory_limit(below),
        "kvPool": capacity_json(plan.spec, shown.facts, pool),
        "settings": settings_status(pool.settings),
        "speculation": drafts.to_json_dict() if (drafts := plan.spec.speculation(role)) else None,
        "hostCache": cache.to_json_dict() if (cache := plan.spec.host_cache(role)) else None,
    }


def _image(plan: PoolChildren) -> str:
    assert plan.spec is not None
    return plan.spec.image


def _variable(plan: PoolChildren) -> str:
    """The operator's setting that the image is from."""
    has_gpus = plan.spec is not None and plan.spec.accelerator is not None
    return "SLUICE_GPU_ENGINE_IMAGE" if has_gpus else "SLUICE_ENGINE_IMAGE"


def _memory_limit(plan: PoolChildren) -> int | str | None:
    """The memory limit of one engine; None: the memory of its node."""
    resources = plan.spec.resources if plan.spec else None
    return (resources.limits or {}).get("memory") if resources else None


def _is_assumed(spec: InferenceServiceSpec, role: Role) -> bool:
    """Whether the image of a role is a default, which differs between clusters, and not the
    spec's."""
    return spec.engine_of(role).image is None


def _identity(manifest: Manifest) -> Manifest:
    return {"kind": manifest["kind"], "name": manifest["metadata"]["name"]}


def _lines(shown: Preview) -> Iterator[str]:
    plan, meta = shown.plan, shown.service["metadata"]
    head = f"InferenceService {meta['namespace']}/{meta['name']}"
    assert plan.spec is not None
    yield f"{head}: mode {plan.spec.mode}, model {plan.spec.model.uri}"
    yield f"  served as {plan.spec.model.served_name} at http://{meta['name']}.{meta['namespace']}.svc"
    yield from _model(shown, meta["name"])
    yield from _adapters(plan.spec.model, shown.adapters)
    yield from _promise(plan)
    yield from _priorities(plan)
    if transfer := _kv_transfer(plan):
        yield ""
        how = f"{transfer.backend} over {transfer.protocol}"
        yield f"KV cache: by {how}, port {transfer.bootstrap_port} of prefill engines"
        if transfer.protocol == "rdma":
            yield f"  {RDMA_RIGHTS}"
    if plan.spec.chooses_split:
        yield ""
        yield f"Split: {split_text(plan.spec, plan.pools[0].accelerator.accelerator)}"
        yield "  From then on engines go to the pool that lacks more."
    for pool, below in zip(plan.pools, shown.pool_plans, strict=True):
        yield ""
        engines = engines_text(plan, pool)
        yield f"Pool {pool.role}: replicas {engines}, each on {pool.accelerator.text}"
        if plan.spec.lacks_prefill and pool.role is Role.PREFILL:
            yield f"  {NO_PREFILL}"
        yield from inherited_lines(plan.spec, pool.role)
        yield from _product(plan, pool)
        yield from _unused(plan.spec, pool)
        yield f"  revision {below.revision} of image {_image(below)}"
        if _memory_limit(below) is None and pool.accelerator.accelerator.is_cpu:
            key = f"{plan.spec.place(pool.role, 'resources')}.limits"
            yield f"  No memory limit ({key}): each engine sizes its KV"
            yield "  pool from the memory of its whole node, as if it were alone there."
        yield from _features(plan.spec, pool.role)
        yield from capacity_lines(plan.spec, shown.facts, pool)
        advice = fit_advice(plan.spec, shown.sizes, pool)
        for text in (*gpu_advice(plan.spec, shown.sizes, pool), *([advice] if advice else ())):
            yield from wrap(text, 98, initial_indent="  ", subsequent_indent="    ")
        yield from running_lines(shown.facts, pool)
        yield from table(_rows(settings_status(pool.settings)))
    yield from canary_lines(plan.spec, plan.pools)
    yield from own_scale_lines(plan.spec)
    pools = zip(plan.pools, shown.pool_plans, strict=True)
    if assumed := [below for pool, below in pools if _is_assumed(plan.spec, pool.role)]:
        yield ""
        yield from _assumed_images(assumed)


def _object_lines(shown: Preview, lists_objects: bool) -> Iterator[str]:
    objects = _objects(shown)
    yield ""
    yield f"{len(objects)} objects" + (":" if lists_objects else "; -v names them.")
    if lists_objects:
        yield from table((item["kind"], item["name"]) for item in objects)


def inherited_lines(spec: InferenceServiceSpec, role: Role) -> Iterator[str]:
    """Settings that a pool inherits from the top level of the spec, which may not fit another
    accelerator."""
    if inherited := spec.inherited(role):
        yield f"  inherits {', '.join(inherited)}; spec.prefill may have its own"


def _features(spec: InferenceServiceSpec, role: Role) -> Iterator[str]:
    """Features of engines of the role that are off by default."""
    if drafts := spec.speculation(role):
        where = drafts.draft.uri if drafts.draft else "the request's own tokens"
        most = f"at most {drafts.tokens} of a request in a step"
        yield f"  Drafts ({drafts.method}): {most}, from {where}"
        if drafts.draft:
            yield "  Its weights and pages take memory that is counted as the KV pool's below."
    if cache := spec.host_cache(role):
        disk = f", and {cache.disk.size} of its disk" if cache.disk else ""
        yield f"  Host cache: each engine takes {cache.memory} more of its node's memory{disk}"


def _assumed_images(plans: Iterable[PoolChildren]) -> Iterator[str]:
    for image, variable in dict.fromkeys((_image(plan), _variable(plan)) for plan in plans):
        yield f"Image {image} is assumed, since the spec names none:"
        yield f"  the operator uses its own default ({variable}), and with another"
        yield "  image comes another revision. A service that runs keeps its image, sizes and pods"
        yield "  until an upgrade is taken, or an edit restarts engines."


def _model(shown: Preview, service: str) -> Iterator[str]:
    """The model's size where it is assumed, and how a model of a hub or an image gets to the
    engines; that of a hub is pinned."""
    assert shown.plan.spec is not None
    model, resolved = shown.plan.spec.model, shown.model
    if shown.sizes is not None and shown.sizes.assumed:
        yield f"  Its sizes are {shown.sizes.assumed}."
    yield from gated_lines(model)
    if is_image(model):
        yield "  Each engine copies it out of the image; mounted, where cluster and nodes can."
        if not has_digest(model):
            yield "  Its tag may move, and engines that start later then serve another model:"
            yield "  name a digest, @sha256:…"
    if not is_fetched(model):
        return
    if resolved is not None:
        size = f"{resolved.bytes / 1e9:.1f} GB, {resolved.architecture}"
        yield f"  {resolved.revision} was resolved to commit {resolved.commit}: {size}."
        if resolved.quantization is not None:
            yield from _quantised(resolved)
    else:
        revision = shown.service["spec"]["model"].get("revision", DEFAULT_REVISION)
        yield f"  Revision {revision} is resolved to a commit when this is applied."
        yield f"  With that commit: kubectl get infsvc {service} -o yaml | sluice plan -f -"
    if model.cache is not None:
        yield f"  A Job downloads it to claim {model.cache.claim} before there are engines."
    else:
        yield "  Each engine downloads it at its start; spec.model.cache: once for all."


def _quantised(resolved: ModelStatus) -> Iterator[str]:
    yield f"  Weights are quantised ({resolved.quantization}) in these files."
    part = resolved.packed_part(1)
    if part is None:
        yield "  Engines hold them in their dtype, in the memory of a model that is not quantised."
    else:
        value_bytes = BYTES.get(resolved.dtype or "", BYTES[UNSAID_DTYPE])
        size = f"{part.memory_bytes(value_bytes) / 1e9:.1f} GB"
        yield f"  On NVIDIA's GPUs from compute capability 8.0 they stay packed: {size}."
        yield "  Other engines hold them in their dtype."


def _adapters(model: ModelSpec, fetched: Iterable[Manifest]) -> Iterator[str]:
    """How adapters of a hub get to the engines; `model` is pinned."""
    for adapter in fetched:
        assert model.cache is not None
        is_draft = adapter["name"] == adapter["uri"]
        what = "Draft model" if is_draft else f"Adapter {adapter['name']}"
        waits = "wait for it" if is_draft else "do not wait for it"
        yield f"  {what}: a Job resolves {adapter['uri']} to a commit and"
        yield f"  downloads it to claim {model.cache.claim}. Engines {waits}."


def _product(plan: ServicePlan, pool: PlannedPool) -> Iterator[str]:
    """Doubts about the product that the spec names."""
    accelerator = pool.accelerator.accelerator
    assert plan.spec is not None
    requested = plan.spec.pool(pool.role)
    if warning := unusual_spelling(requested.accelerator):
        yield f"  ProductSpelling: {warning}"
    if accelerator.product is not None and sizes_of(accelerator)[1] is Source.GENERAL:
        yield f"  ProductUnknown: {accelerator.product} is not in the table of accelerators: sized"
        keys = f"{requested.accelerator_section}.engine.chunkSize and memoryPercent"
        yield f"  for 40 GiB, unless its nodes tell more; else set {keys}"


def _unused(spec: InferenceServiceSpec, pool: PlannedPool) -> Iterator[str]:
    """Settings that the pool's engines do not read."""
    if spec.model.adapters is None:
        for warning in unused_without_adapters(spec.engine_of(pool.role)):
            yield f"  {warning} (spec.model.adapters, be it an empty list)"


def _promise(plan: ServicePlan) -> Iterator[str]:
    if not (slo := _slo(plan)):
        return
    yield ""
    yield "Promise: each step takes as much of a prompt as keeps it, at most chunkSize"
    yield from table(_rows({f"slo.{key}": entry for key, entry in slo.items()}))


def _priorities(plan: ServicePlan) -> Iterator[str]:
    """Lines about priorities of tenants that have no effect."""
    check = priorities_check(plan)
    if check is not None and not check.is_true:
        yield ""
        yield f"Priorities: {check.message}"


def _rows(settings: Manifest) -> Iterator[tuple[str, ...]]:
    yield ("setting", "value", "source", "from")
    for key, entry in settings.items():
        yield (key, value_text(entry["value"]), entry["source"], entry["from"])


def value_text(value: object) -> str:
    """A setting's value for people."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lines with columns, indented."""
    listed = list(rows)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    for row in listed:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells).rstrip()
