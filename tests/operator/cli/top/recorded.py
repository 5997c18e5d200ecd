"""Two services as an API server and their routers show them, for `sluice top`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sluice_contract.cluster import labels
from sluice_contract.wire.load import EngineLoad, LoadReport, ServiceLoad
from sluice_operator.cli.top.snapshot import (
    RouterCounts,
    RouterLoad,
    Snapshot,
    missing_right,
)
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import DELETION_COST, VICTIM

from tests.figures import with_figures

NOW: Final = datetime(2026, 11, 28, 11, 2, 3, tzinfo=UTC)
H100: Final = "NVIDIA-H100-80GB-HBM3"
CHAT: Final = ("shop", "chat")
NO_POOLS: Final = "revisions are not shown: " + missing_right(
    "list", labels.GROUP, "enginepools", "namespace shop"
)
"""A note, whose brackets are no markup."""


def condition(kind: str, status: str, reason: str, message: str = "In words.") -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def service(name: str, **status: Any) -> Manifest:
    metadata = {"name": name, "namespace": "shop", "generation": 3}
    return {
        "apiVersion": labels.API_VERSION,
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {},
        "status": {"observedGeneration": 3, "url": f"http://{name}.shop.svc", **status},
    }


def of_service(name: str, service: str, role: str, revision: str = "") -> Manifest:
    """The metadata of what belongs to a service."""
    marks = {labels.SERVICE: service, labels.ROLE: role, labels.REVISION: revision}
    return {"name": name, "namespace": "shop", "labels": marks}


def pool(service: str, role: str, *revisions: Manifest) -> Manifest:
    return {
        "kind": "EnginePool",
        "metadata": of_service(f"{service}-{role}", service, role),
        "spec": {"role": role},
        "status": {"revisions": list(revisions)},
    }


def revision(
    name: str, replicas: int, ready: int, *, is_current: bool, loading: int = 0
) -> Manifest:
    counts = {"replicas": replicas, "ready": ready, "loading": loading}
    return {"name": name, "config": name, "current": is_current, **counts}


def pod(service: str, role: str, rest: str, *, is_ready: bool = True, **status: Any) -> Manifest:
    """A pod that is named after its pool, its revision and `rest`."""
    found = rest.partition("-")[0] if role != "router" else ""
    ready = condition("Ready", str(is_ready), "")
    return {
        "kind": "Pod",
        "metadata": of_service(f"{service}-{role}-{rest}", service, role, found),
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [ready], **status},
    }


def draining(pod: Manifest, until: str, *, is_victim: bool = False) -> Manifest:
    notes = {"annotations": {DELETION_COST: VICTIM}} if is_victim else {}
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": until} | notes}


def waiting(reason: str) -> list[Manifest]:
    """The engine's container, which does not come up."""
    state = {"waiting": {"reason": reason, "message": "no such image"}}
    return [{"name": "engine", "ready": False, "state": state}]


def load(name: str, role: str, queued: int, running: int, held: int, **more: Any) -> EngineLoad:
    """An engine of 256 rows and 1000 pages, 300 of which at most hold the prefix cache."""
    cached = min(300, 1000 - held)
    condition, time_seconds = more.pop("condition", "ready"), more.pop("at", 0.0)
    figures = {
        "queued_requests": queued,
        "queued_tokens": queued * 1000,
        "running_requests": running,
        "kv_pages_total": 1000,
        "kv_pages_free": 1000 - held - cached,
        "kv_pages_evictable": cached,
    }
    report = LoadReport.model_validate_json(
        LoadReport(
            role=labels.Role(role),
            epoch="e",
            time_seconds=time_seconds,
            draining=condition == "draining",
            max_running_requests=256,
            max_queued_requests=4096,
            page_size_tokens=16,
            **with_figures(figures | more),
        ).model_dump_json()
    )
    return EngineLoad(
        name=name,
        url="http://10.0.0.1:8000",
        condition=condition,
        inflight_requests=running,
        report=report,
        report_age_seconds=0.4,
    )


def service_load(*engines: EngineLoad, waiting: int = 0) -> ServiceLoad:
    return ServiceLoad(draining=False, discovered=True, waiting_requests=waiting, engines=engines)


def counts(first_tokens: Mapping[float, int], **fates: int) -> RouterCounts:
    """Counts of a router; `first_tokens`: streams by the bucket of their TTFT."""
    buckets, total = {}, 0
    for bound in (0.1, 0.5, 2.5, math.inf):
        total += first_tokens.get(bound, 0)
        buckets[bound] = total
    rest = {"resumed": 0, "refused": 0, "abandoned": 0, "lost": 0}
    return RouterCounts({"answered": 0} | rest | fates, buckets)


def _counts(desired: int, replicas: int, ready: int, draining: int = 0) -> Manifest:
    return {
        "desiredReplicas": desired, "replicas": replicas, "readyReplicas": ready,
        "updatedReplicas": ready, "drainingReplicas": draining,
    }  # fmt: skip


def chat() -> Manifest:
    """A disaggregated service in a roll-out."""
    text = "1 of 2 engines ready, 1 of the former revision still serve; the others are starting."
    summary = {"accelerator": H100, "summary": "1/2"}
    return service(
        "chat",
        mode="Disaggregated",
        pools={
            "prefill": _counts(2, 3, 1) | summary,
            "decode": _counts(3, 3, 3, draining=2) | summary,
        },
        conditions=[
            condition("Ready", "True", "Serving"),
            condition("Updated", "False", "RollingOut", f"Pool prefill: {text}"),
            condition("Progressing", "True", "RollingOut"),
            condition("Stalled", "False", "NotStalled"),
        ],
        scaling={
            "reason": "QueueShort",
            "message": "decode 4 → 3: its queue of 0.2 s is below the target of 1 s.",
            "time": "2026-11-28T10:58:00Z",
            "inTimePercent": "99.2",
            "inTimeRequests": 1_250,
            "start": "decode: an engine starts in 41.0 s: image 20.0 s, weights 7.1 s, rest 13.9 s",
        },
        ledger={"answered": 120_345, "resumed": 3, "refused": 12, "abandoned": 40, "lost": 0},
    )


