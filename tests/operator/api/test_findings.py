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
MODEL_URI = (
    "spec.model.uri: Field required; allowed: a URI such as hf://org/name or pvc://claim/path"
)
SPECS: list[tuple[dict[str, Any], str]] = [
    ({"model": {}}, MODEL_URI),
    ({"model": {"uri": None}}, MODEL_URI),
    ({"model": None}, "spec.model: Field required; allowed: an object such as {uri: hf://org/name}"),
    ({"resources": {"limits": {"memory": "2GB"}}},
     'spec.resources.limits.memory: "2GB" is not allowed; allowed: 2G or 2Gi, without B'),
    ({"resources": {"limits": {"memory": "64KiB"}}},
     'spec.resources.limits.memory: "64KiB" is not allowed; allowed: 64k or 64Ki, without B'),
    ({"resources": {"limits": {"memory": "9mb"}}}, 'spec.resources.limits.memory: "9mb" is not '
     "allowed; allowed: an amount such as 2, 500m or 4Gi"),
    ({"engine": []}, "spec.engine: Input should be an object; got []"),
    (_template(env={}), "spec.template.env: Input should be a valid array; got {}"),
    (_template(env=[None]), "spec.template.env[0]: Input should be an object; "
     "got null"),
    (_mixed(replicas="two"), 'spec.replicas: Input should be a valid integer; '
     'got "two"'),
    (_mixed(replicas="2"), 'spec.replicas: Input should be a valid integer; got "2"'),
    (_mixed(replicas=True), "spec.replicas: Input should be a valid integer; got true"),
    (_mixed(replicas=2.5), "spec.replicas: Input should be a valid integer; got 2.5"),
    (_mixed(replicas=-1),
     "spec.replicas: Input should be greater than or equal to 0; got -1"),
    (_mixed(replicas=1001),
     "spec.replicas: Input should be less than or equal to 1000; got 1001"),
    (_template(volumes=[{"name": "a", "emptyDir": {}}],
               volumeMounts=[{"name": "a", "mountPath": "//etc/./sluice/"}]),
     'spec.template.volumeMounts[0].mountPath: "//etc/./sluice/" is not allowed; '
     "allowed: all but /etc/sluice, /mnt/model, /mnt/model-image, /dev/shm, /tmp and what is below "
     "/etc/sluice, which are the operator's"),
    (_template(topologySpreadConstraints=2 * [SPREAD]),
     'spec.template.topologySpreadConstraints[1]: {"topologyKey":"a","whenUnsatisfiable":'
     '"DoNotSchedule"} is not allowed; allowed: each topologyKey, whenUnsatisfiable once'),
    ({"paused": "yes"}, 'spec.paused: Input should be a valid boolean; got "yes"'),
    ({"rollout": {"strategy": "Both"}},
     "spec.rollout.strategy: Input should be 'Surge' or 'InPlace'; got \"Both\""),
    ({"rollout": {"strategy": True}},
     "spec.rollout.strategy: Input should be 'Surge' or 'InPlace'; got true"),
    ({"engine": {"prefixEvictionPolicy": "old"}},
     f'spec.engine.prefixEvictionPolicy: Input should be {POLICIES}; got "old"'),
    ({"engine": {"memoryPercent": "0.5"}},
     'spec.engine.memoryPercent: Input should be a valid integer; got "0.5"; '
     "allowed: 1 to 99 percent, as a whole number"),
    ({"engine": {"memoryPercent": 0.85}},
     "spec.engine.memoryPercent: Input should be a valid integer; got 0.85; allowed: 1 to 99 "
     "percent, as a whole number"),
    ({"prefill": {"engine": {"reservePercent": 0.5}}},
     "spec.prefill.engine.reservePercent: Input should be a valid integer; got 0.5; allowed: 1 to "
     "1000 percent, as a whole number"),
    ({"engine": {"memoryPercent": 100}},
     "spec.engine.memoryPercent: Input should be less than or equal to 99; got 100"),
    ({"slo": {"percentile": 99.5}},
     "spec.slo.percentile: 99.5 is not allowed; allowed: 50 to 99.9: a whole number, or a decimal "
     'one in quotes, as "99.4"'),
    ({"engine": {"speculation": {"tokens": 2}}},
     "spec.engine.speculation.method: Field required; allowed: 'NGram', 'Draft' or 'Eagle'"),
    ({"engine": {"speculation": {"method": "Draft", "draft": {}}}},
     "spec.engine.speculation.draft.uri: Field required; allowed: a valid string"),
    ({"engine": {"hostCache": {"memory": "1Gi", "disk": {}}}},
     "spec.engine.hostCache.disk.size: Field required; "
     "allowed: bytes such as 64Gi or 500G, at least 1"),
    ({"engine": {"kvTransfer": {"backend": "Gloo"}}},
     "spec.engine.kvTransfer.backend: Input should be 'Mooncake', 'TCP' or 'NIXL'; got \"Gloo\""),
    ({"engine": {"kvTransfer": {"bootstrapPort": 0}}},
     "spec.engine.kvTransfer.bootstrapPort: Input should be greater than or equal to 1; got 0"),
    ({"engine": {"kvPoolTokens": 10**20}},
     f"spec.engine.kvPoolTokens: Input should be {INT64}; got 1{20 * '0'}"),
    ({"engine": {"kvPoolTokens": 1e20}},
     f"spec.engine.kvPoolTokens: Input should be {INT64}; got 1e+20"),
    ({"engine": {"chunkSize": -(2**64)}},
     f"spec.engine.chunkSize: Input should be {INT64}; got -18446744073709551616"),
    ({"engine": {"memoryPercent": 10**20}},
     "spec.engine.memoryPercent: Input should be -9223372036854775808 to 9223372036854775807; got "
     "100000000000000000000"),
    ({"engine": {"kvPoolTokens": 10**400}},
     f"spec.engine.kvPoolTokens: Input should be {INT64}; got 1{59 * '0'}…"),
    (_mixed(resources={"requests": {"cpu": 1, "memory": "4Gi"}, "limits": {"memory": "2Gi"}}),
     'spec.resources.requests: {"cpu":1,"memory":"4Gi"} is not allowed; '
     "allowed: at most the limits (memory: 2Gi)"),
    ({"engine": {"image": False}}, "spec.engine.image: Input should be a valid string; got false"),
    ({"engine": {"image": "a b"}}, "spec.engine.image: String should match "
     r"pattern '^\S+$'; got "'"a b"'),
    ({"model": {"uri": "dummy://a", "name": ""}},
     'spec.model.name: String should have at least 1 character; got ""'),
    ({"model": {"uri": "dummy://a", "name": 300 * "x"}},
     f'spec.model.name: String should have at most 256 characters; got "{59 * "x"}…'),
    (_template(nodeSelector={"a": "b c"}),
     f"spec.template.nodeSelector.a: String should match pattern '{LABEL}'; "
     'got "b c"'),
    (_template(labels={64 * "n": "c"}),
     f'spec.template.labels: {{"{58 * "n"}… is not allowed; allowed: keys like '
     f'example.com/name or name (names of at most 63 characters, unlike "{59 * "n"}…)'),
    (_template(sidecars=5 * [{"name": "a", "image": "b"}]),
     "spec.template.sidecars: List should have at most 4 items after validation, "
     'not 5; got [{"name":"a","image":"b"},{"name":"a","image":"b"},{"name":"…'),
    (_mixed(resources={"limits": {"cpu": 0.5}}),
     "spec.resources.limits.cpu: 0.5 is not allowed; "
     "allowed: an amount such as 2, 500m or 4Gi"),
    (_mixed(resources={"limits": {str(key): 1 for key in range(17)}}),
     "spec.resources.limits: Dictionary should have at most 16 items after validation, "
     'not more; got {"0":1,"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1…'),
    ({"engine": {"chunkSize": 10}},
     "spec.engine.chunkSize: 10 is not allowed; "
     "allowed: -1 (off) or at least pageSize (16 when left out)"),
    ({"engine": {"kvTransfer": {}}},
     "spec.engine.kvTransfer: {} is not allowed; allowed: only beside spec.prefill, with two "
     "pools"),
    ({"prefill": None},
     "spec.prefill: null is not allowed; allowed: an object: write `prefill: {}`, or leave it out"),
    ({"mode": "Disaggregated"},
     "spec.mode: unknown field; write prefill: {} where it was Disaggregated, and nothing where it "
     "was Mixed"),
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
     "spec.accelerator.claimTemplate: String should match pattern "
     "'^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$'; got \"My_GPUs\""),
    ({"router": {"inferencePool": {}}},
     "spec.router.inferencePool.endpointPickerRef: Field required; allowed: an object"),
    ({"router": {"inferencePool": {"endpointPickerRef": {"name": "picker", "port": 0}}}},
     "spec.router.inferencePool.endpointPickerRef.port: "
     "Input should be greater than or equal to 1; got 0"),
    ({"routers": {}}, "spec.routers: unknown field; did you mean router? "
     "allowed: router, resources, rollout, metrics, replicas, model and 8 more"),
    ({"engine": {"memoryFraction": 0.5}},
     "spec.engine.memoryFraction: unknown field; write spec.engine.memoryPercent, a hundred times "
     "the number"),
    ({"prefill": {"engine": {"memoryFraction": 0.5}}},
     "spec.prefill.engine.memoryFraction: unknown field; write spec.prefill.engine.memoryPercent, "
     "a hundred times the number"),
    ({"prefill": {"mode": "Mixed"}},
     "spec.prefill.mode: unknown field; allowed: accelerator, autoscaling, engine, replicas, "
     "resources, template"),
    ({"prefill": {"pools": {}}},
     "spec.prefill.pools: unknown field; allowed: accelerator, autoscaling, engine, replicas, "
     "resources, template"),
    ({"pools": {}}, "spec.pools: unknown field; write the pool mixed or decode at the top level of "
     "spec, the pool prefill as spec.prefill"),
    (_template(env=[{"name": "A", "from": {}}]),
     "spec.template.env[0].from: unknown field; allowed: name, value, valueFrom"),
    ({"engine": {"chunk_size": 64}}, "spec.engine.chunk_size: unknown field; did you mean "
     "chunkSize? allowed: chunkSize, mixedChunk, tensorParallelSize, pageSize, hostCache, "
     "kvTransfer and 28 more"),
    ({"engine": {"tempo": None}}, f"spec.engine.tempo: unknown field; allowed: {ENGINE_KEYS}"),
]  # fmt: skip

