"""Parts of a spec about its engines and its routers. Specs with equal parts make equal pods.

Pure. Numbers of pods, how they are replaced, and which adapters there are make no pod differ. Both
parts are read by this release before they are compared, even if another release wrote one.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from sluice_contract.cluster.labels import Role

from sluice_operator.api.canonical import canonical
from sluice_operator.api.engine import DRAIN_SECONDS, STARTUP_SECONDS, EngineSpec, ModelSpec
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.model_uri import FETCHED, adapter_claims, scheme_of
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.delivery.image import is_image
from sluice_operator.delivery.resolved_model import is_fetched
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import digest
from sluice_operator.manifests.placement import router_template

AUTOSCALING: Final = "autoscaling"
NUMBERS: Final = ("replicas", AUTOSCALING)
"""Fields of the spec and of its section `prefill` that change no pod."""
PREFILL: Final = "prefill"
ADAPTERS: Final = "adapters"
"""Field of the model; only the claims that adapters are on change pods."""
CACHE: Final = "cache"
OF_HUBS: Final = ("refresh", "tokenSecretRef")
"""Fields of a model that concern only its adapters if the model itself is not downloaded."""
MANNER: Final = ("strategy", "canary", "restartedAt")
"""Fields of `spec.rollout` that change no revision."""
TIMES: Final = {"drain_seconds": DRAIN_SECONDS, "startup_seconds": STARTUP_SECONDS}
"""Engine settings that each release has a default for, which another may have changed."""
_NOT_READ: Final = {Role.PREFILL: "speculation", Role.DECODE: "host_cache"}
"""The section of `engine` that the engines of a role do not read."""
_NOT_THE_PODS: Final = ("replicas", "route", "inferencePool")
"""Fields of the router that change none of its pods."""


def engine_part(spec: InferenceServiceSpec, role: Role) -> Manifest:
    """All that a spec says of the engines of a pool."""
    pool, unread = spec.pool(role), _NOT_READ.get(role)
    apart = dict.fromkeys((*TIMES, *([unread] if unread else ())))
    engine = pool.engine.model_copy(update=apart)
    not_the_pods = {"adapters": None}
    if not _brings_itself(spec.model):
        not_the_pods |= {"resources": None, "token_secret_ref": None}
    claims = adapter_claims(spec.model) if spec.model.adapters is not None else None
    parts = {
        "role": role.value,
        "model": _set_fields(spec.model.model_copy(update=not_the_pods)),
        "adapters": claims,
        "slo": _set_fields(spec.slo),
        "accelerator": _set_fields(pool.accelerator),
        "resources": _set_fields(pool.resources),
        "template": _set_fields(pool.template),
        "engine": _set_fields(engine),
        "tracing": spec.tracing.endpoint if spec.tracing else None,
        "metrics": _set_fields(spec.metrics),
        # Engines serve nobody but the routers where keys are asked for.
        "auth": spec.asks_for_keys,
    }
    return _there(parts)


def router_part(spec: InferenceServiceSpec) -> Manifest:
    """All that a spec says of its routers alone, with how long they wait for a first engine."""
    settings = _set_fields(spec.router) or {}
    router = {name: value for name, value in settings.items() if name not in _NOT_THE_PODS}
    own = spec.router.template if spec.router else None
    parts = {
        "router": router,
        "template": _set_fields(router_template(own, map(spec.pool, spec.roles))),
        "mode": spec.mode,
        "tracing": _set_fields(spec.tracing),
        "waitForEngineSeconds": spec.wait_for_engine_seconds,
    }
    return _there(parts)


def spec_hash(spec: Manifest) -> str:
    """A hash of the pods that a spec asks for, whatever its wording."""
    try:
        parsed: object = parse(InferenceServiceSpec, spec, "spec")
    except InvalidSpecError as error:
        parsed = error.parsed
    if not isinstance(parsed, InferenceServiceSpec):  # of another release
        return digest(spec)
    written = canonical(parsed)
    times = [[time_of(written.engine_of(role), name) for name in TIMES] for role in written.roles]
    return digest([asked_of(written), times, upgrade_of(written)])


def time_of(engine: EngineSpec, name: str) -> int:
    """Seconds of a time in `TIMES`: the engine's setting, else this release's default."""
    written: int | None = getattr(engine, name)
    return TIMES[name] if written is None else written


def upgrade_of(spec: InferenceServiceSpec) -> str | None:
    """The text with which the user asked for a release; None: later edits of engines bring one."""
    return spec.rollout.upgrade if spec.rollout else None


def asked_of(spec: InferenceServiceSpec) -> Manifest:
    """A spec without what changes no pod, and without what each release has a default for."""
    asked = _set_fields(spec) or {}
    asked.pop("paused", None)
    for section in (asked, asked.get(PREFILL) or {}):
        for name in NUMBERS:
            section.pop(name, None)
    model = asked["model"]
    if scheme_of(model["uri"]) not in FETCHED:
        for name in OF_HUBS:
            model.pop(name, None)
    if ADAPTERS in model:
        model[ADAPTERS] = adapter_claims(spec.model)
    _strip(asked, "router", ("replicas",))
    _strip(asked, "rollout", (*MANNER, "upgrade"))
    for section in (asked, asked.get(PREFILL) or {}):
        _strip(section, "engine", tuple(map(to_camel, TIMES)))
    return asked


def _strip(parent: Manifest, key: str, names: tuple[str, ...]) -> None:
    """Removes `names` from a section, and the section where nothing is left."""
    section = parent.get(key)
    if section is not None:
        parent[key] = {name: value for name, value in section.items() if name not in names}
        if not parent[key]:
            del parent[key]


def _brings_itself(model: ModelSpec) -> bool:
    """Whether engines' pods have containers that bring the model."""
    return is_image(model) or (is_fetched(model) and model.cache is None)


def _there(parts: dict[str, Any]) -> Manifest:
    return {name: value for name, value in parts.items() if value is not None}


def _set_fields(part: BaseModel | None) -> Manifest | None:
    """The fields that differ from their defaults. An empty section is kept: `accelerator: {}` is a
    GPU."""
    if part is None:
        return None
    return part.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
