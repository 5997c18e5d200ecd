"""config.json is read in both spellings, and what is not implemented is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.config import supported
from sluice_contract.config.model_facts import facts_of
from sluice_contract.config.model_shape import Experts
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.dense import ClampedSwiglu, gelu_and_multiply
from sluice_runtime.layers.rope import LinearScaling, Rope, YarnScaling
from sluice_runtime.model.families.gemma3 import Gemma3Spec
from sluice_runtime.model.families.registry import ARCHITECTURES, family_of, spec_from
from sluice_runtime.model.spec import Windows

from tests.runtime.model.configs import (
    GEMMA3,
    GEMMA3_ROPES,
    GLM4,
    GPT_OSS,
    GRANITE,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    MOE,
    OLMO2,
    PHI3,
    QWEN2,
    QWEN3,
)


def test_what_other_families_leave_out() -> None:
    """As transformers' configuration classes have it."""
    without = {key: value for key, value in MIXTRAL.items() if "num_key" not in key}
    spec = spec_from({**without, "num_attention_heads": 16})
    assert (spec.kv_heads, spec.norm_eps, spec.rope) == (8, 1e-5, Rope(1e6))
    assert spec.experts == Experts(frozenset({0, 1}), 8, 2, 96, renormalised=True)
    assert {*spec.shared_sizes.values()} == {16, 8, 96}
    assert spec_from(OLMO2).norm_eps == spec_from(PHI3).norm_eps == 1e-5
    assert spec_from(GLM4).norm_eps == 1.5625e-07


def test_whether_glm_has_biases_is_written() -> None:
    assert not spec_from(GLM4).qkv_bias  # of this file
    assert spec_from(GLM4 | {"attention_bias": True}).qkv_bias
    without = {key: value for key, value in GLM4.items() if key != "attention_bias"}
    assert spec_from(without).qkv_bias


@pytest.mark.parametrize(
    ("written", "dtype"),
    [({}, "float32"), ({"torch_dtype": "bfloat16"}, "bfloat16"), ({"dtype": "float16"}, "float16")],
)
def test_both_spellings_of_dtype(written: dict[str, Any], dtype: str) -> None:
    assert spec_from(QWEN3 | written).dtype == dtype


def test_in_how_many_slices_a_product_was_trained_changes_nothing() -> None:
    """Older transformers computed each matrix in so many slices, newer ones ignore the key."""
    assert spec_from(LLAMA | {"pretraining_tp": 4}) == spec_from(LLAMA)


def test_the_operator_lets_through_what_the_engine_has() -> None:
    assert set(supported.ARCHITECTURES) == set(ARCHITECTURES), "both are to change together"


def test_the_page_of_model_families_has_a_row_for_each() -> None:
    page = Path(__file__).parents[3] / "docs/reference/model-families.md"
    rows = re.findall(r"^\| `(\w+For\w+)`", page.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(ARCHITECTURES)


def test_a_missing_head_dim_means_what_the_architecture_says() -> None:
    assert spec_from(QWEN3).head_dim == 128
    assert spec_from(LLAMA).head_dim == spec_from(QWEN2).head_dim == 16
    assert spec_from(MISTRAL | {"head_dim": None}).head_dim == 16
    assert spec_from(LLAMA | {"head_dim": 24}).head_dim == 24


@pytest.mark.parametrize(
    ("changed", "layers"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"decoder_sparse_step": 2}, {1, 3, 5}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 3]}, {1, 5}),
    ],
)
def test_which_layers_have_experts(changed: dict[str, Any], layers: set[int]) -> None:
    spec = spec_from(MOE | {"num_hidden_layers": 6} | changed)
    assert spec.experts == Experts(frozenset(layers), 8, 2, 32, renormalised=False)


def test_both_spellings_of_the_number_of_experts() -> None:
    renamed = {key: value for key, value in MOE.items() if key != "num_experts"}
    assert spec_from(renamed | {"num_local_experts": 8}) == spec_from(MOE)


