"""Other engines' flags, understood and explained, or refused by name."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import yaml
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.cli.main import main
from sluice_operator.cli.translate import sglang, vllm
from sluice_operator.cli.translate.rows import Flag
from sluice_operator.cli.translate.translate import ENGINES, UntranslatableError, translate

ROWS = [(engine, flag) for engine, flags in ENGINES.items() for flag in flags]

# What a person who brings a configuration has, and what they should get.
VLLM = {
    "--enable-chunked-prefill": {},
    "--no-enable-chunked-prefill": {"engine": {"chunkSize": -1}},
    "--max-num-batched-tokens 8192": {"engine": {"chunkSize": 8192}},
    "--max_num_batched_tokens=32k": {"engine": {"chunkSize": 32_000, "maxPrefillTokens": 32_000}},
    "--max-num-seqs 128": {"engine": {"maxRunningRequests": 128}},
    "--gpu-memory-utilization 0.9": {"engine": {"memoryFraction": 0.9}},
    "--block-size 32": {"engine": {"pageSize": 32}},
    "--kv-cache-dtype fp8": {"engine": {"kvCacheDtype": "fp8_e4m3"}},
    "--scheduling-policy priority": {"engine": {"schedulingPolicy": "priority"}},
    "--schedule_policy fcfs": {"engine": {"schedulingPolicy": "fcfs"}},
    "--enable-prefix-caching": {"engine": {"prefixCache": True}},
    "vllm serve Qwen/Qwen3-8B -tp 2": {
        "model": {"uri": "hf://Qwen/Qwen3-8B"},
        "engine": {"tensorParallelSize": 2},
        "pools": {"mixed": {"accelerator": {"count": 2}}},
    },
    "--model /models/a --dtype half": {
        "model": {"uri": "file:///models/a"},
        "engine": {"dtype": "float16"},
    },
    "--host 0.0.0.0 --port 80": {},
    "--trust-remote-code --swap-space 4": {},
    "--enforce-eager": {"engine": {"cudaGraphMaxBatch": 0}},
    "python3 -m vllm.entrypoints.openai.api_server --model /m": {"model": {"uri": "file:///m"}},
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
    "--tp-size 4": {
        "engine": {"tensorParallelSize": 4},
        "pools": {"mixed": {"accelerator": {"count": 4}}},
    },
    "--tp-size 2 --disaggregation-mode decode": {
        "mode": "Disaggregated",
        "engine": {"tensorParallelSize": 2},
        "pools": {role: {"accelerator": {"count": 2}} for role in ("prefill", "decode")},
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
    "--disaggregation-mode decode": {"mode": "Disaggregated"},
    "--disaggregation-mode null": {"mode": "Mixed"},
    "--reasoning-parser qwen3-thinking": {"engine": {"reasoningFormat": "qwen3"}},
    "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8": {
        "engine": {"speculation": {"method": "NGram", "tokens": 8}}
    },
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
}


@pytest.mark.parametrize(
    ("engine", "given", "spec"),
    [("vllm", *row) for row in VLLM.items()] + [("sglang", *row) for row in SGLANG.items()],
)
def test_known_flags_become_settings(engine: str, given: str, spec: dict[str, Any]) -> None:
    found = translate(engine, given.split())
    assert found.spec == spec
    assert len(found.lines) >= 1


@pytest.mark.parametrize(("engine", "flag"), ROWS, ids=lambda v: getattr(v, "names", [v])[0])
def test_every_row_names_a_real_setting_and_explains_itself(engine: str, flag: Flag) -> None:
    assert flag.says
    assert "\n" not in flag.says
    for path in filter(None, (flag.path, *flag.also)):
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
    assert vllm.speculation('{"method":"eagle3","model":"a/head","num_speculative_tokens":3}') == {
        "method": "Eagle",
        "tokens": 3,
        "draft": {"uri": "hf://a/head"},
    }
    (algorithm,) = (flag for flag in sglang.FLAGS if "speculative-algorithm" in flag.names)
    assert algorithm.convert is not None
    assert algorithm.convert("EAGLE3") == "Eagle"


@pytest.mark.parametrize("engine", ENGINES)
def test_no_name_is_in_a_table_twice(engine: str) -> None:
    names = [name for flag in ENGINES[engine] for name in flag.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("given", "line"),
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
            "engine.memoryFraction: Input should be less than 1; got 1.5",
        ),
        (
            "--speculative-config 5",
            "allowed: a JSON object with method ngram, draft_model or eagle3",
        ),
        ('--speculative-config {"method":"medusa"}', "with method ngram, draft_model or eagle3"),
        (
            '--speculative-config {"method":"ngram","num_speculative_tokens":0}',
            "engine.speculation.tokens: Input should be greater than or equal to 1; got 0",
        ),
        ("--kv-offloading-size 0", "'0' is not allowed; allowed: a number above 0"),
        ("--max-num-batched-tokens 8", "allowed: -1 (off) or at least pageSize"),
    ],
)
def test_values_that_have_no_meaning_here_are_refused_by_name(given: str, line: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        translate("vllm", given.split())
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("given", "name", "line"),
    [
        ("--enable-lora", "enable-lora", "--enable-lora: left out, not known here"),
        ("--disable-log-requests --x", "x", "--disable-log-requests: left out, not known here"),
        ("--uvicorn-log-level k", "uvicorn-log-level", "--uvicorn-log-level k: left out"),
        (
            "--max-num-seq 8",
            "max-num-seq",
            "--max-num-seq 8: left out, not known here; did you mean --max-num-seqs?",
        ),
        ("-m vllm.entrypoints.openai.api_server", "m", "--m vllm.entrypoints"),
    ],
)
def test_unknown_flags_are_left_out_with_a_line_and_refused_when_strict(
    given: str, name: str, line: str
) -> None:
    flags = ["--model", "/m", *given.split()]
    found = translate("vllm", flags)
    assert found.spec == {"model": {"uri": "file:///m"}}
    assert any(shown.startswith(line) for shown in found.lines)
    assert any(note.startswith(line) for note in found.notes)
    with pytest.raises(UntranslatableError, match=rf"--{name}: is not known here"):
        translate("vllm", flags, strict=True)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(UntranslatableError) as caught:
        translate("sglang", ["--foo", "1", "--bar", "--page-size", "x"], strict=True)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["--foo", "--bar", "--page-size"]


def test_the_command_prints_yaml_with_a_line_for_each_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--max-num-seqs", "128", "--enable-prefix-caching", "--tp", "2"]
    assert main(["translate", "--from", "vllm", "--", *flags]) == 0
    shown = capsys.readouterr()
    assert yaml.safe_load(shown.out) == {
        "apiVersion": "serving.sluice.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "model"},
        "spec": {
            "engine": {
                "maxRunningRequests": 128,
                "prefixCache": True,
                "tensorParallelSize": 2,
            },
            "pools": {"mixed": {"accelerator": {"count": 2}}},
        },
    }
    comments = [line for line in shown.out.splitlines() if line.startswith("# ")]
    assert comments[0] == (
        "# --max-num-seqs 128 is engine.maxRunningRequests: 128 (most requests that run at once)"
    )
    assert len(comments) == 4
    assert shown.err == "note: model.uri: no flag names it; an InferenceService needs it\n"


@pytest.mark.parametrize(
    ("engine", "given", "note"),
    [
        ("vllm", "--max-num-seqs 8", "model.uri: no flag names it; an InferenceService needs it"),
        (
            "sglang",
            "--model-path /m --max-total-tokens 100003",
            "engine.kvPoolTokens: 100003 is rounded down to 100000, whole pages of 16",
        ),
        (
            "vllm",
            '--model /m --speculative-config {"method":"draft_model","model":"a/draft"}',
            "engine.speculation.draft.uri: add model.cache, to which hf:// is downloaded once",
        ),
    ],
)
def test_what_is_not_there_yet_and_what_was_changed_is_said_on_stderr(
    engine: str, given: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", "--from", engine, "--", *given.split()]) == 0
    assert f"note: {note}" in capsys.readouterr().err


def test_a_pool_smaller_than_a_page_is_refused() -> None:
    with pytest.raises(UntranslatableError) as caught:
        translate("sglang", ["--max-total-tokens", "8"])
    assert "kvPoolTokens: 8 is not allowed; allowed: at least a page (16)" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("/models/Llama-3.1_8B --max-num-seqs 64", "llama-3-1-8b"),
        ("/models/a --served-model-name org/My.Model", "my-model"),
        (f"/models/4-{'ab-' * 20}", "ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-a"),
        ("/models/4", "model"),
    ],
)
def test_what_is_printed_can_be_planned(
    given: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["translate", "--from", "vllm", "--", "vllm", "serve", *given.split()]) == 0
    printed = capsys.readouterr()
    note = "note: engines are on CPUs as it stands; pools.mixed.accelerator: {} gives each a GPU\n"
    assert printed.err == note
    monkeypatch.setattr("sys.stdin", io.StringIO(printed.out))
    assert main(["plan", "-f", "-"]) == 0
    assert f"InferenceService default/{name}: mode Mixed" in capsys.readouterr().out


def test_an_unknown_flag_fails_the_command_only_when_strict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--", "--enable-dp-attention", "--page-size", "32"]
    assert main(["translate", "--from", "sglang", *flags]) == 0
    shown = capsys.readouterr()
    assert yaml.safe_load(shown.out)["spec"] == {"engine": {"pageSize": 32}}
    assert "note: --enable-dp-attention: left out, not known here" in shown.err
    assert main(["translate", "--from", "sglang", "--strict", *flags]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("sglang --enable-dp-attention: is not known here")


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["translate", "--from", "tgi", "--", "--x"])


@pytest.mark.parametrize("engine", ENGINES)
def test_quantisation_is_the_checkpoints_own_and_a_key_is_not_shown(engine: str) -> None:
    flags = ["--quantization", "awq", "--api-key", "sk-1"]
    found = translate(engine, flags, strict=True)
    assert found.spec == {}
    assert found.lines[0].startswith("--quantization awq: nothing to set: config.json says it")
    assert found.lines[1] == "--api-key: use router.auth: keys are in a Secret"
    with pytest.raises(UntranslatableError, match="'bitsandbytes' is not allowed; allowed: awq"):
        translate(engine, ["--quantization", "bitsandbytes"])


def test_what_is_downloaded_has_a_note_on_the_cache() -> None:
    def said(*flags: str) -> list[str]:
        return [note for note in translate("vllm", flags).notes if "model.cache" in note]

    draft = '{"method":"draft_model","model":"%s"}'
    assert said("--model", "/m") == []
    assert said("--model", "s3://a/b") == [
        "model.uri: add model.cache, to which s3:// is downloaded once"
    ]
    assert said("--model", "/m", "--speculative-config", draft % "org/small") == [
        "engine.speculation.draft.uri: add model.cache, to which hf:// is downloaded once"
    ]
    refused = said("--model", "/m", "--speculative-config", draft % "s3://a/b")
    assert "is not implemented yet" in refused[0]
