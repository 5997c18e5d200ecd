"""Bytes of packed matrices, which GPUs can share them, and what lists leave out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from sluice_contract.config.model_facts import PackedPart, facts_of
from sluice_contract.config.model_shape import ModelShape, shape_from
from sluice_contract.config.packing import (
    FP8,
    MXFP4,
    Packing,
    layer_sizes,
    packable,
    packing_of,
    rank_counts,
    rank_sizes,
    widest_part,
)
from sluice_contract.config.supported import QUANTISATIONS, allowed_quantisations
from sluice_contract.config.unquantised import MAX_LAYERS, unquantised_layers

from tests.published_configs import CONFIGS

GPT_OSS, QWEN_FP8 = "openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B-FP8"
LLAMA_FP8 = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
}


def shape_of(repository: str) -> ModelShape:
    return shape_from(CONFIGS[repository])


def packing(repository: str) -> Packing:
    found = packing_of(CONFIGS[repository], shape_of(repository))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("repository", "widths"),
    [
        (GPT_OSS, {1: 2880, 2: 1440, 4: 736, 8: 384, 16: 192, 32: 96, 64: 64}),
        (QWEN_FP8, {1: 768, 2: 384, 4: 256}),
    ],
)
def test_gpus_share_whole_groups_of_experts_and_the_first_have_most(
    repository: str, widths: dict[int, int]
) -> None:
    """90 groups of 32, 6 of 128: 23, 23, 22 and 22 of them, or 2, 2, 1 and 1."""
    shape, own = shape_of(repository), packing(repository)
    parts = {ranks: widest_part(shape, own, ranks).experts for ranks in rank_counts(shape, own)}
    assert {ranks: part.width for ranks, part in parts.items() if part} == widths


def test_heads_are_not_divided_within_a_group() -> None:
    """Qwen2.5-0.5B: 14 heads of 64, of which each of two GPUs would have 3 1/2 groups of 128."""
    shape = ModelShape(151_936, 896, 4864, 24, 14, 2, 64, 32_768, tied_embeddings=True)
    assert shape.rank_counts == (1, 2)
    assert rank_counts(shape, packable(Packing(4, 3, 128), shape)) == (1,)
    assert rank_counts(shape, packable(Packing(4, 3, 64), shape)) == (1, 2)
    assert rank_counts(shape, packable(FP8, shape)) == (1, 2)


@pytest.mark.parametrize("ranks", [4, 8])
def test_the_widest_rank_is_counted(ranks: int) -> None:
    shape, own = shape_of(GPT_OSS), packing(GPT_OSS)
    assert shape.experts is not None
    groups = {4: 23, 8: 12}[ranks]
    part = rank_sizes(shape, own, ranks)
    assert part.packed_bytes == 24 * 32 * 3 * 2880 * groups * 17
    assert part.packed_bytes * ranks > rank_sizes(shape, own, 1).packed_bytes


def test_facts_have_a_part_for_each_number_of_gpus() -> None:
    facts = facts_of(CONFIGS[GPT_OSS])
    assert [part.gpus for part in facts.packed_parts or ()] == [1, 2, 4, 8, 16, 32, 64]
    attention = 24 * 2880 * 64 * (2 * 64 + 2 * 8)
    values = attention + 2 * 201_088 * 2880
    whole = PackedPart(gpus=1, bytes=24 * 32 * 3 * 2880 * 90 * 17, values=values)
    assert facts.packed_part(1) == whole
    assert facts.packed_part(3) is None
    assert whole.memory_bytes(4) - whole.memory_bytes(2) == 2 * values


QWEN_LIST = CONFIGS[QWEN_FP8]["quantization_config"]["modules_to_not_convert"]
VISION = "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "names", "left_out"),
    [
        (CONFIGS[QWEN_FP8], QWEN_LIST, {}),
        (MIXTRAL, ["gate"], {}),
        (MIXTRAL, ["lm_head", "re:.*block_sparse_moe.gate"], {}),
        (CONFIGS[LLAMA_FP8], ["lm_head", VISION], {}),
        (CONFIGS[LLAMA_FP8], None, {}),
        (CONFIGS[LLAMA_FP8], ["re:^lm_head$", r"re:vision_tower.*"], {}),
        (CONFIGS[LLAMA_FP8], ["re:.*self_attn$", r"re:.*layers\.\d+$", "re:.*mlp.(gate|w1)$"], {}),
        (CONFIGS[LLAMA_FP8], [r"re:.*\.layers\.(7|8)\.mlp\.(?:up|down)_proj"], {
            "gate_up": 2, "down": 2
        }),
        (CONFIGS[LLAMA_FP8], [r"re:model.layers\.\d+\.self_attn.o_proj$"], {"output": 80}),
        (CONFIGS[LLAMA_FP8], ["*.mlp.*_proj"], {"gate_up": 80, "down": 80}),
        (CONFIGS[LLAMA_FP8], ["layers.*.mlp.up", "ayers.3", "*layers.3.mlp.down_pro"], {}),
        (CONFIGS[LLAMA_FP8], ["re:.*self_attn"], {"qkv": 80, "output": 80}),
        (CONFIGS[LLAMA_FP8], ["self_attn.k_proj"], {"qkv": 80}),
        (CONFIGS[LLAMA_FP8], ["model.layers.3.mlp.down_proj"], {"down": 1}),
        (CONFIGS[LLAMA_FP8], ["model.layers.3"], dict.fromkeys(
            ("qkv", "output", "gate_up", "down"), 1
        )),
        (CONFIGS[LLAMA_FP8], ["model.layers.0.self_attn*"], {"qkv": 1, "output": 1}),
        (CONFIGS[LLAMA_FP8], ["model.language_model.layers.0.mlp.up_proj"], {"gate_up": 1}),
        (CONFIGS[QWEN_FP8], ["model.layers.1.mlp.experts.7.down_proj"], {"experts.down": 1}),
        (MIXTRAL, ["re:.*w[13]$"], {"experts.gate_up": 32}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignore", "exclude_modules"])
def test_lists_leave_matrices_out(
    config: dict[str, Any], names: list[str] | None, left_out: dict[str, int], key: str
) -> None:
    assert dict(unquantised_layers({key: names}, shape_from(config))) == left_out


ALL_DENSE: Final = dict.fromkeys(("qkv", "output", "gate_up", "down"), 80)


@pytest.mark.parametrize(
    "names",
    [
        ["re:("],
        ["re:(lm_head|(embed)+)"],
        ["re:(?!.*mlp)"],
        ["re:" + "(a|a)*" * 30 + "$"],
        ["re:" + ".*" * (1 << 16)],
        ["*" * (1 << 16)],
    ],
)
def test_expressions_that_are_not_read_count_as_if_nothing_was_quantised(names: list[str]) -> None:
    """Python's own expressions would take years with the last three."""
    shape = shape_of(LLAMA_FP8)
    assert dict(unquantised_layers({"ignore": names}, shape)) == ALL_DENSE
    groups = {"config_groups": {"group_0": {"targets": names}}}
    assert dict(unquantised_layers(groups, shape)) == ALL_DENSE


