"""Specs that must be refused, and the field that the refusal must name."""

from __future__ import annotations

from typing import Any

from tests.operator.api.invalid_models import INVALID_MODELS
from tests.operator.api.invalid_pods import INVALID_PODS
from tests.operator.api.valid_specs import Invalid, engine, tenants, traced

SPLIT: dict[str, Any] = {
    "accelerator": {"count": 1},
    "autoscaling": {"gpuBudget": 4},
    "prefill": {},
}
"""Two pools whose numbers the operator chooses."""
INVALID: dict[str, Invalid] = {
    **INVALID_MODELS,
    **INVALID_PODS,
    "an origin with a path": Invalid(
        {"router": {"cors": {"allowedOrigins": ["https://a.example/b"]}}},
        "spec.router.cors.allowedOrigins[0]",
    ),
    "a route from nowhere": Invalid({"router": {"route": {}}}, "spec.router.route.parentRefs"),
    "a route without a Gateway": Invalid(
        {"router": {"route": {"parentRefs": []}}}, "spec.router.route.parentRefs"
    ),
    "a route whose path climbs": Invalid(
        {"router": {"route": {"parentRefs": [{"name": "a"}], "path": "/a/../b"}}},
        "spec.router.route.path",
    ),
    "a route with a port in its host": Invalid(
        {"router": {"route": {"parentRefs": [{"name": "a"}], "hostnames": ["a.example:80"]}}},
        "spec.router.route.hostnames[0]",
    ),
    "a hand-over without two pools": Invalid(
        engine(kvTransfer={}), "spec.engine.kvTransfer", "only beside spec.prefill"
    ),
    "a hand-over of one of two pools": Invalid(
        {"prefill": engine(kvTransfer={})}, "spec.prefill.engine.kvTransfer", "for both pools"
    ),
    "a number beside a budget that the operator splits": Invalid(
        SPLIT | {"replicas": 2}, "spec.replicas", "only with prefill.replicas"
    ),
    "one pool's number beside a budget that the operator splits": Invalid(
        SPLIT | {"prefill": {"replicas": 2}}, "spec.prefill", "only with spec.replicas"
    ),
    "a budget of no GPUs' kind": Invalid(
        {"replicas": 2, "autoscaling": {"gpuBudget": 4}},
        "spec.autoscaling.gpuBudget",
        "only beside spec.accelerator",
    ),
    "a queue for decode in one pool": Invalid(
        {"autoscaling": {"minReplicas": 1, "maxReplicas": 2, "target": {"decodeQueue": 4}}},
        "spec.autoscaling.target.decodeQueue",
        "only beside spec.prefill",
    ),
    "a promise for all requests": Invalid(
        {"slo": {"ttftMilliseconds": 500, "percentile": "99.95"}},
        "spec.slo.percentile",
        "50 to 99.9: a whole number",
    ),
    "a promise as a fraction": Invalid(
        {"slo": {"ttftMilliseconds": 500, "percentile": 99.5}}, "spec.slo.percentile"
    ),
    "a promise in words": Invalid(
        {"slo": {"ttftMilliseconds": 500, "percentile": "most"}}, "spec.slo.percentile"
    ),
    "more than all requests traced": Invalid(
        {"tracing": {"endpoint": "http://h", "samplePercent": 101}},
        "spec.tracing.samplePercent",
        "0 to 100",
    ),
    "min above max": Invalid(
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "spec.autoscaling.minReplicas",
        "maxReplicas",
    ),
    "no max": Invalid(
        {"autoscaling": {"minReplicas": 3}}, "spec.autoscaling", "maxReplicas, or neither"
    ),
    "no max of prefill engines": Invalid(
        {"prefill": {"autoscaling": {"minReplicas": 3}}}, "spec.prefill.autoscaling.maxReplicas"
    ),
    "replicas beside autoscaling": Invalid(
        {"replicas": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 2}},
        "spec.replicas",
        "replicas, or minReplicas and maxReplicas of autoscaling, not both",
    ),
    "replicas beside autoscaling of prefill engines": Invalid(
        {"prefill": {"replicas": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 2}}},
        "spec.prefill.replicas",
        "not both",
    ),
    "a resource without a domain": Invalid(
        {"accelerator": {"resourceName": "gpu"}}, "spec.accelerator.resourceName"
    ),
    "a resource of Kubernetes itself": Invalid(
        {"accelerator": {"resourceName": "node.kubernetes.io/gpu"}},
        "spec.accelerator.resourceName",
        "extended resource",
    ),
    "a label of no product": Invalid(
        {"accelerator": {"productLabel": "cloud.google.com/gke-accelerator"}},
        "spec.accelerator.productLabel",
        "only beside product",
    ),
    "a setting of one pool that is out of range": Invalid(
        {"engine": {"chunkSize": 8}}, "spec.engine.chunkSize", "pageSize"
    ),
    "negative replicas": Invalid({"replicas": -1}, "spec.replicas"),
    "text as replicas": Invalid({"replicas": "two"}, "spec.replicas"),
    "no GPU": Invalid({"accelerator": {"count": 0}}, "spec.accelerator.count"),
    "chunk below page": Invalid(engine(chunkSize=8), "spec.engine.chunkSize", "pageSize"),
    "chunk below given page": Invalid(
        engine(chunkSize=64, pageSize=128), "spec.engine.chunkSize", "pageSize"
    ),
    "prefill's own chunk below its own page": Invalid(
        {"prefill": engine(chunkSize=64, pageSize=128)}, "spec.prefill.engine.chunkSize", "pageSize"
    ),
    "prefill's own least above its own most": Invalid(
        {"prefill": engine(minPrefillTokens=65, maxPrefillTokens=64)},
        "spec.prefill.engine.minPrefillTokens",
    ),
    "chunk below off": Invalid(engine(chunkSize=-2), "spec.engine.chunkSize"),
    "a step of nothing": Invalid(engine(maxPrefillTokens=0), "spec.engine.maxPrefillTokens"),
    "chunk of nothing": Invalid(engine(chunkSize=0), "spec.engine.chunkSize"),
    "share above chunk": Invalid(
        engine(chunkSize=64, minPrefillTokens=65), "spec.engine.minPrefillTokens", "chunkSize"
    ),
    "share above the most of a step": Invalid(
        engine(minPrefillTokens=65, maxPrefillTokens=64),
        "spec.engine.minPrefillTokens",
        "maxPrefillTokens",
    ),
    "a step below page": Invalid(
        engine(maxPrefillTokens=8), "spec.engine.maxPrefillTokens", "pageSize"
    ),
    "all memory": Invalid(engine(memoryPercent=100), "spec.engine.memoryPercent"),
    "unknown dtype": Invalid(engine(dtype="int3"), "spec.engine.dtype"),
    "unknown policy": Invalid(engine(schedulingPolicy="best"), "spec.engine.schedulingPolicy"),
    "image with a blank": Invalid(engine(image="a b"), "spec.engine.image"),
    "too short a start": Invalid(engine(startupSeconds=1), "spec.engine.startupSeconds"),
    "no routers": Invalid({"router": {"replicas": 0}}, "spec.router.replicas"),
    "auth without a secret": Invalid({"router": {"auth": {}}}, "spec.router.auth.secretRef"),
    "a default above the maximum": Invalid(
        tenants({"name": "a", "defaultPriority": 2, "maxPriority": 1}),
        "spec.router.auth.tenants[0].defaultPriority",
        "defaultPriority at most maxPriority",
    ),
    "a tenant twice": Invalid(tenants({"name": "a"}, {"name": "a"}), "spec.router.auth.tenants[1]"),
    "unknown strategy": Invalid({"rollout": {"strategy": "Big"}}, "spec.rollout.strategy"),
    "a canary in place": Invalid(
        {"rollout": {"strategy": "InPlace", "canary": {}}},
        "spec.rollout.canary",
        "only with strategy Surge",
    ),
    "canary steps that shrink": Invalid(
        {"rollout": {"canary": {"steps": [25, 5]}}},
        "spec.rollout.canary.steps",
        "percents that grow with each step",
    ),
    "minutes of a canary without a judge": Invalid(
        {"rollout": {"canary": {"minutes": 5, "judge": {"errors": False, "slo": False}}}},
        "spec.rollout.canary.minutes",
        "only with judge.errors",
    ),
    "a canary of a day and a minute": Invalid(
        {"rollout": {"canary": {"minutes": 1441}}}, "spec.rollout.canary.minutes"
    ),
    "a canary of one minute, in which no speeds are compared": Invalid(
        {"rollout": {"canary": {"minutes": 1}}}, "spec.rollout.canary.minutes"
    ),
    "a canary step twice": Invalid(
        {"rollout": {"canary": {"steps": [5, 5]}}},
        "spec.rollout.canary.steps",
        "percents that grow with each step",
    ),
    "a canary without a step": Invalid(
        {"rollout": {"canary": {"steps": []}}}, "spec.rollout.canary.steps"
    ),
    "a canary's step of all": Invalid(
        {"rollout": {"canary": {"steps": [50, 51]}}}, "spec.rollout.canary.steps[1]"
    ),
    "unknown provider": Invalid({"autoscaling": {"provider": "Me"}}, "spec.autoscaling.provider"),
    "a collector's port above all ports": Invalid(
        traced("http://h:99999"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's port just above": Invalid(
        traced("https://h:65536/a"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's port of 0": Invalid(
        traced("http://h:0"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's port by name": Invalid(
        traced("http://h:otlp/"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's address that is not closed": Invalid(
        traced("http://[::1/a"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "no time at all": Invalid({"slo": {"ttftMilliseconds": 0}}, "spec.slo.ttftMilliseconds"),
    "an integer as text": Invalid({"replicas": "2"}, "spec.replicas"),
    "an integer as a boolean": Invalid({"replicas": True}, "spec.replicas"),
    "an integer as a fraction": Invalid({"replicas": 2.5}, "spec.replicas"),
    "an integer of 65 bits": Invalid(engine(kvPoolTokens=2**64), "spec.engine.kvPoolTokens"),
    "an integer of the contract's as text": Invalid(
        engine(kvTransfer={"bootstrapPort": "5"}), "spec.engine.kvTransfer.bootstrapPort"
    ),
    "a number as text": Invalid(engine(memoryPercent="50"), "spec.engine.memoryPercent"),
    "a number as a boolean": Invalid(engine(memoryPercent=True), "spec.engine.memoryPercent"),
    "a boolean as text": Invalid({"paused": "true"}, "spec.paused"),
    "a boolean as a number": Invalid({"paused": 1}, "spec.paused"),
    "a text as a boolean": Invalid(engine(image=False), "spec.engine.image"),
    "a choice as a boolean": Invalid({"rollout": {"strategy": True}}, "spec.rollout.strategy"),
    "a mapping as a list": Invalid({"engine": []}, "spec.engine"),
    "a mapping as text": Invalid({"engine": "fast"}, "spec.engine"),
}

SEVERAL: dict[str, tuple[dict[str, Any], set[str]]] = {
    "values of one type": (
        {"rollout": {"strategy": "Big"}, "engine": {"dtype": "int3", "pageSize": "16"}},
        {"spec.rollout.strategy", "spec.engine.dtype", "spec.engine.pageSize"},
    ),
    "rules of one type": (
        engine(chunkSize=10, minPrefillTokens=12, maxPrefillTokens=8),
        {f"spec.engine.{key}" for key in ("chunkSize", "minPrefillTokens", "maxPrefillTokens")},
    ),
    "rules of several types": (
        engine(chunkSize=10) | {"prefill": engine(kvTransfer={})},
        {"spec.engine.chunkSize", "spec.prefill.engine.kvTransfer"},
    ),
    "a value, and a rule that waits for it": (
        engine(chunkSize=10, dtype="int3"),
        {"spec.engine.dtype"},
    ),
}
"""Specs with several mistakes, and all fields that the one refusal must name."""

INVALID_NAMES = ("Chat", "1chat", "chat.a", "a" * 41, "chat-")
