"""What an operator's release has decided about a pool; it stays while the user's part is the same.

Pure. The inputs of a pool are all that its InferenceService says of its engines; the inputs of the
routers are all that it says of them. Replicas and nodes are no inputs: a node that joins restarts
nothing. Decisions for equal inputs are read from the live objects: from the EnginePool, else from a
Deployment, which still exists when a change is reverted.

Pools that hand over the KV cache must agree in some settings, which are decided once per service. A
newly resolved pool takes what the user left out from the decisions for another pool, whatever this
release would choose. The image is no such setting: an edit of one pool takes all of them to this
release's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvBackend, KvTransfer
from sluice_contract.config.sizing import Source

from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.model_uri import adapter_claims
from sluice_operator.api.pool import EnginePoolSpec, HubNetwork, ModelFetch
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.field_ownership import applied_manifest, applied_spec
from sluice_operator.delivery.image import is_image
from sluice_operator.delivery.resolved_model import is_fetched
from sluice_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, ENGINE_POOL, Manifest, of_kind
from sluice_operator.manifests.config_map import ENGINE_FILE, RESOLVED
from sluice_operator.manifests.engine import PINNED, PINNED_FIELDS
from sluice_operator.manifests.engine_pool import queue_labels, with_queue_labels
from sluice_operator.manifests.hub import CA_FILE, ca_name, hub_ports
from sluice_operator.manifests.metadata import digest, note_of
from sluice_operator.manifests.placement import router_template
from sluice_operator.service.observe import Children
from sluice_operator.service.resolve.settings import Settings, settings_from

DEFAULTED: Final = ("dtype", "kv_cache_dtype", "page_size")
"""Those for which a release has defaults."""
_NOT_THE_PODS: Final = ("replicas", "route", "inferencePool")
"""What a service says of its routers that changes none of their pods."""


class Pin(NamedTuple):
    """What was decided for a pool."""

    fields: Manifest
    """`PINNED_FIELDS` of the EnginePool's spec."""
    text: str
    """The engine's file."""
    settings: Settings
    queue: Mapping[str, str]
    """Labels for Kueue, as the pods have them."""
    in_use: bool
    """It is the EnginePool's, not only that of a Deployment."""


_NOT_READ: Final = {Role.PREFILL: "speculation", Role.DECODE: "host_cache"}
"""The section of `engine` that the engines of a role do not read."""


def engine_inputs(spec: InferenceServiceSpec, role: Role) -> str:
    """Hash of all that a service says of the engines of a pool."""
    pool = spec.pool(role)
    unread = _NOT_READ.get(role)
    engine = pool.engine.model_copy(update={unread: None}) if unread else pool.engine
    # Which adapters there are is no matter of a pod; nor what brings its model, beside it.
    not_the_pods = {"adapters": None}
    if not _brings_itself(spec.model):
        not_the_pods["resources"] = None
    parts: dict[str, Any] = {
        "model": _set_fields(spec.model.model_copy(update=not_the_pods)),
        "slo": _set_fields(spec.slo),
        "accelerator": _set_fields(pool.accelerator),
        "resources": _set_fields(pool.resources),
        "template": _set_fields(pool.template),
        "engine": _set_fields(engine),
    }
    if spec.model.adapters is not None:  # which there are is no matter of a pod
        parts["adapters"] = {"claims": adapter_claims(spec.model)}
    if spec.tracing is not None:
        parts["tracing"] = {"endpoint": spec.tracing.endpoint}
    parts["metrics"] = _set_fields(spec.metrics)
    # Engines serve nobody but the routers where keys are asked for.
    return _hash(spec, {**parts, "role": role.value, "auth": spec.asks_for_keys})


def _brings_itself(model: ModelSpec) -> bool:
    """Whether engines' pods have containers that bring the model."""
    return is_image(model) or (is_fetched(model) and model.cache is None)