def test_matching_takes_one_pass_over_a_module() -> None:
    """Every way to divide a module's name among these would be tried by Python's expressions."""
    names = ["re:" + ".*_" * 200 + "x", "*_" * 200 + "x"]
    assert unquantised_layers({"ignore": names}, replace(shape_of(LLAMA_FP8), layers=1)) == ()


def test_gptq_lists_what_is_quantised_step_by_step() -> None:
    shape, steps = (
        shape_of(LLAMA_FP8),
        [["self_attn.k_proj", "self_attn.v_proj"], ["mlp.down_proj"]],
    )
    config = {"modules_in_block_to_quantize": steps}
    assert dict(unquantised_layers(config, shape)) == {"qkv": 80, "output": 80, "gate_up": 80}
    steps[0].append("self_attn.q_proj")
    assert dict(unquantised_layers(config, shape)) == {"output": 80, "gate_up": 80}


def test_targets_leave_the_others_out() -> None:
    shape = shape_of(LLAMA_FP8)
    for targets, left_out in (
        (["Linear"], {}),
        (["re:.*mlp.*"], {"qkv": 80, "output": 80}),
        (["Linear", "re:.*mlp.*"], {}),
    ):
        groups = {"config_groups": {"group_0": {"targets": targets}}}
        assert dict(unquantised_layers(groups, shape)) == left_out


def test_lists_of_a_model_with_more_layers_count_as_if_nothing_was_quantised() -> None:
    shape = replace(shape_of(LLAMA_FP8), layers=MAX_LAYERS + 1)
    everywhere = dict.fromkeys(ALL_DENSE, MAX_LAYERS + 1)
    assert dict(unquantised_layers({"ignore": ["lm_head"]}, shape)) == everywhere
    assert unquantised_layers({"ignore": []}, shape) == ()


