"""Other engines' flags, understood and explained, or refused by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.cli.translate import sglang, vllm
from sluice_operator.cli.translate.rows import REPLICAS, TWO_POOLS, Flag
from sluice_operator.cli.translate.translate import ENGINES, UntranslatableError, translate

ROWS = [(engine, flag) for engine, flags in ENGINES.items() for flag in flags]

# What a person who brings a configuration has, and what they should get.
VLLM = {
    "--enable-chunked-prefill": {},
    "--no-enable-chunked-prefill": {"engine": {"chunkSize": -1}},
    "--max-num-batched-tokens 8192": {"engine": {"chunkSize": 8192}},
    "--max_num_batched_tokens=32k": {"engine": {"chunkSize": 32_000, "maxPrefillTokens": 32_000}},
    "--max-num-seqs 128": {"engine": {"maxRunningRequests": 128}},
    "--gpu-memory-utilization 0.9": {"engine": {"memoryPercent": 90}},
    "--block-size 32": {"engine": {"pageSize": 32}},
    "--kv-cache-dtype fp8": {"engine": {"kvCacheDtype": "fp8_e4m3"}},
    "-dp 3": {"replicas": 3, "accelerator": {"count": 1}},
    "--device cuda": {},
    "--scheduling-policy priority": {"engine": {"schedulingPolicy": "priority"}},
    "--schedule_policy fcfs": {"engine": {"schedulingPolicy": "fcfs"}},
    "--enable-prefix-caching": {"engine": {"prefixCache": True}},
    "vllm serve Qwen/Qwen3-8B -tp 2": {
        "model": {"uri": "hf://Qwen/Qwen3-8B"},
        "engine": {"tensorParallelSize": 2},
        "accelerator": {"count": 2},
    },
    "--model /models/a --dtype half": {
        "model": {"uri": "file:///models/a"},
        "engine": {"dtype": "float16"},
    },
    "--host 0.0.0.0 --port 80": {},
    "--trust-remote-code --swap-space 4": {},
    "--enforce-eager": {"engine": {"cudaGraphMaxBatch": 0}},
    "python3 -m vllm.entrypoints.openai.api_server --model /m": {"model": {"uri": "file:///m"}},
    "CUDA_VISIBLE_DEVICES=0,1 vllm serve /m": {"model": {"uri": "file:///m"}},
    "/usr/bin/python3.11 -m vllm.entrypoints.openai.api_server --model /m --port 80": {
        "model": {"uri": "file:///m"}
    },
    "--enable-auto-tool-choice --tool-call-parser llama3_json": {
        "engine": {"toolCallFormat": "llama3-json"}
    },
    '--speculative-config {"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4}': {
        "engine": {"speculation": {"method": "NGram", "tokens": 5}}
    },
    '--speculative-config={"method":"draft_model","model":"/draft"}': {
        "engine": {"speculation": {"method": "Draft", "draft": {"uri": "file:///draft"}}}
    },
    "--speculative-config.method ngram --speculative-config.num_speculative_tokens 5": {
        "engine": {"speculation": {"method": "NGram", "tokens": 5}}
    },
    '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}': {
        "engine": {"kvTransfer": {"backend": "NIXL", "protocol": "rdma"}},
        "prefill": {},
    },
    '--kv-transfer-config {"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}': {
        "engine": {"kvTransfer": {"backend": "Mooncake"}},
        "prefill": {},
    },
    '--kv-transfer-config {"kv_connector":"MooncakeConnector","kv_role":"kv_consumer",'
    '"kv_connector_extra_config":{"mooncake_protocol":"rdma"}}': {
        "engine": {"kvTransfer": {"backend": "Mooncake", "protocol": "rdma"}},
        "prefill": {},
    },
    "--served-model-name a b c": {"model": {"name": "a", "aliases": ["b", "c"]}},
    '--lora-modules a=/adapters/a {"name":"b","path":"org/b"} --max-loras 2 --max-lora-rank 32': {
        "model": {
            "adapters": [
                {"name": "a", "uri": "file:///adapters/a"},
                {"name": "b", "uri": "hf://org/b"},
            ]
        },
        "engine": {"maxLorasPerBatch": 2, "maxLoraRank": 32},
    },
    "--cudagraph-capture-sizes 1 2 64 8": {"engine": {"cudaGraphMaxBatch": 64}},
    "--cudagraph-capture-sizes 1 2 64 --enforce-eager": {"engine": {"cudaGraphMaxBatch": 0}},
    "--enforce-eager --cudagraph-capture-sizes 1 2 64": {"engine": {"cudaGraphMaxBatch": 0}},
    "--kv-offloading-size 64": {"engine": {"hostCache": {"memory": "64Gi"}}},
    "--kv-offloading-size 0.5": {"engine": {"hostCache": {"memory": "512Mi"}}},
}
SGLANG = {
    "--chunked-prefill-size 4096": {"engine": {"chunkSize": 4096}},
    "--chunked-prefill-size -1": {"engine": {"chunkSize": -1}},
    "--enable-mixed-chunk": {"engine": {"mixedChunk": True}},
    "--cuda-graph-max-bs 256": {"engine": {"cudaGraphMaxBatch": 256}},
    "--max-running-requests 64": {"engine": {"maxRunningRequests": 64}},
    "--kv-cache-dtype fp8_e4m3": {"engine": {"kvCacheDtype": "fp8_e4m3"}},
    "--max-prefill-tokens 8192": {"engine": {"maxPrefillTokens": 8192}},
    "--tp-size 4": {"engine": {"tensorParallelSize": 4}, "accelerator": {"count": 4}},
    "--tp-size 2 --disaggregation-mode decode": {
        "engine": {"tensorParallelSize": 2},
        "accelerator": {"count": 2},
        "prefill": {},
    },
    "--disable-radix-cache": {"engine": {"prefixCache": False}},
    "--schedule-policy lpm": {"engine": {"schedulingPolicy": "lpm"}},
    "--attention-backend torch_native": {"engine": {"attentionBackend": "torch"}},
    "--radix-eviction-policy lfu": {"engine": {"prefixEvictionPolicy": "lfu"}},
    "python -m sglang.launch_server --model-path /m": {"model": {"uri": "file:///m"}},
    "python3 -m sglang.launch_server --model-path /m": {"model": {"uri": "file:///m"}},
    "sglang.launch_server --model-path /m": {"model": {"uri": "file:///m"}},
    "sglang serve --model-path /m --trust-remote-code": {"model": {"uri": "file:///m"}},
    "--disable-cuda-graph": {"engine": {"cudaGraphMaxBatch": 0}},
    "--max-total-tokens 100003": {"engine": {"kvPoolTokens": 100_000}},
    "--max-total-tokens 100003 --page-size 64": {
        "engine": {"kvPoolTokens": 99_968, "pageSize": 64}
    },
    "--max-total-tokens 4096": {"engine": {"kvPoolTokens": 4096}},
    "--disaggregation-mode decode": {"prefill": {}},
    "--disaggregation-mode null": {},
    "--reasoning-parser qwen3-thinking": {"engine": {"reasoningFormat": "qwen3"}},
    "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8": {
        "engine": {"speculation": {"method": "NGram", "tokens": 7}}
    },
    "--speculative-algorithm STANDALONE --speculative-draft-model-path /draft "
    "--speculative-num-draft-tokens 32 --speculative-num-steps 5 --speculative-eagle-topk 8": {
        "engine": {
            "speculation": {"method": "Draft", "tokens": 5, "draft": {"uri": "file:///draft"}}
        }
    },
    "--lora-paths a=/adapters/a /adapters/b": {
        "model": {
            "adapters": [
                {"name": "a", "uri": "file:///adapters/a"},
                {"name": "b", "uri": "file:///adapters/b"},
            ]
        }
    },
    "--schedule-policy fcfs --enable-priority-scheduling": {
        "engine": {"schedulingPolicy": "priority"}
    },
    "--cuda-graph-bs 1 2 4": {"engine": {"cudaGraphMaxBatch": 4}},
    "--speculative-algorithm STANDALONE --speculative-draft-model-path /draft": {
        "engine": {"speculation": {"method": "Draft", "draft": {"uri": "file:///draft"}}}
    },
    "--enable-hierarchical-cache --hicache-size 30": {"engine": {"hostCache": {"memory": "30G"}}},
    "--hicache-size 1.5": {"engine": {"hostCache": {"memory": "1500M"}}},
    "--tool-call-parser qwen25": {"engine": {"toolCallFormat": "hermes"}},
    "--disaggregation-ib-device mlx5_0": {
        "engine": {"kvTransfer": {"device": "mlx5_0", "protocol": "rdma"}}
    },
    "--disaggregation-bootstrap-port 9000": {"engine": {"kvTransfer": {"bootstrapPort": 9000}}},
    "--disaggregation-transfer-backend mooncake": {
        "engine": {"kvTransfer": {"backend": "Mooncake"}}
    },
    "--disaggregation-transfer-backend nixl --disaggregation-ib-device mlx5_0": {
        "engine": {"kvTransfer": {"backend": "NIXL", "protocol": "rdma", "device": "mlx5_0"}}
    },
    "--disaggregation-transfer-backend mooncake_tcp": {
        "engine": {"kvTransfer": {"backend": "Mooncake", "protocol": "tcp"}}
    },
}


ONE_GPU = {"accelerator": {"count": 1}}


def with_gpus(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with a GPU for each engine, where it does not say how many."""
    return ONE_GPU | spec


