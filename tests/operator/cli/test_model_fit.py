"""Whether a model fits: the same answer from `sluice plan` and `sluice explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.config.model_facts import facts_of
from sluice_contract.wire.explain import Answer, Question
from sluice_operator.cli.explain.command import run as explain
from sluice_operator.cli.main import main

from tests.operator.api.documents import document, spec_file
from tests.operator.model_pods import RESOLVED
from tests.published_configs import CONFIGS

H100 = "NVIDIA-H100-80GB-HBM3"
H200, A10, T4 = "NVIDIA-H200", "NVIDIA-A10", "Tesla-T4"
A100_40, RTX_4080, L40S = "NVIDIA-A100-SXM4-40GB", "NVIDIA-GeForce-RTX-4080", "NVIDIA-L40S"
LLAMA = "hf://meta-llama/Llama-3.3-70B-Instruct"


def service(
    uri: str,
    count: int = 1,
    engine: dict[str, Any] | None = None,
    product: str = H100,
    **model: Any,
) -> Any:
    gpus = {"product": product, "count": count}
    return document({"model": {"uri": uri, **model}, "accelerator": gpus, "engine": engine or {}})


def not_asked(question: Question) -> Answer:
    pytest.fail(f"the simulator was asked about {question.model_names}")


def asked(question: Question) -> Answer:
    return Answer(cost_source="", kv_pool_tokens=0, missing="not simulated here")


MISFITS = [
    (
        service(LLAMA),
        "spec.accelerator.count: Llama-3.3-70B-Instruct does not fit: its weights take 131.4 GiB, "
        f"and 1 x {H100} leaves 66.4 GiB to weights and KV pool; allowed: count 2, GPUs that leave "
        "133 GiB each, or a smaller model.",
    ),
    (service("hf://openai/gpt-oss-120b", product=A100_40), "take 60.7 GiB"),
    (service("hf://openai/gpt-oss-120b", product=T4), "take 217.5 GiB"),
    (
        service("hf://Qwen/Qwen3-30B-A3B-FP8", 8),
        "8 GPUs cannot share each layer of Qwen3-30B-A3B in whole groups of packed weights; "
        "allowed: 1, 2, 4.",
    ),
    (service(f"{LLAMA}-FP8"), "take 67.7 GiB"),
    (service(f"{LLAMA}-FP8"), "leaves 66.4 GiB to weights and KV pool; allowed: count 2,"),
    (
        service("hf://mistralai/Mixtral-8x22B-v0.1", 1),
        "allowed: count 8",
    ),  # 4 keep more memory back
    (service("hf://Qwen/Qwen3-235B-A22B", 4), "; allowed: count 8, GPUs that leave 110 GiB each"),
    (service("hf://acme/qwen3-8b", 3), "3 GPUs cannot share each layer of Qwen3-8B; allowed: 1,"),
    (service("hf://Qwen/Qwen2.5-7B-Instruct", 8), "of Qwen2.5-7B-Instruct; allowed: 1, 2, 4. S"),
]


@pytest.mark.parametrize(("asks", "says"), MISFITS)
def test_a_model_that_does_not_fit_is_an_error_of_plan_and_explain(
    asks: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spec_file(tmp_path, asks)
    texts = []
    for command in (lambda: main(["plan", "-f", file]), lambda: explain(["-f", file], not_asked)):
        assert command() == 1
        texts.append(capsys.readouterr().err)
        assert says in texts[-1]
        assert "assumed from the published config of" in texts[-1]
    assert texts[0] == texts[1]
    assert main(["plan", "-o", "json", "-f", file]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["refusal"]["reason"] == "EnginesWouldNotStart"
    assert main(["render", "-f", file]) == 0, "the operator refuses nothing by assumed sizes"


PLAIN = "Qwen/Qwen3-30B-A3B"
SIX = {
    "openai/gpt-oss-120b": ("does not fit: its weights take 60.7", [(H100, 1), (H100, 8)], A100_40),
    "openai/gpt-oss-20b": ("does not fit: its weights take 12.8", [(A10, 1), (A10, 4)], RTX_4080),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": (
        "does not fit: its weights take 67.7", [(H200, 1), (H100, 2)], H100
    ),
    "casperhansen/llama-3.3-70b-instruct-awq": (
        "does not fit: its weights take 37.3", [(H100, 1), (A100_40, 2)], A100_40
    ),
    PLAIN: ("does not fit: its weights take 56.8", [(H100, 1), (L40S, 2)], L40S),
    f"{PLAIN}-FP8": ("does not fit: its weights take 29.9", [(L40S, 1), (A10, 2)], A10),
}  # fmt: skip
"""GiB of the weights, GPUs that hold them, and a GPU that does not."""


@pytest.mark.parametrize("repository", SIX)
@pytest.mark.parametrize("resolved", [True, False], ids=["by its config", "by its name"])
def test_plan_says_which_gpus_hold_the_models_that_people_deploy(
    repository: str, resolved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    takes, fitting, small = SIX[repository]
    config = CONFIGS.get(repository) or CONFIGS[f"{PLAIN}-FP8"] | {"quantization_config": None}
    facts = facts_of(config).model_dump(exclude_none=True)
    uri = f"hf://{repository}"
    bytes_of_files = 2 * facts["parameters"]
    pin = {"uri": uri, "revision": "main", "commit": "a" * 40, "bytes": bytes_of_files, **facts}
    status = {"status": {"model": pin}} if resolved else {}
    for product, count, exit_status in (*((*gpus, 0) for gpus in fitting), (small, 1, 1)):
        file = spec_file(tmp_path, service(uri, count, product=product) | status)
        assert main(["plan", "-f", file]) == exit_status, (product, count)
        text = "".join(capsys.readouterr())
        assert (takes in text) == bool(exit_status)
        assert ("assumed from" in text) is not resolved


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_gpt_oss_is_shared_by_up_to_eight_gpus(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpt-oss-20b", "gpt-oss-120b"):
        file = spec_file(tmp_path, service(f"hf://openai/{name}", count))
        assert main(["plan", "-f", file]) == 0
        explain(["-f", file], asked)
        assert "cannot share" not in "".join(capsys.readouterr())


def test_the_other_weights_of_a_packed_model_have_the_engines_dtype(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In float32 embeddings and attention of gpt-oss-20b take 3.3 GiB more."""
    for dtype, takes in (("bfloat16", "take 12.8 GiB"), ("float32", "take 16.1 GiB")):
        asks = service("hf://openai/gpt-oss-20b", 1, {"dtype": dtype}, RTX_4080)
        assert main(["plan", "-f", spec_file(tmp_path, asks)]) == 1
        assert takes in capsys.readouterr().err