def test_a_window_that_is_turned_off_bounds_nothing() -> None:
    assert spec_from(QWEN2).context_length_tokens == 512
    assert spec_from(MISTRAL | {"sliding_window": None}).context_length_tokens == 32_768


def test_a_window_is_the_longest_context() -> None:
    """Within it attention is full; transformers takes 4096 where the key is missing."""
    assert spec_from(MISTRAL | {"sliding_window": 1024}).context_length_tokens == 1024
    assert spec_from(MISTRAL).context_length_tokens == 4096
    short = {"sliding_window": 4096, "max_position_embeddings": 512}
    assert spec_from(MISTRAL | short).context_length_tokens == 512


def test_layers_with_windows_of_their_own_keep_the_whole_context() -> None:
    spec = spec_from(GPT_OSS | {"num_hidden_layers": 3})
    assert spec.windows == Windows(frozenset({0, 2}), 128)
    assert spec.context_length_tokens == 512
    assert family_of(spec).native_lacks == "sliding windows and attention sinks"
    named = GPT_OSS | {"layer_types": ["full_attention", "sliding_attention"]}
    assert spec_from(named).windows == Windows(frozenset({1}), 128)
    assert family_of(spec_from(QWEN3)).native_lacks == ""


@pytest.mark.parametrize("written", [{}, GEMMA3_ROPES], ids=["released", "transformers 5"])
def test_what_gemma_3_says_of_itself(written: dict[str, Any]) -> None:
    spec = spec_from(GEMMA3 | written)
    assert isinstance(spec, Gemma3Spec)
    assert spec.rope == Rope(1e6, LinearScaling(8.0))
    windowed = frozenset(range(12)) - {5, 11}
    assert spec.windows == Windows(windowed, 64, Rope(1e4))
    assert (spec.query_scale, spec.embedding_scale, spec.tied_embeddings) == (2.0, 8.0, True)
    assert spec.activation is gelu_and_multiply
    assert spec_from(GEMMA3 | {"sliding_window_pattern": 12}).windows == Windows(
        frozenset(range(11)), 64, Rope(1e4)
    )


def test_of_a_model_of_several_parts_the_language_model_is_read() -> None:
    """Released files leave out what transformers' class has by default."""
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {**text, "sliding_window": 1024, "dtype": None},
        "vision_config": {"hidden_size": 1152, "hidden_act": "gelu"},
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8"},
    }
    spec = spec_from(whole)
    assert (spec.hidden_size, spec.heads, spec.kv_heads, spec.head_dim) == (2560, 8, 4, 256)
    assert (spec.layers, spec.dtype, str(spec.quantised)) == (34, "bfloat16", "FP8")
    assert spec.windows is not None
    assert spec.windows.tokens == 1024


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_operator_knows_the_sizes_that_a_sparse_config_leaves_to_the_engine(
    architecture: str,
) -> None:
    sizes = ("vocab", "hidden", "intermediate", "num_hidden", "num_attention", "max_position")
    written = {key: value for key, value in MOE.items() if key.startswith(sizes)}
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if architecture in ("GptOssForCausalLM", "Qwen3MoeForCausalLM"):
        experts["num_experts"] = 8
    config = written | experts | {"num_attention_heads": 16}
    config |= {"architectures": [architecture], "text_config": {}}
    spec, facts = spec_from(config), facts_of(config)
    assert (spec.layers, spec.kv_heads, spec.head_dim) == (
        facts.layers,
        facts.kv_heads,
        facts.head_dim,
    )


def test_what_gpt_oss_says_of_itself() -> None:
    spec = spec_from(GPT_OSS)
    assert spec.rope == Rope(150_000.0, YarnScaling(32.0, 32.0, 1.0, 4096, truncate=False))
    assert spec.experts == Experts(frozenset({0, 1}), 8, 4, 96, renormalised=True)
    assert spec.activation == ClampedSwiglu(1.702, 7.0)
    assert (spec.head_dim, spec.norm_eps, str(spec.quantised)) == (64, 1e-5, "MXFP4")