@pytest.mark.parametrize(
    ("engine", "command", "spec"),
    [("vllm", *row) for row in VLLM.items()] + [("sglang", *row) for row in SGLANG.items()],
)
def test_known_flags_become_settings(engine: str, command: str, spec: dict[str, Any]) -> None:
    translation = translate(engine, command.split())
    assert translation.spec == with_gpus(spec)
    assert translation.lines or translation.comments


def test_only_on_a_cpu_has_an_engine_no_gpu() -> None:
    for flags, gpus in (
        ("", {"count": 1}),
        ("--tp 1 --device auto", {"count": 1}),
        ("--tp 4 --device cuda", {"count": 4}),
        ("--device cpu", None),
    ):
        line = ["vllm", "serve", "/models/a", *flags.split()]
        assert translate("vllm", line).spec.get("accelerator") == gpus
    with pytest.raises(UntranslatableError, match="--device: 'tpu' is not allowed; allowed: auto"):
        translate("vllm", ["--device", "tpu"])


@pytest.mark.parametrize(("engine", "flag"), ROWS, ids=lambda v: getattr(v, "names", [v])[0])
def test_every_row_names_a_real_setting_and_explains_itself(engine: str, flag: Flag) -> None:
    assert flag.says
    assert "\n" not in flag.says
    for path in {flag.path, *flag.also} - {"", REPLICAS, TWO_POOLS}:
        shape: Any = _schema()
        defs = shape["$defs"]
        for part in path.split("."):
            shape = next(s for s in _shapes(shape, defs) if part in s.get("properties", {}))
            shape = shape["properties"][part]