def router_inputs(spec: InferenceServiceSpec) -> str:
    """Hash of all that a service says of its routers."""
    settings = _set_fields(spec.router) or {}
    router = {name: value for name, value in settings.items() if name not in _NOT_THE_PODS}
    own = spec.router.template if spec.router else None
    router["template"] = _set_fields(router_template(own, map(spec.pool, spec.roles)))
    drains = [drain for role in spec.roles if (drain := spec.engine_of(role).drain_seconds)]
    drain = max(drains, default=None)
    parts = {
        "router": router,
        "drainSeconds": drain,
        "mode": spec.mode,
        "tracing": _set_fields(spec.tracing),
        "waitForEngineSeconds": spec.wait_for_engine_seconds,
    }
    return _hash(spec, parts)


def pins_of(children: Children, role: Role, inputs: str) -> Iterator[Pin]:
    """What was decided for a pool whose inputs had the hash `inputs`, as far as that is known; what
    is in use first."""
    for decided in _decided(children, role):
        if decided.fields.get("inputs") == inputs and (pin := _pin(children, decided)):
            yield pin


def kept_ports(children: Children) -> frozenset[int]:
    """Ports at which engines that download themselves reach their hub, as it was decided when they
    were made."""
    hub_port_numbers: frozenset[int] = frozenset()
    for fetch in _kept_fetches(children):
        network = fetch.network or HubNetwork()
        try:
            hub_port_numbers |= hub_ports(fetch.endpoint, network.http_proxy, network.https_proxy)
        except ValueError:  # edited
            continue
    return hub_port_numbers


def kept_certificates(children: Children, service: str) -> str:
    """Those that such engines mount; empty where none does."""
    networks = (fetch.network for fetch in _kept_fetches(children))
    if not any(network.ca_config_map for network in networks if network):
        return ""
    name = ca_name(service)
    ca_maps = (m for m in of_kind(children, CONFIG_MAP) if m["metadata"]["name"] == name)
    return next(((item.get("data") or {}).get(CA_FILE, "") for item in ca_maps), "")


def backend_in_use(children: Children) -> KvBackend | None:
    """What carries the KV cache between the engines that are there; None where nothing does."""
    for decided in (noted for role in Role for noted in _decided(children, role)):
        item = _config_map_of(children, decided.fields)
        transfer = _json(item["data"][ENGINE_FILE]).get("kvTransfer") if item else None
        try:
            backend = KvTransfer.model_validate(transfer).backend
        except ValidationError:  # none, or of another release
            continue
        if backend is not None:
            return backend
    return None


def pinned_spec(fresh: EnginePoolSpec, pin: Pin) -> EnginePoolSpec:
    """`fresh`, which has no labels for Kueue but the pool's own, with what was decided before."""
    own = {k: v for k, v in fresh.to_json_dict().items() if k not in PINNED_FIELDS}
    return with_queue_labels(EnginePoolSpec.model_validate(own | pin.fields), pin.queue)


def _kept_fetches(children: Children) -> Iterator[ModelFetch]:
    for decided in (noted for role in Role for noted in _decided(children, role)):
        try:
            yield ModelFetch.model_validate(decided.fields.get("fetch"))
        except ValidationError:  # none, edited, or of another release
            continue


def _hash(spec: InferenceServiceSpec, parts: Mapping[str, Any]) -> str:
    upgrade = spec.rollout.upgrade if spec.rollout else None
    set_parts = {**parts, "upgrade": upgrade}.items()
    return digest({key: value for key, value in set_parts if value is not None})


def _set_fields(part: BaseModel | None) -> Manifest | None:
    """The fields that differ from their defaults, to which a release may add. An empty section is
    there all the same: `accelerator: {}` is a GPU."""
    if part is None:
        return None
    return part.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


class _Decided(NamedTuple):
    """What is noted of a decision, without the engine's file."""

    fields: Manifest
    queue: Mapping[str, str]
    in_use: bool