def test_a_format_that_no_engine_reads_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "compressed-tensors (format pack-quantized)"
    pin = {"uri": LLAMA, "revision": "main", **RESOLVED, "quantization": name}
    asks = service(LLAMA, 4) | {"status": {"model": pin}}
    assert main(["plan", "-f", spec_file(tmp_path, asks)]) == 1
    message = capsys.readouterr().err
    assert f"quantization {name} of commit" in message
    assert "awq, compressed-tensors (format float-quantized), fp8, gptq, modelopt" in message


REFUSED = [
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "GPTQ-Int8, which is refused as UnsupportedQuantizatio"),
    ("unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "bnb-4bit, which is refused as UnsupportedQuant"),
    ("Qwen/Qwen3-8B-GGUF", "GGUF, which has no weights that engines read; allowed: awq, compress"),
]


@pytest.mark.parametrize(("repository", "says"), REFUSED)
def test_a_name_that_says_a_refused_format_is_one_finding_and_advice_outside_the_hub(
    repository: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (lambda f: main(["plan", "-f", f]), lambda f: explain(["-f", f], asked)):
        assert command(spec_file(tmp_path, service(f"hf://{repository}"))) == 1
        message = capsys.readouterr().err
        assert f"spec.model.uri: the name says {says}" in message
        assert "does not fit" not in message
        elsewhere = service(f"pvc://models/{repository.partition('/')[2]}")
        assert command(spec_file(tmp_path, elsewhere)) == 0
        assert f"the name says {says}" in " ".join(capsys.readouterr().out.split())


def test_an_alias_says_nothing_of_a_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spec_file(tmp_path, service("pvc://models/tiny", name="qwen3-8b-gguf"))
    assert main(["plan", "-f", file]) == 0
    assert "the name says" not in capsys.readouterr().out


def test_a_checkpoint_that_is_quantised_gets_no_hint_to_quantise_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its groups cannot be packed."""
    pin = {
        "uri": LLAMA,
        "revision": "main",
        **RESOLVED,
        "bytes": 90_000_000_000,
        "parameters": 45_000_000_000,
    }
    for quantization in ("gptq", None):
        status = {"status": {"model": pin | {"quantization": quantization}}}
        assert main(["plan", "-f", spec_file(tmp_path, service(LLAMA) | status)]) == 1
        message = capsys.readouterr().err
        assert ("in FP8 or 4 bits" in message) == (quantization is None)


@pytest.mark.parametrize("repository", CONFIGS)
def test_a_config_json_says_how_much_packed_weights_take(
    repository: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIGS[repository]))
    for product, status in ((H200, 0), (A10, 0 if repository.endswith("-20b") else 1)):
        file = spec_file(tmp_path, service("pvc://models/any", product=product))
        assert explain(["-f", file, "--model-config", str(config)], asked) == status


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (service("pvc://models/qwen3-8b", 3), "3 GPUs cannot share each layer of Qwen3-8B"),
        (service("pvc://models/tiny", name="llama-3.3-70b"), "Llama-3.3-70B-Instruct does not fit"),
        (service("hf://acme/tiny", name="llama-3.3-70b"), "Llama-3.3-70B-Instruct does not fit"),
    ],
    ids=["another scheme", "an alias", "an alias of a hub's model"],
)
def test_a_name_outside_the_hub_is_advice(
    asks: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spec_file(tmp_path, asks)
    for command in (lambda: main(["plan", "-f", file]), lambda: explain(["-f", file], asked)):
        assert command() == 0
        assert says in " ".join(capsys.readouterr().out.split())


def test_the_resolved_model_and_a_given_config_come_before_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = {"uri": LLAMA, "revision": "main", **RESOLVED}
    small = service(LLAMA) | {"status": {"model": resolved}}
    assert main(["plan", "-f", spec_file(tmp_path, small)]) == 0, "8 billion numbers in fact"
    assert "assumed from" not in capsys.readouterr().out
    large = small | {"status": {"model": resolved | {"bytes": 90_000_000_000}}}
    assert main(["plan", "-f", spec_file(tmp_path, large)]) == 1
    assert "weights take 83.8 GiB" in capsys.readouterr().err
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 1000,
        "intermediate_size": 2048, "max_position_embeddings": 2048,
    }))  # fmt: skip
    words = ["-f", spec_file(tmp_path, service(LLAMA)), "--model-config", str(config)]
    assert explain(words, asked) == 0
    config.write_text("[]")
    assert explain(words, asked) == 0, "the simulator says what is wrong with it"


def test_sizes_that_are_unknown_refuse_no_number_of_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = {key: value for key, value in RESOLVED.items() if key != "tensorParallelSizes"}
    status = {"model": {"uri": "hf://org/thing-7b", "revision": "main", **resolved}}
    asks = service("hf://org/thing-7b", 2) | {"status": status}
    assert main(["plan", "-f", spec_file(tmp_path, asks)]) == 0
    assert "cannot share" not in "".join(capsys.readouterr())


def test_a_limit_of_memory_is_too_small_on_cpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"model": {"uri": "hf://Qwen/Qwen3-4B"}}
    for limit, status in (("4Gi", 1), ("12Gi", 0)):
        spec = model | {"resources": {"limits": {"memory": limit}}}
        assert main(["plan", "-f", spec_file(tmp_path, document(spec))]) == status
    assert main(["plan", "-f", spec_file(tmp_path, document(model))]) == 0, "no limit is known"
    spec = model | {"resources": {"limits": {"memory": "4Gi"}}}
    assert main(["plan", "-f", spec_file(tmp_path, document(spec))]) == 1
    said = capsys.readouterr().err
    assert "spec.resources.limits.memory: Qwen3-4B does not fit" in said
    assert "; allowed: at least 10Gi" in said


def test_a_pool_below_one_context_is_the_first_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spec_file(tmp_path, service(LLAMA, 2))
    assert main(["plan", "-f", file]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "KV pool: about 4,541 tokens an engine" in out
    short = (
        "the KV pool holds 4,541 tokens, less than one context of 131,072, and longer requests are "
        "refused: spec.accelerator.count 4 holds one; spec.engine.kvCacheDtype fp8_e4m3 doubles "
        "the pool; spec.engine.contextLength sets the limit"
    )
    assert short in out
    assert explain(["-f", file], asked) == 0
    hints = capsys.readouterr().out.partition("Hints:\n")[2].splitlines()
    assert hints[0] == f"  - {short}"
    cut = service(LLAMA, 2, {"contextLength": 4096})
    assert main(["plan", "-f", spec_file(tmp_path, cut)]) == 0
    assert "less than one context" not in capsys.readouterr().out
    fp8 = service(LLAMA, 2, {"kvCacheDtype": "fp8_e4m3"})
    assert main(["plan", "-f", spec_file(tmp_path, fp8)]) == 0
    assert "doubles the pool" not in capsys.readouterr().out


@pytest.mark.parametrize("named", [False, True])
def test_a_gated_repository_needs_a_token(
    named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = {"tokenSecretRef": {"name": "hub", "key": "token"}} if named else {}
    file = spec_file(tmp_path, service(LLAMA, 4, None, H100, **token))
    assert main(["plan", "-f", file]) == 0
    assert ("This repository is gated" in capsys.readouterr().out) is not named
    assert explain(["-f", file], asked) == 0
    assert ("spec.model.tokenSecretRef" in capsys.readouterr().out) is not named


def test_sizes_are_shown_before_the_simulation_and_no_cluster_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = list[str]()

    def simulate(question: Question) -> Answer:
        seen.append(capsys.readouterr().out)
        return asked(question)

    assert explain(["-f", spec_file(tmp_path, service("hf://Qwen/Qwen3-8B"))], simulate) == 0
    assert "chunkSize" in seen[0]
    assert "No cluster was asked" in seen[0]
    assert "may not be read" not in seen[0]
    assert "not simulated here" in capsys.readouterr().out


@pytest.mark.parametrize("uri", ["dummy://qwen3-8b", "hf://org/name"])
def test_nothing_is_assumed_of_other_models(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-f", spec_file(tmp_path, service(uri, 64))]) in (0, 1)
    assert "assumed from the published" not in "".join(capsys.readouterr())


def test_the_version_is_a_command_and_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in (["version"], ["--version"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