@cache
def _schema() -> dict[str, Any]:
    return InferenceServiceSpec.model_json_schema(by_alias=True)


def _shapes(shape: dict[str, Any], defs: dict[str, Any]) -> list[dict[str, Any]]:
    options = [shape, *shape.get("anyOf", ())]
    return [defs[s["$ref"].rpartition("/")[2]] if "$ref" in s else s for s in options]


def test_a_head_of_eagles_is_a_method_of_its_own() -> None:
    settings = vllm.speculation('{"method":"eagle3","model":"a/head","num_speculative_tokens":3}')
    assert settings.value == {"method": "Eagle", "tokens": 3, "draft": {"uri": "hf://a/head"}}
    (algorithm,) = (flag for flag in sglang.FLAGS if "speculative-algorithm" in flag.names)
    assert algorithm.convert is not None
    assert algorithm.convert("EAGLE3") == "Eagle"


@pytest.mark.parametrize("engine", ENGINES)
def test_no_name_is_in_a_table_twice(engine: str) -> None:
    names = [name for flag in ENGINES[engine] for name in flag.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("python -m sglang.launch_server", "--model: 'sglang.launch_server' is not allowed"),
        ("--max-num-seqs many", "--max-num-seqs: 'many' is not allowed; allowed: a whole number"),
        ("--max-num-seqs 1.5", "--max-num-seqs: '1.5' is not allowed; allowed: a whole number"),
        ("--max-num-seqs", "--max-num-seqs: needs a value"),
        ("--max-num-seqs --host x", "--max-num-seqs: needs a value"),
        ("--enable-prefix-caching=yes", "'yes' is not allowed; allowed: the flag alone"),
        ("--dtype int8", "--dtype: 'int8' is not allowed; allowed: auto, half"),
        ("--kv-cache-dtype fp8_e5m2", "'fp8_e5m2' is not allowed; allowed: auto, fp8, fp8_e4m3"),
        ("--model gpt2", "--model: 'gpt2' is not allowed; allowed: /a/folder"),
        (
            "--gpu-memory-utilization 1.5",
            "engine.memoryPercent: 150 is not allowed; allowed: a whole number from 1 to 99",
        ),
        (
            "--speculative-config 5",
            "allowed: a JSON object with method ngram, draft_model or eagle3",
        ),
        ('--speculative-config {"method":"medusa"}', "with method ngram, draft_model or eagle3"),
        (
            '--speculative-config {"method":"ngram","num_speculative_tokens":0}',
            "engine.speculation.tokens: 0 is not allowed; allowed: a whole number from 1 to",
        ),
        ("--kv-offloading-size 0", "'0' is not allowed; allowed: a number above 0"),
        ("--max-num-batched-tokens 8", "allowed: -1 (off) or at least pageSize"),
    ],
)
def test_values_that_have_no_meaning_here_are_refused_by_name(command: str, line: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        translate("vllm", command.split())
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("command", "name", "line"),
    [
        ("--enable-x", "enable-x", "--enable-x: left out, not known here"),
        ("--disable-log-requests --x", "x", "--x: left out, not known here"),
        ("--x-level k", "x-level", "--x-level k: left out, not known here"),
        ("--x-token k", "x-token", "--x-token: left out, not known here"),
        (
            "--max-num-seq 8",
            "max-num-seq",
            "--max-num-seq 8: left out, not known here; did you mean --max-num-seqs?",
        ),
        ("-m vllm.entrypoints.openai.api_server", "m", "--m vllm.entrypoints"),
    ],
)
def test_unknown_flags_are_left_out_with_a_line_and_refused_when_strict(
    command: str, name: str, line: str
) -> None:
    flags = ["--model", "/m", *command.split()]
    found = translate("vllm", flags)
    assert found.spec == with_gpus({"model": {"uri": "file:///m"}})
    assert any(shown.startswith(line) for shown in found.lines)
    assert any(note.startswith(line) for note in found.notes)
    with pytest.raises(UntranslatableError, match=rf"--{name}: is not known here"):
        translate("vllm", flags, strict=True)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(UntranslatableError) as caught:
        translate("sglang", ["--foo", "1", "--bar", "--page-size", "x"], strict=True)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["--foo", "--bar", "--page-size"]


def test_a_pool_smaller_than_a_page_is_refused() -> None:
    with pytest.raises(UntranslatableError) as caught:
        translate("sglang", ["--max-total-tokens", "8"])
    assert "kvPoolTokens: 8 is not allowed; allowed: at least a page (16)" in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_quantisation_is_the_checkpoints_own_and_a_key_is_not_shown(engine: str) -> None:
    flags = ["--quantization", "awq", "--api-key", "sk-1"]
    found = translate(engine, flags, strict=True)
    assert found.spec == with_gpus({})
    assert found.lines[0].startswith("--quantization awq: nothing to set: config.json says it")
    assert found.lines[1] == "--api-key: use router.auth: keys are in a Secret"
    with pytest.raises(UntranslatableError, match="'bitsandbytes' is not allowed; allowed: awq"):
        translate(engine, ["--quantization", "bitsandbytes"])
