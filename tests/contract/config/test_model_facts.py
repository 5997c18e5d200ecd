"""What config.json says, in the forms that there are; what is not as it should be is left out."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.config.model_facts import facts_of

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "vocab_size": 128_256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}


def test_heads_that_are_not_said_follow_from_those_of_queries() -> None:
    facts = facts_of(LLAMA)
    assert (facts.kv_heads, facts.head_dim, facts.dtype) == (32, 128, "bfloat16")
    facts = facts_of(LLAMA | {"num_key_value_heads": 8, "head_dim": 64, "dtype": "float16"})
    assert (facts.kv_heads, facts.head_dim, facts.dtype) == (8, 64, "float16")


@pytest.mark.parametrize(
    ("config", "quantization"),
    [
        ({}, None),
        ({"quantization_config": None}, None),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"compression_config": {"format": "x"}}, "compression_config"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"quantization_config": {"quant_method": "x" * 200}}, "x" * 128),
    ],
)
def test_quantised_weights_are_named_by_their_method(
    config: dict[str, Any], quantization: str | None
) -> None:
    assert facts_of(LLAMA | config).quantization == quantization


QWEN3_8B = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
}
QWEN3_30B = QWEN3_8B | {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


MIXTRAL_8X7B = QWEN3_8B | {
    "vocab_size": 32_000,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
GPT_OSS_20B = {
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131_072,
}


@pytest.mark.parametrize(
    ("config", "billions"),
    [(QWEN3_8B, 8.19), (QWEN3_30B, 30.5), (MIXTRAL_8X7B, 46.7), (GPT_OSS_20B, 20.9)],
)
def test_the_number_of_weights_is_as_published(config: dict[str, Any], billions: float) -> None:
    assert (facts_of(config).parameters or 0) / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("key", sorted(QWEN3_8B.keys() - {"num_key_value_heads", "head_dim"}))
def test_the_number_of_weights_is_not_known_without_a_size(key: str) -> None:
    assert facts_of(QWEN3_8B | {key: None, "head_dim": None}).parameters is None


@pytest.mark.parametrize("value", [None, "32", -1, 0, True, 1 << 60, [32]])
def test_numbers_that_are_none_are_not_known(value: object) -> None:
    assert facts_of(LLAMA | {"num_hidden_layers": value}).layers is None


def test_of_a_model_of_several_parts_the_facts_are_those_of_its_language_model() -> None:
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "dtype": "bfloat16"}
    text = {**QWEN3_8B, "architectures": None, "dtype": None}
    facts = facts_of({**outer, "text_config": text})
    assert facts == facts_of({**outer, **QWEN3_8B})
    assert facts.architecture == "Gemma3ForConditionalGeneration"


def test_what_gemma_3_leaves_out_has_the_defaults_of_transformers() -> None:
    """The language model of google/gemma-3-4b-it; its embeddings are tied."""
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    facts = facts_of({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert (facts.layers, facts.kv_heads, facts.head_dim) == (34, 4, 256)
    assert facts.context_tokens == 131_072
    assert (facts.parameters or 0) / 1e9 == pytest.approx(3.88, rel=2e-3)


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM", [7]])
def test_an_architecture_is_the_first_of_a_list(value: object) -> None:
    assert facts_of(LLAMA | {"architectures": value}).architecture is None
