"""The exact lines in which a document is refused: field, value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.validate import parse_service

from tests.operator.api.documents import document
from tests.operator.examples import pool

LABEL = "^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"
ENGINE_KEYS = (
    "attentionBackend, chunkSize, contextLength, cudaGraphMaxBatch, drainSeconds, dtype, "
    "hostCache, image, kvCacheDtype, kvPoolTokens, kvTransfer, "
    "maxLoraRank, maxLorasPerBatch, maxPrefillTokens, maxQueuedRequests, maxRunningRequests, "
    "memoryPercent, minPrefillTokens, mixedChunk, overlap, pageSize, prefixCache, "
    "prefixEvictionPolicy, priorityThreshold, reasoningFormat, "
    "reservePercent, schedulingPolicy, speculation, startupSeconds, strictRequests, "
    "tensorParallelSize, threads, toolCallFormat, weightDtype"
)
POLICIES = "'lru', 'lfu', 'fifo' or 'slru'"
INT64 = "-9223372036854775808 to 9223372036854775807"


def _mixed(**values: Any) -> dict[str, Any]:
    return {**values}


def _template(**values: Any) -> dict[str, Any]:
    return _mixed(template=values)


SPREAD = {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}
MODEL_URI = "spec.model.uri: required; allowed: a URI such as hf://org/name or pvc://claim/path"
SPECS: list[tuple[dict[str, Any], str]] = [
    ({"model": {}}, MODEL_URI),
    ({"model": {"uri": None}}, MODEL_URI),
    ({"model": None}, "spec.model: required; allowed: an object such as {uri: hf://org/name}"),
    ({"resources": {"limits": {"memory": "2GB"}}},
     'spec.resources.limits.memory: "2GB" is not allowed; allowed: 2G or 2Gi, without B'),
    ({"resources": {"limits": {"memory": "64KiB"}}},
     'spec.resources.limits.memory: "64KiB" is not allowed; allowed: 64k or 64Ki, without B'),
    ({"resources": {"limits": {"memory": "9mb"}}}, 'spec.resources.limits.memory: "9mb" is not '
     "allowed; allowed: an amount such as 2, 500m or 4Gi"),
    ({"engine": []}, "spec.engine: [] is not allowed; allowed: an object"),
    (_template(env={}), "spec.template.env: {} is not allowed; allowed: a list"),
    (_template(env=[None]),
     "spec.template.env[0]: null is not allowed; allowed: an object with name, value, "
     "valueFrom"),
    (_mixed(replicas="two"),
     'spec.replicas: "two" is not allowed; allowed: a whole number from 0 to 1000'),
    (_mixed(replicas="2"),
     'spec.replicas: "2" is not allowed; allowed: a whole number from 0 to 1000'),
    (_mixed(replicas=True),
     "spec.replicas: true is not allowed; allowed: a whole number from 0 to 1000"),
    (_mixed(replicas=2.5),
     "spec.replicas: 2.5 is not allowed; allowed: a whole number from 0 to 1000"),
    (_mixed(replicas=-1),
     "spec.replicas: -1 is not allowed; allowed: a whole number from 0 to 1000"),
    (_mixed(replicas=1001),
     "spec.replicas: 1001 is not allowed; allowed: a whole number from 0 to 1000"),
    (_template(volumes=[{"name": "a", "emptyDir": {}}],
               volumeMounts=[{"name": "a", "mountPath": "//etc/./sluice/"}]),
     'spec.template.volumeMounts[0].mountPath: "//etc/./sluice/" is not allowed; '
     "allowed: all but /etc/sluice, /mnt/model, /mnt/model-image, /dev/shm, /tmp and what is below "
     "/etc/sluice, which are the operator's"),
    (_template(topologySpreadConstraints=2 * [SPREAD]),
     'spec.template.topologySpreadConstraints[1]: {"topologyKey":"a","whenUnsatisfiable":'
     '"DoNotSchedule"} is not allowed; allowed: each topologyKey, whenUnsatisfiable once'),
    ({"paused": "yes"}, 'spec.paused: "yes" is not allowed; allowed: true or false'),
    ({"rollout": {"strategy": "Both"}},
     "spec.rollout.strategy: \"Both\" is not allowed; allowed: 'Surge' or 'InPlace'"),
    ({"rollout": {"canary": {"judge": {"answers": True}}}},
     "spec.rollout.canary.judge.answers: unknown field; allowed: errors, marginPoints, slo"),
    ({"rollout": {"canary": {"minutes": 5, "judge": {"errors": False, "slo": False}}}},
     "spec.rollout.canary.minutes: 5 is not allowed; allowed: only with judge.errors or judge.slo: "
     "a person decides about every step"),
    ({"rollout": {"canary": {"steps": [25, 60]}}},
     "spec.rollout.canary.steps[1]: 60 is not allowed; allowed: a number, at most 50"),
    ({"rollout": {"canary": {"steps": [25, 5]}}},
     "spec.rollout.canary.steps: [25,5] is not allowed; allowed: percents that grow with each "
     "step"),
    ({"rollout": {"strategy": "InPlace", "canary": {}}},
     "spec.rollout.canary: {} is not allowed; allowed: only with strategy Surge: the new engines "
     "come in addition to the old ones"),
    ({"rollout": {"strategy": True}},
     "spec.rollout.strategy: true is not allowed; allowed: 'Surge' or 'InPlace'"),
    ({"engine": {"prefixEvictionPolicy": "old"}},
     "spec.engine.prefixEvictionPolicy: \"old\" is not allowed; allowed: 'lru', 'lfu', "
     "'fifo' or 'slru'"),
    ({"engine": {"memoryPercent": "0.5"}},
     'spec.engine.memoryPercent: "0.5" is not allowed; allowed: a whole number from 1 '
     "to 99"),
    ({"engine": {"memoryPercent": 0.85}},
     "spec.engine.memoryPercent: 0.85 is not allowed; allowed: a whole number from 1 "
     "to 99"),
    ({"prefill": {"engine": {"reservePercent": 0.5}}},
     "spec.prefill.engine.reservePercent: 0.5 is not allowed; allowed: a whole number "
     "from 1 to 1000"),
    ({"engine": {"memoryPercent": 100}},
     "spec.engine.memoryPercent: 100 is not allowed; allowed: a whole number from 1 "
     "to 99"),
    ({"slo": {"percentile": 99.5}},
     "spec.slo.percentile: 99.5 is not allowed; allowed: 50 to 99.9: a whole number, or a decimal "
     'one in quotes, as "99.4"'),
    ({"engine": {"speculation": {"tokens": 2}}},
     "spec.engine.speculation.method: required; allowed: 'NGram', 'Draft' or 'Eagle'"),
    ({"engine": {"speculation": {"method": "Draft", "draft": {}}}},
     "spec.engine.speculation.draft.uri: required; allowed: a string"),
    ({"engine": {"hostCache": {"memory": "1Gi", "disk": {}}}},
     "spec.engine.hostCache.disk.size: required; allowed: bytes such as 64Gi or 500G, "
     "at least 1"),
    ({"engine": {"kvTransfer": {"backend": "Gloo"}}},
     "spec.engine.kvTransfer.backend: \"Gloo\" is not allowed; allowed: 'Mooncake', "
     "'TCP' or 'NIXL'"),
    ({"engine": {"kvTransfer": {"bootstrapPort": 0}}},
     "spec.engine.kvTransfer.bootstrapPort: 0 is not allowed; allowed: a whole number "
     "from 1 to 65535"),
    ({"engine": {"kvPoolTokens": 10**20}},
     "spec.engine.kvPoolTokens: 100000000000000000000 is not allowed; allowed: a "
     "whole number, at least 1, of at most 64 bits"),
    ({"engine": {"kvPoolTokens": 1e20}},
     "spec.engine.kvPoolTokens: 1e+20 is not allowed; allowed: a whole number, at "
     "least 1, of at most 64 bits"),
    ({"engine": {"chunkSize": -(2**64)}},
     "spec.engine.chunkSize: -18446744073709551616 is not allowed; allowed: a whole "
     "number from -1 to 1048576, of at most 64 bits"),
    ({"engine": {"memoryPercent": 10**20}},
     "spec.engine.memoryPercent: 100000000000000000000 is not allowed; allowed: a "
     "whole number from 1 to 99, of at most 64 bits"),
    ({"engine": {"kvPoolTokens": 10**400}},
     "spec.engine.kvPoolTokens: "
     "100000000000000000000000000000000000000000000000000000000000… is not allowed; "
     "allowed: a whole number, at least 1, of at most 64 bits"),
    (_mixed(resources={"requests": {"cpu": 1, "memory": "4Gi"}, "limits": {"memory": "2Gi"}}),
     'spec.resources.requests: {"cpu":1,"memory":"4Gi"} is not allowed; '
     "allowed: at most the limits (memory: 2Gi)"),
    ({"engine": {"image": False}}, "spec.engine.image: false is not allowed; allowed: a string"),
    ({"engine": {"image": "a b"}},
     'spec.engine.image: "a b" is not allowed; allowed: a string that matches ^\\S+$'),
    ({"model": {"uri": "dummy://a", "name": ""}},
     'spec.model.name: "" is not allowed; allowed: at least 1 character'),
    ({"model": {"uri": "dummy://a", "name": 300 * "x"}},
     'spec.model.name: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… '
     "is not allowed; allowed: at most 256 characters"),
    (_template(nodeSelector={"a": "b c"}),
     'spec.template.nodeSelector.a: "b c" is not allowed; allowed: a string that '
     "matches ^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"),
    (_template(labels={64 * "n": "c"}),
     f'spec.template.labels: {{"{58 * "n"}… is not allowed; allowed: keys like '
     f'example.com/name or name (names of at most 63 characters, unlike "{59 * "n"}…)'),
    (_template(sidecars=5 * [{"name": "a", "image": "b"}]),
     "spec.template.sidecars: "
     '[{"name":"a","image":"b"},{"name":"a","image":"b"},{"name":"… is not allowed; '
     "allowed: at most 4 items"),
    (_mixed(resources={"limits": {"cpu": 0.5}}),
     "spec.resources.limits.cpu: 0.5 is not allowed; "
     "allowed: an amount such as 2, 500m or 4Gi"),
    (_mixed(resources={"limits": {str(key): 1 for key in range(17)}}),
     "spec.resources.limits: "
     '{"0":1,"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1… is not allowed; '
     "allowed: at most 16 items"),
    ({"engine": {"chunkSize": 10}},
     "spec.engine.chunkSize: 10 is not allowed; "
     "allowed: -1 (off) or at least pageSize (16 when left out)"),
    ({"engine": {"kvTransfer": {}}},
     "spec.engine.kvTransfer: {} is not allowed; allowed: only beside spec.prefill, with two "
     "pools"),
    ({"prefill": None},
     "spec.prefill: null is not allowed; allowed: an object: write `prefill: {}`, or leave it out"),
    (_template(env=[{"name": "POD_IP"}]),
     'spec.template.env[0].name: "POD_IP" is not allowed; '
     "allowed: all but POD_IP, POD_NAME, POD_NAMESPACE, POOL_REVISION, which the operator sets"),
    (_template(env=[{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]),
     'spec.template.env[1]: {"name":"A"} is not allowed; allowed: each name once'),
    (_mixed(accelerator={"claimTemplate": "gpus"}),
     'spec.accelerator.claimTemplate: "gpus" is not allowed; '
     "allowed: only beside count, the devices of a claim, and without resourceName"),
    (_mixed(accelerator={"claimTemplate": "gpus", "count": 2, "resourceName": "amd.com/gpu"}),
     'spec.accelerator.claimTemplate: "gpus" is not allowed; '
     "allowed: only beside count, the devices of a claim, and without resourceName"),
    (_mixed(accelerator={"claimTemplate": "My_GPUs", "count": 2}),
     'spec.accelerator.claimTemplate: "My_GPUs" is not allowed; allowed: a string '
     "that matches ^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"),
    ({"router": {"inferencePool": {}}},
     "spec.router.inferencePool.endpointPickerRef: required; allowed: an object with "
     "failureMode, name, port"),
    ({"router": {"inferencePool": {"endpointPickerRef": {"name": "picker", "port": 0}}}},
     "spec.router.inferencePool.endpointPickerRef.port: 0 is not allowed; allowed: a "
     "whole number from 1 to 65535"),
    ({"routers": {}}, "spec.routers: unknown field; did you mean router? "
     "allowed: router, resources, rollout, metrics, replicas, model and 8 more"),
    ({"prefill": {"mode": "Mixed"}},
     "spec.prefill.mode: unknown field; allowed: accelerator, autoscaling, engine, replicas, "
     "resources, template"),
    (_template(env=[{"name": "A", "from": {}}]),
     "spec.template.env[0].from: unknown field; allowed: name, value, valueFrom"),
    ({"engine": {"chunk_size": 64}}, "spec.engine.chunk_size: unknown field; did you mean "
     "chunkSize? allowed: chunkSize, mixedChunk, tensorParallelSize, pageSize, hostCache, "
     "kvTransfer and 28 more"),
    ({"engine": {"tempo": None}}, f"spec.engine.tempo: unknown field; allowed: {ENGINE_KEYS}"),
]  # fmt: skip

DOCUMENTS: list[tuple[Any, str]] = [
    ("text", '(document): "text" is not allowed; allowed: an object with apiVersion, kind, '
             "metadata, spec, status"),
    ({"spec": None}, "spec: required; allowed: an object"),
    ({"spec": "fast"}, 'spec: "fast" is not allowed; allowed: an object'),
    ({"kind": "Pod"}, 'kind: "Pod" is not allowed; allowed: InferenceService'),
    ({"apiVersion": None}, "apiVersion: required; allowed: a string"),
    ({"apiVersion": "v1"}, 'apiVersion: "v1" is not allowed; allowed: serving.sluice.dev/v1alpha1'),
    ({"specs": {}}, "specs: unknown field; did you mean spec? "
     "allowed: apiVersion, kind, metadata, spec, status"),
    ({"apiVersion": "serving.kserve.io/v1beta1", "spec": {"predictor": {}}},
     'apiVersion: "serving.kserve.io/v1beta1" is KServe\'s InferenceService; Sluice\'s is '
     "serving.sluice.dev/v1alpha1, whose spec begins with model: {uri: hf://org/name}"),
    ({"metadata": None},
     "metadata: required; allowed: an object with annotations, finalizers, labels, "
     "name, namespace"),
    ({"metadata": {}}, "metadata.name: required; allowed: a string"),
    ({"metadata": {"name": 5}}, "metadata.name: 5 is not allowed; allowed: a string"),
    ({"metadata": {"name": "Chat_1"}}, 'metadata.name: "Chat_1" is not allowed; allowed: a-z, 0-9 '
     "and '-', first a letter and last no '-', at most 40 characters, as the front Service has the "
     "same name"),
    ({"metadata": {"name": "a", "labels": {"tier": 1}}},
     "metadata.labels.tier: 1 is not allowed; allowed: a string"),
    ({"metadata": {"name": "a", "namespace": "My_NS"}},
     'metadata.namespace: "My_NS" is not allowed; allowed: a string that matches '
     "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    ({"metadata": {"name": "a", "namespace": 64 * "n"}},
     "metadata.namespace: "
     '"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn… is not allowed; '
     "allowed: at most 63 characters"),
    ({"metadata": {"name": "a", "labels": {"my team": "a"}}},
     'metadata.labels: {"my team":"a"} is not allowed; '
     'allowed: keys like example.com/name or name, unlike "my team"'),
    ({"metadata": {"name": "a", "labels": {64 * "k": "a"}}},
     f'metadata.labels: {{"{58 * "k"}… is not allowed; '
     f'allowed: keys like example.com/name or name, unlike "{59 * "k"}…'),
    ({"metadata": {"name": "a", "annotations": {"a/b/c": "x"}}},
     'metadata.annotations: {"a/b/c":"x"} is not allowed; '
     'allowed: keys like example.com/name or name, unlike "a/b/c"'),
    ({"metadata": {"name": "a", "lables": {}}},
     "metadata.lables: unknown field; did you mean labels? "
     "allowed: annotations, finalizers, labels, name, namespace"),
]  # fmt: skip


def _lines(value: Any) -> list[str]:
    with pytest.raises(InvalidSpecError) as caught:
        parse_service(value)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(("spec", "line"), SPECS)
def test_a_refusal_names_field_value_and_what_is_allowed(spec: dict[str, Any], line: str) -> None:
    assert _lines(document(spec)) == [line]


@pytest.mark.parametrize(("change", "line"), DOCUMENTS)
def test_so_it_does_of_a_document(change: Any, line: str) -> None:
    value = document({}) | change if isinstance(change, dict) else change
    assert _lines(value) == [line]


ELSEWHERE: list[tuple[dict[str, Any], str]] = [
    ({"memory": "8Gi"}, "spec.memory: unknown field; did you mean spec.resources.limits.memory?"),
    ({"resources": {"cpu": 2}},
     "spec.resources.cpu: unknown field; did you mean spec.resources.limits.cpu?"),
    ({"gpus": 1}, "spec.gpus: unknown field; did you mean spec.accelerator.count?"),
    ({"env": []}, "spec.env: unknown field; did you mean spec.template.env?"),
    ({"image": "a"},
     "spec.image: unknown field; did you mean spec.engine.image or spec.router.image?"),
    ({"engine": {"replicas": 2}},
     "spec.engine.replicas: unknown field; did you mean spec.replicas?"),
    ({"engine": {"maxModelLen": 9}},
     "spec.engine.maxModelLen: unknown field; did you mean spec.engine.contextLength?"),
    ({"model": {"uri": "Qwen/Qwen3-8B"}}, "(did you mean hf://Qwen/Qwen3-8B?)"),
    ({"model": {"uri": "hf:Qwen/Qwen3-8B"}}, "(did you mean hf://Qwen/Qwen3-8B?)"),
    ({"model": {"uri": "https://huggingface.co/a/b/"}}, "(did you mean hf://a/b?)"),
    ({"model": {"uri": "/models/x"}}, "(did you mean file:///models/x?)"),
    ({"model": "Qwen/Qwen3-8B"}, "allowed: an object such as {uri: hf://org/name}"),
    ({"accelerator": "L4"}, '"L4" is not allowed; allowed: an object such as {product: NVIDIA-L4'),
    ({"engine": {"dtype": "fp16"}}, '"fp16" is not allowed; did you mean float16? allowed: '),
    ({"engine": {"schedulingPolicy": "LPM"}}, '"LPM" is not allowed; did you mean lpm? allowed: '),
]  # fmt: skip
"""Settings of users of pods, hubs and other engines, and what is meant."""


@pytest.mark.parametrize(("spec", "text"), ELSEWHERE)
def test_a_refusal_names_the_setting_that_is_meant(spec: dict[str, Any], text: str) -> None:
    (line,) = _lines(document(spec))
    assert text in line


@pytest.mark.parametrize("uri", ["a/b/c", "ftp://a/b", "", "Qwen", "hf://a/../b", "/a:b"])
def test_no_uri_is_guessed_that_would_be_refused(uri: str) -> None:
    assert "did you mean" not in " ".join(_lines(document({"model": {"uri": uri}})))


def test_each_rule_that_is_broken_has_its_line() -> None:
    engine = {"chunkSize": 10, "minPrefillTokens": 12, "maxPrefillTokens": 8}
    page = "at least pageSize (16 when left out)"
    budget = {"gpuBudget": 2}
    assert _lines(document({"engine": engine, "autoscaling": budget})) == [
        "spec.autoscaling.gpuBudget: 2 is not allowed; allowed: only beside spec.accelerator, the "
        "GPUs of one engine",
        f"spec.engine.chunkSize: 10 is not allowed; allowed: -1 (off) or {page}",
        f"spec.engine.maxPrefillTokens: 8 is not allowed; allowed: {page}",
        "spec.engine.minPrefillTokens: 12 is not allowed; allowed: at most chunkSize",
        "spec.engine.minPrefillTokens: 12 is not allowed; allowed: at most maxPrefillTokens",
    ]


def test_half_a_surrogate_pair_is_no_character() -> None:
    assert _lines(document({"engine": {"dtype": "\ud800"}})) == [
        'spec.engine.dtype: "\ufffd" is not allowed; '
        "allowed: 'auto', 'float32', 'bfloat16' or 'float16'"
    ]


def test_a_pool_is_refused_in_the_same_words() -> None:
    spec = pool()["spec"] | {"role": "judge", "replicas": "2"}
    with pytest.raises(InvalidSpecError) as caught:
        parse(EnginePoolSpec, spec, "spec")
    assert str(caught.value).splitlines() == [
        "spec.role: \"judge\" is not allowed; allowed: 'mixed', 'prefill' or 'decode'",
        'spec.replicas: "2" is not allowed; allowed: a whole number from 0 to 1000',
    ]


def test_other_namespaces_and_keys_are_accepted() -> None:
    keys = {"a": "", "example.com/My.Team_1": "x"}
    metadata = {"name": "a", "namespace": "team-1", "labels": keys}
    metadata["annotations"] = keys | {"Example.com/A": "any text"}
    parse_service(document({}) | {"metadata": metadata})
