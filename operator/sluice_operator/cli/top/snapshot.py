"""Data of `sluice top`, read from the API server with the user's own rights.

One listing of each kind, and one request a service: its router's load, through the API server's
proxy of pods. What the user may not read stays empty, and a note names the rule that is missing.
Writes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from pydantic import ValidationError
from sluice_contract.cluster import labels
from sluice_contract.cluster.ports import ROUTER_METRICS
from sluice_contract.wire.load import ServiceLoad

from sluice_operator.cli.rollout.session import MissingServiceError
from sluice_operator.conditions.pods import is_ready
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import Request, Transport
from sluice_operator.kube.errors import FORBIDDEN, ApiError, UnavailableError
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, POD, Kind, Manifest

MOST_AT_ONCE: Final = 16
"""Most routers that are asked at a time."""

Key = tuple[str, str]
"""Namespace and name of a service."""


class RouterLoad(NamedTuple):
    """Load report of one router of a service."""

    router: str
    """The pod that was asked."""
    load: ServiceLoad


@dataclass(frozen=True)
class Snapshot:
    """Everything that was read, at `now`."""

    now: datetime
    services: tuple[Manifest, ...]
    pools: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    loads: Mapping[Key, RouterLoad] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes about what could not be read, and the right that it takes."""


class ClusterReader:
    """Reads services of one namespace, or of all where `namespace` is None, or the one called
    `name`."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], datetime],
        namespace: str | None,
        name: str | None = None,
    ) -> None:
        self._transport = transport
        self._client = ApiClient(transport, lambda verb, plural: None)
        self._clock = clock
        self._namespace = namespace
        self._name = name

    async def snapshot(self) -> Snapshot:
        """The cluster now.

        Raises:
            MissingServiceError: there is no service called `name`.
            ApiError: services may not be read.
            UnavailableError: the API server does not answer.
        """
        services, (pools, no_pools), (pods, no_pods) = await asyncio.gather(
            self._services(),
            self._listed(ENGINE_POOL, "revisions and roll-outs of pools are not shown"),
            self._listed(POD, "states of pods and loads of engines are not shown"),
        )
        loads, no_loads = await self._loads(services, pods)
        notes = tuple(note for note in (no_pools, no_pods, *no_loads) if note)
        return Snapshot(self._clock(), services, pools, pods, loads, notes)

    async def _services(self) -> tuple[Manifest, ...]:
        if self._name is None:
            listed = await self._client.list_objects(INFERENCE_SERVICE, self._namespace)
            return tuple(sorted(listed, key=key_of))
        service = await self._client.get(INFERENCE_SERVICE, self._namespace, self._name)
        if service is None:
            text = f"InferenceService {self._name} is not in namespace {self._namespace}"
            raise MissingServiceError(text)
        return (service,)

    async def _listed(self, kind: Kind, lost: str) -> tuple[tuple[Manifest, ...], str | None]:
        """The objects of the services; none, and a note, where the user may not list them."""
        selector = labels.SERVICE + (f"={self._name}" if self._name else "")
        try:
            return await self._client.list_objects(kind, self._namespace, selector), None
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            where = f"namespace {self._namespace}" if self._namespace else "all namespaces"
            return (), f"{lost}: {missing_right('list', kind.group, kind.plural, where)}"

    async def _loads(
        self, services: tuple[Manifest, ...], pods: tuple[Manifest, ...]
    ) -> tuple[dict[Key, RouterLoad], list[str]]:
        """The load report of a ready router of each service, and notes about routers without
        one."""
        turns = asyncio.Semaphore(MOST_AT_ONCE)
        routers = _routers(services, pods)

        async def ask(router: Manifest) -> RouterLoad | str:
            async with turns:
                return await self._load(router)

        answers = await asyncio.gather(*map(ask, routers.values()))
        loads = {
            key: answer
            for key, answer in zip(routers, answers, strict=True)
            if isinstance(answer, RouterLoad)
        }
        notes = [answer for answer in answers if isinstance(answer, str)]
        return loads, list(dict.fromkeys(notes))

    async def _load(self, router: Manifest) -> RouterLoad | str:
        """Load that the router's pod reports; a note where it cannot be had."""
        namespace, name = router["metadata"]["namespace"], router["metadata"]["name"]
        address = path(POD, namespace, f"{name}:{ROUTER_METRICS}", "proxy/load")
        try:
            answer = await self._transport.send(Request("GET", address))
            if answer.status == FORBIDDEN:
                right = missing_right("get", POD.group, "pods/proxy", f"namespace {namespace}")
                return f"queues, KV pages and ITL are not shown: {right}"
            if answer.status == 200:
                text = json.dumps(answer.body)
                return RouterLoad(name, ServiceLoad.model_validate_json(text, extra="ignore"))
            body = answer.body if isinstance(answer.body, dict) else {}
            problem = f"{answer.status} {body.get('message', '')}".strip()
        except UnavailableError as error:
            problem = str(error)
        except ValidationError:
            problem = "its answer is not the load of a service"
        text = f"the API server has to reach port {ROUTER_METRICS} of routers (NetworkPolicy)"
        return f"router {name} in namespace {namespace} reports no load: {problem}; {text}"


def key_of(item: Manifest) -> Key:
    """Key of a service, or of the service that a labelled object belongs to."""
    metadata = item["metadata"]
    name = (metadata.get("labels") or {}).get(labels.SERVICE)
    is_service = item.get("kind") == INFERENCE_SERVICE.kind
    return metadata["namespace"], metadata["name"] if is_service else str(name)


def role_of(pod: Manifest) -> str:
    """The pool of an engine, or `router`."""
    return str((pod["metadata"].get("labels") or {}).get(labels.ROLE, ""))


def missing_right(verb: str, group: str, resource: str, where: str) -> str:
    """Note about a right that the user lacks, with the rule for a Role that grants it."""
    rule = f'{{apiGroups: ["{group}"], resources: [{resource}], verbs: [{verb}]}}'
    return f"no right to {verb} {resource} in {where}; a Role needs the rule {rule}"


def _routers(services: tuple[Manifest, ...], pods: tuple[Manifest, ...]) -> dict[Key, Manifest]:
    """A ready router of each service that has one, the first by name."""
    keys = set(map(key_of, services))
    ready = (pod for pod in pods if role_of(pod) == labels.ROUTER_ROLE and is_ready(pod))
    by_key: dict[Key, Manifest] = {}
    for pod in sorted(ready, key=lambda pod: str(pod["metadata"]["name"])):
        if key_of(pod) in keys:
            by_key.setdefault(key_of(pod), pod)
    return by_key