@pytest.mark.parametrize("dense", [0, 3])
def test_what_is_not_read_counts_experts_where_they_are(dense: int) -> None:
    shape = shape_of(QWEN_FP8)
    assert shape.experts is not None
    sparse = frozenset(range(dense, shape.layers))
    shape = replace(shape, experts=replace(shape.experts, layers=sparse))
    attention, experts = ("qkv", "output"), ("experts.gate_up", "experts.down")
    counts = dict.fromkeys(attention, shape.layers) | dict.fromkeys(experts, len(sparse))
    counts |= dict.fromkeys(("gate_up", "down"), dense) if dense else {}
    assert dict(unquantised_layers({"ignore": ["*" * (1 << 16)]}, shape)) == counts


def test_what_is_left_out_has_plain_values() -> None:
    shape, own = shape_of(LLAMA_FP8), packing(LLAMA_FP8)
    all_packed = layer_sizes(shape, own)
    assert all_packed.values == 0
    some = layer_sizes(shape, replace(own, left_out=(("down", 3),)))
    assert some.values == 3 * 8192 * 28_672
    assert all_packed.packed_bytes - some.packed_bytes == some.values + 3 * 8192 * 4
    config = {**CONFIGS[LLAMA_FP8]}
    config["quantization_config"] = {
        **config["quantization_config"], "ignore": [f"model.layers.{n}.mlp" for n in (0, 1, 79)]
    }  # fmt: skip
    part = facts_of(config).packed_part(1)
    assert part is not None
    assert part.values == 3 * 3 * 8192 * 28_672 + 2 * 128_256 * 8192


def test_only_packed_matrices_need_whole_groups() -> None:
    shape = replace(shape_of(LLAMA_FP8), intermediate_size=28_600)
    assert packable(FP8, shape) is None
    without = replace(FP8, left_out=(("gate_up", 80), ("down", 80)))
    assert packable(without, shape) == without


def test_without_experts_nothing_is_packed_in_mxfp4() -> None:
    assert packable(MXFP4, shape_of(LLAMA_FP8)) is None
    config = CONFIGS[LLAMA_FP8] | {"quantization_config": {"quant_method": "mxfp4"}}
    assert facts_of(config).packed_parts is None


W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
        }
    },
    "ignore": ["lm_head"],
}


@pytest.mark.parametrize(
    ("quantised", "name"),
    [
        (W4A16, "compressed-tensors (format pack-quantized)"),
        (W4A16 | {"format": "int-quantized"}, "compressed-tensors (format int-quantized)"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq (bits 8)"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt (quant_algo NVFP4)"),
        ({"quant_method": "modelopt"}, "modelopt (quant_algo missing)"),
        ({"quant_method": "quark"}, "quark"),
        ({"quant_method": "gptq", "bits": 4, "desc_act": True}, "gptq (desc_act True)"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"a": 1}}, "gptq (dynamic {'a': 1})"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "awq (version gemv)"),
        ({"quant_method": "awq", "bits": 4}, "awq (zero_point missing)"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 (fmt e5m2)"),
        (
            W4A16 | {"format": "float-quantized"},
            "compressed-tensors (config_groups.group_0.weights.type int)",
        ),
    ],
)
def test_formats_that_no_engine_reads_are_named(quantised: dict[str, Any], name: str) -> None:
    facts = facts_of(CONFIGS[LLAMA_FP8] | {"quantization_config": quantised})
    assert facts.quantization == name
    assert facts.packed_parts is None
    assert name not in QUANTISATIONS


def test_what_is_allowed_names_the_refused_key() -> None:
    other = "awq, compressed-tensors, fp8, gptq, modelopt, mxfp4"
    assert allowed_quantisations("quark") == other
    for name, allowed in (
        ("gptq (desc_act True)", "gptq (desc_act absent or False)"),
        ("fp8 (fmt e5m2)", "fp8 (fmt absent or e4m3 or float8_e4m3fn)"),
        ("compressed-tensors (config_groups.group_0.weights.num_bits 4)",
         "compressed-tensors (config_groups.*.weights.num_bits 8)"),
    ):  # fmt: skip
        assert allowed_quantisations(name) == other.replace(allowed.split(" ")[0], allowed)