def tiny() -> Manifest:
    """A service whose only engine does not come up."""
    return service(
        "tiny",
        mode="Mixed",
        pools={"mixed": _counts(1, 1, 0)},
        conditions=[
            condition("Ready", "False", "ImagePullBackOff"),
            condition("Updated", "False", "ImagePullBackOff", "pod tiny-mixed-1: no such image"),
            condition("Stalled", "True", "ImagePullBackOff", "pod tiny-mixed-1: no such image"),
        ],
        ledger={"answered": 7, "resumed": 0, "refused": 0, "abandoned": 0, "lost": 2},
    )


def snapshot() -> Snapshot:
    """Both services, with all rights."""
    old, new = "a9de0ec001", "b5e92eb9e2"
    pods = (
        pod("chat", "prefill", f"{old}-7d9f8c6b5d-x7k2p"),
        pod("chat", "prefill", f"{new}-5b8d7f9c44-2vqzm"),
        pod("chat", "prefill", f"{new}-5b8d7f9c44-zz4tl", is_ready=False),
        pod("chat", "decode", "c0ffee0123-6c5d4b7f8b-4jk8s"),
        pod("chat", "decode", "c0ffee0123-6c5d4b7f8b-9w2xx"),
        pod("chat", "decode", "c0ffee0123-6c5d4b7f8b-bb7ln"),
        draining(
            pod("chat", "decode", "c0ffee0123-6c5d4b7f8b-hh5pd"),
            "2026-11-28T11:02:45Z",
            is_victim=True,
        ),
        draining(pod("chat", "decode", f"{old}-7f7f7f7f7f-kk3rt"), "2026-11-28T11:02:33Z"),
        pod("chat", "router", "6f9b5c4d7c-2m4kq"),
        pod("chat", "router", "6f9b5c4d7c-n8v7x"),
        pod(
            "tiny",
            "mixed",
            "1-85f7-qq2ww",
            is_ready=False,
            containerStatuses=waiting("ImagePullBackOff"),
        ),
        pod("tiny", "router", "77c6b8d9f5-vv9dd"),
    )
    engines = (
        load(
            f"chat-prefill-{old}-7d9f8c6b5d-x7k2p",
            "prefill",
            12,
            4,
            410,
            at=10.0,
            prompt_tokens_total=184_000,
        ),
        load(f"chat-prefill-{new}-5b8d7f9c44-2vqzm", "prefill", 3, 4, 220),
        load(
            "chat-decode-c0ffee0123-6c5d4b7f8b-4jk8s",
            "decode",
            6,
            212,
            930,
            itl_seconds=0.0312,
            slo_late_requests=2,
            at=10.0,
            generated_tokens_total=68_210,
        ),
        load(
            "chat-decode-c0ffee0123-6c5d4b7f8b-9w2xx",
            "decode",
            0,
            64,
            350,
            itl_seconds=0.0094,
            slo_late_requests=0,
        ),
        load("chat-decode-c0ffee0123-6c5d4b7f8b-bb7ln", "decode", 0, 80, 420, condition="failing"),
        load(
            "chat-decode-c0ffee0123-6c5d4b7f8b-hh5pd",
            "decode",
            0,
            9,
            80,
            condition="draining",
            itl_seconds=0.0081,
        ),
    )
    current = revision("c0ffee0123", 3, 3, is_current=True)
    prefill = (
        revision(new, 2, 1, is_current=True, loading=1),
        revision(old, 1, 1, is_current=False),
    )
    first, second = (f"chat-router-6f9b5c4d7c-{rest}" for rest in ("2m4kq", "n8v7x"))
    before = (
        load(
            f"chat-prefill-{old}-7d9f8c6b5d-x7k2p", "prefill", 0, 0, 0, prompt_tokens_total=92_000
        ),
        load(
            "chat-decode-c0ffee0123-6c5d4b7f8b-4jk8s",
            "decode",
            0,
            0,
            0,
            generated_tokens_total=0,
        ),
    )
    earlier = Snapshot(
        NOW - timedelta(seconds=10),
        (),
        loads={CHAT: RouterLoad(first, service_load(*before))},
        counts={
            CHAT: {
                first: counts({0.1: 10}, answered=60_300, abandoned=40),
                second: counts({}, answered=60_000, resumed=3),
            }
        },
    )
    return Snapshot(
        NOW,
        (chat(), tiny()),
        (
            pool("chat", "prefill", *prefill),
            pool("chat", "decode", current),
            pool("tiny", "mixed", revision("1", 1, 0, is_current=True)),
        ),
        pods,
        {
            CHAT: RouterLoad(first, service_load(*engines)),
            ("shop", "tiny"): RouterLoad("tiny-router-77c6b8d9f5-vv9dd", service_load(waiting=5)),
        },
        {
            CHAT: {
                first: counts({0.1: 80, 0.5: 40, 2.5: 12}, answered=60_345, abandoned=40),
                second: counts({0.5: 10}, answered=60_000, resumed=3, refused=12),
            }
        },
        (NO_POOLS,),
        earlier,
    )