def test_granites_factors_are_those_of_a_divided_residual_stream() -> None:
    spec = spec_from(GRANITE)
    assert (spec.embedding_scale, spec.rope) == (48.0, Rope(1e4, magnitude=0.5**0.5))
    assert spec.norm_eps == pytest.approx(16e-6)
    without = spec_from({key: value for key, value in GRANITE.items() if "_multiplier" not in key})
    assert (without.embedding_scale, without.norm_eps) == (1.0, 1e-6)
    assert without.rope.magnitude == 2.0  # scores are not divided by sqrt(16)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ["architectures", "Mamba", "Qwen3ForCausalLM"]),
        ({"architectures": None}, ["architectures", "LlamaForCausalLM", "MistralForCausalLM"]),
        (QWEN2 | {"use_sliding_window": True}, ["use_sliding_window", "True"]),
        (MOE | {"num_experts_per_tok": 9}, ["num_experts_per_tok", "9", "at most 8"]),
        (MOE | {"num_experts": 0}, ["num_experts", "0"]),
        (MOE | {"mlp_only_layers": "1"}, ["mlp_only_layers", "'1'", "a list"]),
        ({"num_experts": 8}, ["num_experts", "8"]),
        (MISTRAL | {"sliding_window": 0}, ["sliding_window", "0", "from 1"]),
        ({"use_sliding_window": True}, ["use_sliding_window", "True"]),
        ({"use_sliding_window": None, "sliding_window": 4096}, ["sliding_window", "4096"]),
        ({"layer_types": ["sliding_attention"]}, ["layer_types", "sliding_attention"]),
        (
            {"quantization_config": {"quant_method": "quark"}},
            ["quantization_config.quant_method: 'quark'", "allowed: 'awq' or"],
        ),
        ({"compression_config": {"quant_method": "awq"}}, ["compression_config.bits", "None"]),
        ({"attention_bias": True}, ["attention_bias", "False"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        (OLMO2 | {"attention_bias": True}, ["attention_bias", "True"]),
        (MIXTRAL | {"num_local_experts": 0}, ["num_local_experts", "0"]),
        ({"torch_dtype": "int8"}, ["dtype", "int8"]),
        (GEMMA3 | {"final_logit_softcapping": 30.0}, ["final_logit_softcapping", "30.0"]),
        (GEMMA3 | {"hidden_activation": "gelu"}, ["hidden_activation", "gelu_pytorch_tanh"]),
        (GEMMA3 | {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, ["text_config: None", "object"]),
        *(
            (GRANITE | {key: value}, [f"{key}: {value!r}", "a number above 0"])
            for key in (
                "embedding_multiplier",
                "attention_multiplier",
                "residual_multiplier",
                "logits_scaling",
            )
            for value in (0, -1.0, None, True, "8", float("inf"))
        ),
        (GRANITE | {"attention_bias": True}, ["attention_bias", "True"]),
        (GRANITE | {"mlp_bias": True}, ["mlp_bias", "True"]),
        (GLM4 | {"attention_bias": "yes"}, ["attention_bias", "'yes'", "True or False"]),
        (GPT_OSS | {"attention_bias": False}, ["attention_bias", "True"]),
        (GPT_OSS | {"layer_types": ["full_attention"]}, ["layer_types", "1 layers", "2, as"]),
        (GPT_OSS | {"layer_types": ["chunked_attention"]}, ["layer_types", "'sliding_attention'"]),
        (GPT_OSS | {"sliding_window": None}, ["sliding_window", "None", "from 1"]),
        ({"vocab_size": None}, ["vocab_size", "None"]),
        ({"hidden_size": "64"}, ["hidden_size", "'64'"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads", "3", "divisor"]),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    changed: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        spec_from(QWEN3 | changed)
    line = str(caught.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line