DOCUMENTS: list[tuple[Any, str]] = [
    ("text", '(document): Input should be an object; got "text"'),
    ({"spec": None}, "spec: Field required; allowed: an object"),
    ({"spec": "fast"}, 'spec: Input should be an object; got "fast"'),
    ({"kind": "Pod"}, 'kind: "Pod" is not allowed; allowed: InferenceService'),
    ({"apiVersion": None}, "apiVersion: Field required; allowed: a valid string"),
    ({"apiVersion": "v1"}, 'apiVersion: "v1" is not allowed; allowed: serving.sluice.dev/v1alpha1'),
    ({"specs": {}}, "specs: unknown field; did you mean spec? "
     "allowed: apiVersion, kind, metadata, spec, status"),
    ({"apiVersion": "serving.kserve.io/v1beta1", "spec": {"predictor": {}}},
     'apiVersion: "serving.kserve.io/v1beta1" is KServe\'s InferenceService; Sluice\'s is '
     "serving.sluice.dev/v1alpha1, whose spec begins with model: {uri: hf://org/name}"),
    ({"metadata": None}, "metadata: Field required; allowed: an object"),
    ({"metadata": {}}, "metadata.name: Field required; allowed: a valid string"),
    ({"metadata": {"name": 5}}, "metadata.name: Input should be a valid string; got 5"),
    ({"metadata": {"name": "Chat_1"}}, 'metadata.name: "Chat_1" is not allowed; allowed: a-z, 0-9 '
     "and '-', first a letter and last no '-', at most 40 characters, as the front Service has the "
     "same name"),
    ({"metadata": {"name": "a", "labels": {"tier": 1}}},
     "metadata.labels.tier: Input should be a valid string; got 1"),
    ({"metadata": {"name": "a", "namespace": "My_NS"}}, "metadata.namespace: "
     "String should match pattern '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'; got \"My_NS\""),
    ({"metadata": {"name": "a", "namespace": 64 * "n"}}, "metadata.namespace: "
     f'String should have at most 63 characters; got "{59 * "n"}…'),
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
        "spec.engine.dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16'; "
        'got "\ufffd"'
    ]


def test_a_pool_is_refused_in_the_same_words() -> None:
    spec = pool()["spec"] | {"role": "judge", "replicas": "2"}
    with pytest.raises(InvalidSpecError) as caught:
        parse(EnginePoolSpec, spec, "spec")
    assert str(caught.value).splitlines() == [
        "spec.role: Input should be 'mixed', 'prefill' or 'decode'; got \"judge\"",
        'spec.replicas: Input should be a valid integer; got "2"',
    ]


def test_other_namespaces_and_keys_are_accepted() -> None:
    keys = {"a": "", "example.com/My.Team_1": "x"}
    metadata = {"name": "a", "namespace": "team-1", "labels": keys}
    metadata["annotations"] = keys | {"Example.com/A": "any text"}
    parse_service(document({}) | {"metadata": metadata})
