"""Shapes of models and limits of devices, and the cost of a step that follows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sluice_contract.config.accelerators import Accelerator
from sluice_simulator.costs import cost_named
from sluice_simulator.explain.models import ExplainedModel, known_model, model_from
from sluice_simulator.explain.roofline import NoCostError, roofline

from tests.published_configs import CONFIGS


def published(name: str) -> ExplainedModel:
    model = known_model([name])
    assert model is not None
    return model


LLAMA_8B = published("Llama-3.1-8B")


@pytest.mark.parametrize(("name", "billions"), [("Qwen3-8B", 7.57), ("Llama-3.3-70B", 69.5)])
def test_parameters_are_those_of_the_model_without_its_embedding(
    name: str, billions: float
) -> None:
    assert published(name).weight_bytes(1) / 2e9 == pytest.approx(billions, rel=0.01)


def test_a_config_json_gives_a_shape_or_names_the_key() -> None:
    config = {
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32, "intermediate_size": 14_336, "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
    }  # fmt: skip
    shape = model_from(json.dumps(config))
    assert (shape.kv_bytes, shape.token_flop) == (LLAMA_8B.kv_bytes, LLAMA_8B.token_flop)
    same = {"pretraining_tp": 2, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert model_from(json.dumps(config | same)) == shape
    with pytest.raises(ValueError, match="vocab_size: null is not allowed"):
        model_from(json.dumps(config | {"vocab_size": None}))
    with pytest.raises(ValueError, match="JSON object"):
        model_from("[]")
    with pytest.raises(ValueError, match="num_experts_per_tok: null is not allowed"):
        model_from(json.dumps(config | {"num_experts": 8}))
    with pytest.raises(ValueError, match=r"architectures: 'FalconForCausalLM'; allowed: .*Llama"):
        model_from(json.dumps(config | {"architectures": ["FalconForCausalLM"]}))
    quantised = {"quantization_config": {"quant_method": "bitsandbytes"}}
    with pytest.raises(ValueError, match="quant_method: 'bitsandbytes'; allowed: awq"):
        model_from(json.dumps(config | quantised))
    other = {"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24"}}
    with pytest.raises(
        ValueError, match=r"'compressed-tensors \(format marlin-24\)'; allowed: awq"
    ):
        model_from(json.dumps(config | other))


def test_the_limits_of_a_h200_are_those_of_its_preset() -> None:
    h200 = Accelerator(product="NVIDIA-H200", memory_mib=143_771, count=1)
    ours, preset = roofline(LLAMA_8B, h200, 90).coefficients, cost_named("h200-llama3-8b")
    for name in ("weights", "token", "row", "product", "context"):
        expected = getattr(preset.coefficients, name)
        assert getattr(ours, name) == pytest.approx(expected, rel=0.07), name


def test_packed_weights_are_held_and_read_in_their_bits() -> None:
    gpt_oss = model_from(json.dumps(CONFIGS["openai/gpt-oss-120b"]))
    assert gpt_oss.held_bytes(1) == published("gpt-oss-120b").held_bytes(1)
    assert gpt_oss.held_bytes(1) / 2**30 == pytest.approx(60.7, abs=0.1)
    llama = model_from(json.dumps(CONFIGS["RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"]))
    in_fp8, plain = (
        roofline(model, Accelerator(product="H100", count=2), 85).coefficients.weights
        for model in (llama, published("Llama-3.3-70B"))
    )
    assert in_fp8 == pytest.approx(plain / 2, rel=0.05)


def test_a_gpu_that_does_not_keep_weights_packed_holds_them_dequantised() -> None:
    model = published("gpt-oss-20b")
    on_a_t4 = Accelerator(product="Tesla-T4", count=1)
    with pytest.raises(NoCostError, match="weights are 39 GiB"):
        roofline(model, on_a_t4, 85)
    assert roofline(model, Accelerator(product="NVIDIA-A10", count=1), 85).kv_pool_tokens > 0


def test_packed_weights_are_not_divided_within_a_group() -> None:
    qwen = model_from(json.dumps(CONFIGS["Qwen/Qwen3-30B-A3B-FP8"]))
    with pytest.raises(NoCostError, match=r"whole groups of packed weights; allowed: 1, 2, 4$"):
        roofline(qwen, Accelerator(product="H100", count=8), 85)


def test_gpus_with_unequal_parts_hold_and_read_what_the_fullest_has() -> None:
    model = published("gpt-oss-20b")
    experts = 24 * 32 * 3 * 2880 * 17
    for count, groups in ((4, 4 * 23), (8, 8 * 12)):
        assert roofline(model, Accelerator(product="H100", count=count), 85).kv_pool_tokens > 0
        assert model.held_bytes(count) - model.held_bytes(1) == experts * (groups - 90)
        assert model.weight_bytes(count) - model.weight_bytes(1) == experts * (groups - 90)


def test_two_gpus_are_faster_and_less_than_twice() -> None:
    one, two = (
        roofline(LLAMA_8B, Accelerator(product="H100", count=count), 85).coefficients
        for count in (1, 2)
    )
    assert 1.7 < one.token / two.token < 2


def test_gpus_with_copies_of_key_heads_read_and_hold_as_much_as_if_each_had_its_own() -> None:
    shapes, gpus = (
        [replace(LLAMA_8B.shape, kv_heads=heads) for heads in (2, 8)],
        Accelerator(product="H100", count=8),
    )
    copied, own = (roofline(replace(LLAMA_8B, shape=shape), gpus, 85) for shape in shapes)
    assert copied.coefficients.context == own.coefficients.context
    assert copied.coefficients.weights == own.coefficients.weights
    assert copied.kv_pool_tokens == own.kv_pool_tokens


@pytest.mark.parametrize(
    ("accelerator", "says"),
    [
        (Accelerator(product="NVIDIA-Brand-New", count=1), "no figures for NVIDIA-Brand-New"),
        (Accelerator(count=1), "no figures for no product"),
        (Accelerator(product="Tesla-T4", count=1), "15 GiB, and 1 x T4 leave 12 GiB"),
        (Accelerator(product="H100", count=3), "3 GPUs cannot share each layer of"),
        (Accelerator(product="A100-SXM4-40GB-MIG-1g.5gb", memory_mib=5120, count=1), "no figures"),
    ],
)
def test_why_there_is_no_cost_is_said(accelerator: Accelerator, says: str) -> None:
    with pytest.raises(NoCostError, match=says):
        roofline(LLAMA_8B, accelerator, 77)


def test_models_with_experts_or_windows_are_explained_as_the_engine_loads_them() -> None:
    """Qwen3-30B-A3B: 30.5 billion weights, of which a token takes 3.3, embeddings included."""
    experts = {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144,
        "vocab_size": 151_936, "max_position_embeddings": 40_960,
    }  # fmt: skip
    model = model_from(json.dumps(experts))
    assert model.shape.parameters == pytest.approx(30.5e9, rel=2e-3)
    embeddings = 2 * model.shape.hidden_size * model.shape.vocabulary_size
    assert model.token_flop / 2 + embeddings == pytest.approx(3.3e9, rel=2e-2)
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    gemma = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    assert model_from(json.dumps(gemma)).kv_bytes == 2 * 2 * 34 * 4 * 256
