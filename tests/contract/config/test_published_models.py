"""Shapes of published models: found by name, and as large as their publishers say."""

from __future__ import annotations

import pytest
from sluice_contract.config.model_facts import facts_of
from sluice_contract.config.published_models import (
    PUBLISHED,
    PublishedModel,
    is_gated,
    published_model,
    refused_format,
)
from sluice_contract.config.supported import ARCHITECTURES, QUANTISATIONS

from tests.published_configs import CONFIGS

BILLIONS = {
    "Qwen3-0.6B": 0.6, "Qwen3-8B": 8.19, "Qwen3-32B": 32.8, "Qwen3-30B-A3B": 30.5,
    "Qwen3-235B-A22B": 235, "Qwen2.5-7B-Instruct": 7.62, "Qwen2.5-72B-Instruct": 72.7,
    "Llama-3.2-1B-Instruct": 1.24, "Llama-3.2-3B-Instruct": 3.21, "Llama-3.1-8B-Instruct": 8.03,
    "Llama-3.3-70B-Instruct": 70.6, "Llama-3.1-405B-Instruct": 405.9, "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8, "gemma-3-1b-it": 1.0, "gemma-3-27b-it": 27.0, "phi-4": 14.7,
    "Phi-4-mini-instruct": 3.84, "Mixtral-8x7B-Instruct-v0.1": 46.7, "GLM-4-9B-0414": 9.4,
    "Mixtral-8x22B-Instruct-v0.1": 140.6, "GLM-4-32B-0414": 32.6, "SmolLM2-135M-Instruct": 0.1345,
    "Mistral-7B-v0.3": 7.25, "OLMo-2-1124-7B-Instruct": 7.3, "OLMo-2-1124-13B-Instruct": 13.7,
    "granite-3.1-2b-instruct": 2.53, "granite-3.1-8b-base": 8.17,
}  # fmt: skip
"""Parameters as the model cards say."""


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.name)
def test_a_row_is_found_by_its_own_repository_and_engines_load_its_kind(
    model: PublishedModel,
) -> None:
    assert published_model([f"hf://{model.repository}"]) is model
    assert model.architecture in ARCHITECTURES
    assert model.quantization in (None, *QUANTISATIONS)
    assert not model.shape.heads % model.shape.kv_heads
    assert model.facts.parameters == model.shape.parameters


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_parameters_are_those_of_the_model_card(name: str, billions: float) -> None:
    model = published_model([name])
    assert model is not None
    assert model.shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("Qwen3-235B-A22B", (1, 2, 4, 8, 16, 32, 64)),  # 64 heads, 4 key heads
        ("Qwen2.5-7B-Instruct", (1, 2, 4)),  # 28 heads
        ("phi-4", (1, 2, 5, 10, 20, 40)),  # 40 heads, 10 key heads
        ("GLM-4-9B-0414", (1, 2, 4, 8, 16, 32)),  # 2 key heads
        ("gpt-oss-20b", (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_ranks_divide_all_sizes_but_may_copy_key_heads(name: str, counts: tuple[int, ...]) -> None:
    model = published_model([name])
    assert model is not None
    assert model.shape.rank_counts == counts
    assert model.facts.tensor_parallel_sizes == [*counts]
    heads = model.shape.kv_heads
    for ranks in counts:
        assert model.shape.rank_kv_heads(ranks) * ranks == heads * model.shape.key_copies(ranks)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["hf://Qwen/Qwen3-8B"], "Qwen3-8B"),
        (["pvc://models/weights", "qwen3-0.6b"], "Qwen3-0.6B"),
        (["hf://unsloth/Meta-Llama-3.1-8B-Instruct"], "Llama-3.1-8B-Instruct"),
        (["/models/Meta-Llama-3-70B"], "Meta-Llama-3-70B-Instruct"),
        (["Qwen3-32B-FP8"], "Qwen3-32B"),
        (["Qwen/Qwen3-30B-A3B-Thinking-2507"], "Qwen3-30B-A3B-Instruct-2507"),
        (["microsoft/Phi-4-mini-instruct"], "Phi-4-mini-instruct"),
        (["microsoft/Phi-4-multimodal-instruct"], None),
        (["Qwen/Qwen2.5-VL-7B-Instruct"], None),
        (["google/gemma-3n-4b"], None),
        (["mistral-7b"], None),
        (["hf://mistralai/Mistral-7B-v0.1"], None),
        (["hf://allenai/OLMo-2-1124-7B"], None),
        (["hf://acme/delphi4"], None),
        (["hf://phi-4/tiny-300m"], None),
        (["hf://RedHatAI/Qwen3-8B-speculator.eagle3"], None),
        (["hf://yuhuili/EAGLE-Qwen3-8B"], None),
        (["hf://gradientai/Llama-3-8B-Instruct-Gradient-1048k"], None),
        (["hf://Qwen/Qwen2.5-7B-Instruct-1M"], None),
        (["hf://acme/SmolLM2-135M-tuned/"], "SmolLM2-135M-Instruct"),
    ],
)
def test_a_model_is_found_by_family_and_size(names: list[str], found: str | None) -> None:
    model = published_model(names)
    assert (model.name if model else None) == found


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("hf://RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", 8),
        ("hf://casperhansen/llama-3.3-70b-instruct-awq", 4),
        ("hf://Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", 4),
        ("hf://Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", None),
        ("hf://Qwen/Qwen3-8B-FP8", 8),
        ("hf://hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", 4),
        ("hf://ModelCloud/Qwen2.5-7B-Instruct-gptq-8bit", None),
        ("hf://RedHatAI/Qwen3-8B-quantized.w4a16", None),
        ("hf://openai/gpt-oss-20b", 4),
        ("hf://unsloth/gpt-oss-20b", 4),
        ("hf://unsloth/gpt-oss-20b-BF16", None),
        ("hf://unsloth/gpt-oss-20b-unsloth-bnb-4bit", None),
        ("hf://acme/gpt-oss-120b-FP8-dynamic", 8),
        ("hf://Qwen/Qwen3-8B", None),
    ],
)
def test_a_name_says_in_how_many_bits_weights_are_packed(name: str, bits: int | None) -> None:
    model = published_model([name])
    assert model is not None
    assert (model.packing and model.packing.bits) == bits
    assert (model.facts.packed_parts is None) == (bits is None)
    assert (model.quantization is None) == (bits is None)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("hf://Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "GPTQ-Int8"),
        ("hf://ModelCloud/Qwen2.5-7B-Instruct-gptq-8bit/", "gptq-8bit"),
        ("hf://RedHatAI/Qwen3-8B-quantized.w4a16", "w4a16"),
        ("hf://unsloth/Qwen3-8B-unsloth-bnb-4bit", "bnb-4bit"),
        ("hf://unsloth/gpt-oss-20b-unsloth-bnb-4bit", "bnb-4bit"),
        ("hf://Qwen/Qwen3-8B-GGUF", "GGUF"),
        ("hf://Qwen/Qwen3-8B-MLX-4bit", "MLX-4bit"),
        ("hf://mlx-community/Qwen3-8B-4bit", "4bit"),
        ("hf://mlx-community/Qwen3-30B-A3B-4bit-DWQ", "4bit"),
        ("hf://mlx-community/Qwen2.5-7B-Instruct-8-bit", "8-bit"),
        ("hf://mlx-community/Qwen3-8B-bf16", None),
        ("hf://unsloth/gpt-oss-20b-BF16", None),
        ("hf://hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", None),
        ("hf://Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", None),
        ("hf://Qwen/Qwen3-8B-FP8", None),
        ("hf://Qwen/Qwen3-8B", None),
    ],
)
def test_a_name_says_a_format_that_engines_do_not_read(name: str, refused: str | None) -> None:
    model = published_model([name])
    assert model is not None
    assert refused_format(model, name) == refused


@pytest.mark.parametrize("repository", CONFIGS)
def test_the_name_of_a_copy_says_what_its_config_says(repository: str) -> None:
    model = published_model([f"hf://{repository}"])
    assert model is not None
    assert model.facts == facts_of(CONFIGS[repository])


@pytest.mark.parametrize(
    ("uri", "gated"),
    [
        ("hf://meta-llama/Llama-3.3-70B-Instruct", True),
        ("hf://google/gemma-3-27b-it", True),
        ("hf://google/flan-t5-small", False),
        ("hf://unsloth/Llama-3.3-70B-Instruct", False),
        ("pvc://meta-llama/Llama-3.3-70B-Instruct", False),
    ],
)
def test_repositories_that_need_a_token_are_known(uri: str, gated: bool) -> None:
    assert is_gated(uri) == gated
