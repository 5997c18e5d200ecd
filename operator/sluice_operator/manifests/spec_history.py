"""Specs that were carried out.

Complete ones are ControllerRevisions: the targets of `sluice rollout undo`. The last one, complete
or not, is stored in a ConfigMap. Two specs are the same revision if they ask for the same pods. The
rest (number of pods, `paused`, roll-out settings) is stored for later use and is not compared.
"""

from __future__ import annotations

import copy
import json
from typing import Final

from sluice_operator.api.adapters import claim_of
from sluice_operator.api.canonical import canonical
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.model_uri import FETCHED, scheme_of
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import CONFIG_MAP, CONTROLLER_REVISION, Manifest, of_kind
from sluice_operator.manifests.metadata import HISTORY, Owner, digest, stamped

AUTOSCALING: Final = "autoscaling"
NUMBERS: Final = ("replicas", AUTOSCALING)
"""What is no matter of a roll-out, of the spec and of its section `prefill`."""
PREFILL: Final = "prefill"
ADAPTERS: Final = "adapters"
"""Of the model; which there are is no matter of a roll-out, but for the claims that they are on."""
CACHE: Final = "cache"
OF_HUBS: Final = ("refresh", "tokenSecretRef")
"""Of a model that is not downloaded: they are about its adapters alone."""
MANNER: Final = ("strategy", "restartedAt")
"""The same for `spec.rollout`."""
APPLIED_FILE: Final = "spec.json"
FORMER_MODE_FILE: Final = "former-mode.json"
"""The last spec of another mode, whose pools are still there."""


def applied_name(service: str) -> str:
    """Name of the ConfigMap with the spec that was carried out last."""
    return f"{service}-applied"


def applied_record(owner: Owner, spec: Manifest, former: Manifest) -> Manifest:
    """That ConfigMap; `former`: the last spec of another mode, or nothing. A ControllerRevision
    does not fit, because its spec can never change."""
    specs = {APPLIED_FILE: spec} | ({FORMER_MODE_FILE: former} if former else {})
    head = owner.child(CONFIG_MAP, applied_name(owner.service), HISTORY)
    return head | {"data": {file: _text(spec_of_file) for file, spec_of_file in specs.items()}}


def spec_in_record(
    service: str, children: tuple[Manifest, ...], file: str = APPLIED_FILE
) -> Manifest:
    """A spec in it; empty where it is not there, or was edited."""
    for item in of_kind(children, CONFIG_MAP):
        if item["metadata"]["name"] == applied_name(service):
            try:
                spec: Manifest = json.loads((item.get("data") or {}).get(file, ""))
                parse(InferenceServiceSpec, spec, "spec")
            except (ValueError, InvalidSpecError):
                return {}
            return spec
    return {}


def _text(spec: Manifest) -> str:
    return json.dumps({key: spec[key] for key in spec if key != "paused"}, sort_keys=True)


def spec_revision(owner: Owner, spec: Manifest, number: int) -> Manifest:
    """The ControllerRevision of `spec`; a greater `number` is newer."""
    name = f"{owner.service}-{spec_hash(spec)}"
    head = owner.child(CONTROLLER_REVISION, name, HISTORY)
    return stamped(head | {"revision": number, "data": {"spec": spec}})


def recorded_spec(item: Manifest) -> Manifest:
    """The spec in a ControllerRevision; empty in one that is none of the operator's."""
    spec = (item.get("data") or {}).get("spec")
    return spec if isinstance(spec, dict) else {}


def newest_complete(children: tuple[Manifest, ...]) -> Manifest:
    """The spec that was complete last; empty where none was."""
    history = by_number(children)
    return recorded_spec(history[-1]) if history else {}


def by_number(children: tuple[Manifest, ...]) -> list[Manifest]:
    """The ControllerRevisions among a service's children, the oldest first."""
    recorded = (item for item in of_kind(children, CONTROLLER_REVISION) if recorded_spec(item))
    return sorted(recorded, key=lambda item: (item["revision"], item["metadata"]["name"]))


def spec_hash(spec: Manifest) -> str:
    """Equal for specs that ask for the same pods, however they are spelled."""
    hashed = _spelled(spec)
    hashed.pop("paused", None)
    for key in NUMBERS:
        hashed.pop(key, None)
    if (prefill := hashed.get(PREFILL)) is not None:
        hashed[PREFILL] = {key: value for key, value in prefill.items() if key not in NUMBERS}
    model = hashed.get("model") or {}
    if scheme_of(model.get("uri", "")) not in FETCHED:
        for key in OF_HUBS:
            model.pop(key, None)
    if (adapters := model.get(ADAPTERS)) is not None:
        claims = {claim_of(adapter.get("uri", "")) for adapter in adapters}
        model[ADAPTERS] = sorted(claims - {"", claim_of(model.get("uri", ""))})
    _strip(hashed, "router", ("replicas",))
    _strip(hashed, "rollout", MANNER)
    return digest(hashed)


def _spelled(spec: Manifest) -> Manifest:
    """`spec` in the spelling of all equal ones; as it is where it is not valid."""
    try:
        parsed = canonical(parse(InferenceServiceSpec, spec, "spec"))
    except InvalidSpecError:
        return copy.deepcopy(spec)
    return parsed.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def _strip(parent: Manifest, key: str, names: tuple[str, ...]) -> None:
    """Removes `names` from a section, and the section where nothing is left."""
    section = parent.get(key)
    if section is not None:
        parent[key] = {name: value for name, value in section.items() if name not in names}
        if not parent[key]:
            del parent[key]
