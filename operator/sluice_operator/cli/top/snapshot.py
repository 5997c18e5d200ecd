"""Data of `sluice top`, read from the API server with the user's own rights.

One listing of each kind, and for each service the load of one router and the counts of all,
through the API server's proxy of pods. What the user may not read stays empty, and a note names the
rule that is missing. Writes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from prometheus_client.parser import text_string_to_metric_families
from sluice_contract.cluster import labels
from sluice_contract.cluster.ports import ROUTER_METRICS
from sluice_contract.wire.load import ServiceLoad

from sluice_operator.cli.rollout.session import MissingServiceError
from sluice_operator.conditions.pods import is_ready
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import JSON, TEXT, Request, Transport
from sluice_operator.kube.errors import FORBIDDEN, ApiError, UnavailableError
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, POD, Kind, Manifest

MOST_AT_ONCE: Final = 16
"""Most routers' answers that are awaited at a time."""

LEDGER: Final = "sluice_router_ledger_total"
FIRST_TOKENS: Final = "sluice_router_first_byte_seconds_bucket"
Answer = TypeVar("Answer")

Key = tuple[str, str]
"""Namespace and name of a service."""


class RouterLoad(NamedTuple):
    """Load report of one router of a service."""

    router: str
    """The pod that was asked."""
    load: ServiceLoad


class RouterCounts(NamedTuple):
    """Counts of one router since its start."""

    fates: Mapping[str, int]
    """Ended requests for completions by their fate."""
    first_tokens: Mapping[float, int]
    """Streams by the longest seconds from their arrival to their first token: cumulative buckets,
    in rising order, the last infinite."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that was read, at `now`."""

    now: datetime
    services: tuple[Manifest, ...]
    pools: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    loads: Mapping[Key, RouterLoad] = field(default_factory=dict)
    counts: Mapping[Key, Mapping[str, RouterCounts]] = field(default_factory=dict)
    """Counts of a service's routers by pod; empty unless all of its ready routers gave theirs."""
    notes: tuple[str, ...] = ()
    """Notes about what could not be read, and the right that it takes."""
    before: Snapshot | None = None
    """An earlier look, for what happens in a second; None: this one is the first."""


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
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

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
        routers = _routers(services, pods)
        loads, counts = await asyncio.gather(
            asyncio.gather(*(self._load(pods[0]) for pods in routers.values())),
            asyncio.gather(*map(self._counts, routers.values())),
        )
        # A router that gives no load gives no counts either: one note says so.
        unread = (
            next((answer for answer in pair if isinstance(answer, str)), None)
            for pair in zip(loads, counts, strict=True)
        )
        return Snapshot(
            self._clock(),
            services,
            pools,
            pods,
            {k: load for k, load in zip(routers, loads, strict=True) if not isinstance(load, str)},
            {k: each for k, each in zip(routers, counts, strict=True) if not isinstance(each, str)},
            tuple(dict.fromkeys(note for note in (no_pools, no_pods, *unread) if note)),
        )

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

    async def _counts(self, routers: list[Manifest]) -> Mapping[str, RouterCounts] | str:
        """Counts of a service's routers by pod; a note where one does not give them."""
        answers = await asyncio.gather(
            *(self._answer(router, "metrics", TEXT, counts_of) for router in routers)
        )
        counts: dict[str, RouterCounts] = {}
        for router, answer in zip(routers, answers, strict=True):
            if isinstance(answer, str):
                return answer
            counts[str(router["metadata"]["name"])] = answer
        return counts

    async def _load(self, router: Manifest) -> RouterLoad | str:
        """Load that the router's pod reports; a note where it cannot be read."""

        def parsed(body: Any) -> RouterLoad:
            load = ServiceLoad.model_validate_json(json.dumps(body), extra="ignore")
            return RouterLoad(str(router["metadata"]["name"]), load)

        return await self._answer(router, "load", JSON, parsed)

    async def _answer(
        self, router: Manifest, route: str, accept: str, parsed: Callable[[Any], Answer]
    ) -> Answer | str:
        """What a router's pod answers, `parsed`; a note where that cannot be read."""
        namespace, name = router["metadata"]["namespace"], router["metadata"]["name"]
        address = path(POD, namespace, f"{name}:{ROUTER_METRICS}", f"proxy/{route}")
        try:
            async with self._turns:
                answer = await self._transport.send(Request("GET", address, accept=accept))
            if answer.status == FORBIDDEN:
                right = missing_right("get", POD.group, "pods/proxy", f"namespace {namespace}")
                return f"queues, KV pages, ITL and traffic are not shown: {right}"
            if answer.status == 200:
                return parsed(answer.body)
            body = answer.body if isinstance(answer.body, dict) else {}
            problem = f"{answer.status} {body.get('message', '')}".strip()
        except UnavailableError as error:
            problem = str(error)
        except (ValueError, LookupError):
            problem = f"its answer is not the {route} of a router"
        text = f"the API server has to reach port {ROUTER_METRICS} of routers (NetworkPolicy)"
        return f"router {name} in namespace {namespace} reports no {route}: {problem}; {text}"


def counts_of(text: str) -> RouterCounts:
    """Counts in a router's exposition for Prometheus.

    Raises:
        ValueError, LookupError: it is none, or has no counts.
    """
    fates: dict[str, int] = {}
    first_tokens: dict[float, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == LEDGER:
                fates[sample.labels["fate"]] = int(sample.value)
            elif sample.name == FIRST_TOKENS and sample.labels["answer"] == "stream":
                first_tokens[float(sample.labels["le"])] = int(sample.value)
    if not fates or not first_tokens:
        raise ValueError("no counts of a router")
    return RouterCounts(fates, dict(sorted(first_tokens.items())))


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


def _routers(
    services: tuple[Manifest, ...], pods: tuple[Manifest, ...]
) -> dict[Key, list[Manifest]]:
    """The ready routers by name of each service that has one."""
    keys = set(map(key_of, services))
    ready = (pod for pod in pods if role_of(pod) == labels.ROUTER_ROLE and is_ready(pod))
    by_key: dict[Key, list[Manifest]] = {}
    for pod in sorted(ready, key=lambda pod: str(pod["metadata"]["name"])):
        if key_of(pod) in keys:
            by_key.setdefault(key_of(pod), []).append(pod)
    return by_key