def _decided(children: Children, role: Role) -> Iterator[_Decided]:
    """Of pools and revisions."""
    for pool in of_kind(children, ENGINE_POOL):
        if pool["spec"]["role"] == role and (applied := applied_spec(pool)):
            fields: Manifest = {name: applied[name] for name in PINNED_FIELDS if name in applied}
            template = applied.get("template") or {}
            yield _Decided(fields, queue_labels(template.get("labels")), in_use=True)
    for deployment in of_kind(children, DEPLOYMENT):
        if fields := _json(note_of(deployment, PINNED)):
            applied = applied_manifest(deployment) or {"spec": {}}
            template = applied["spec"].get("template") or {}
            labels = (template.get("metadata") or {}).get("labels")
            yield _Decided(fields, queue_labels(labels), in_use=False)


def _pin(children: Children, decided: _Decided) -> Pin | None:
    item = _config_map_of(children, decided.fields)
    if item is None:
        return None
    try:
        settings = settings_from(_json(note_of(item, RESOLVED)))
    except ValueError:
        return None
    text = item["data"][ENGINE_FILE]
    return Pin(decided.fields, text, settings, decided.queue, decided.in_use) if settings else None


def _config_map_of(children: Children, fields: Manifest) -> Manifest | None:
    """With the engine's file."""
    name = (fields.get("configRef") or {}).get("name")
    for item in of_kind(children, CONFIG_MAP):
        if item["metadata"]["name"] == name and ENGINE_FILE in (item.get("data") or {}):
            return item
    return None


def _json(text: str) -> Manifest:
    """The map in an annotation; empty if somebody has broken it."""
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def shared_settings(children: Children, spec: InferenceServiceSpec) -> Settings:
    """Decided values, for all pools of a service, of settings that the user left out. Values in use
    come before those of a former revision only. Empty if nothing is decided."""
    if len(spec.roles) == 1:
        return {}
    pins = [
        pin for role in spec.roles for pin in pins_of(children, role, engine_inputs(spec, role))
    ]
    first = next(iter(sorted(pins, key=lambda pin: not pin.in_use)), None)
    settings = first.settings if first else {}
    return {
        name: settings[name]
        for name in DEFAULTED
        if name in settings and settings[name].source is not Source.USER
    }


def kept_pins(
    children: Children, spec: InferenceServiceSpec, images: Mapping[Role, str]
) -> dict[Role, Pin]:
    """What stays decided, by pool. A pool that is not here is decided anew.

    While no pool is edited, all stays. Where one is, all pools go to one release together, because
    engines of two releases may refuse to hand over to each other: to this release's, or back to
    former engines that had served together. `images`: of each pool's engines, as this release would
    have them; empty where it has none.
    """
    shared = shared_settings(children, spec)
    pins = {role: tuple(_agreeing_pins(children, spec, role, shared)) for role in spec.roles}
    for chosen in product(*pins.values()):
        by_role = dict(zip(pins, chosen, strict=True))
        if all(pin.in_use for pin in chosen) or _of_one_release(by_role, images):
            return by_role
    ours = {role: [pin for pin in pins[role] if _is_ours(pin, images[role])] for role in pins}
    return {role: of_role[0] for role, of_role in ours.items() if of_role}


def _agreeing_pins(
    children: Children, spec: InferenceServiceSpec, role: Role, shared: Settings
) -> Iterator[Pin]:
    """What was decided for a pool with its inputs as they are, and agrees with `shared`; what is in
    use first."""
    for pin in pins_of(children, role, engine_inputs(spec, role)):
        if all(
            name not in pin.settings
            or pin.settings[name].source is Source.USER
            or pin.settings[name].value == entry.value
            for name, entry in shared.items()
        ):
            yield pin


def _of_one_release(pins: Mapping[Role, Pin], images: Mapping[Role, str]) -> bool:
    """Whether engines of these decisions are known to work together."""
    ours = [_is_ours(pin, images[role]) for role, pin in pins.items()]
    if len(pins) > 1 and any(ours):
        return all(ours)
    return len({pin.fields.get("image") for pin in pins.values()}) == 1


def _is_ours(pin: Pin, image: str) -> bool:
    """Whether this release would take the same image."""
    return not image or pin.fields.get("image") == image
