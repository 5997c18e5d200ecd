"""Quantised models fit the GPUs that hold their packed weights; refusals tell packed from
dequantised ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.config.packing import PACKED_INPUTS
from sluice_kernels.packed import BLOCK
from sluice_runtime.engine.sizing.gpu_plan import MIB, ModelBytes, PoolQuestion, step_tokens
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.quantisation_config import format_from

from tests.published_configs import CONFIGS
from tests.runtime.engine.sizing.test_gpu_plan import CUDA_MIB, question, refusal
from tests.runtime.model.quantised_checkpoints import awq

# See `test_gpu_plan`.
pytestmark = pytest.mark.xdist_group("transformers")


def test_a_refusal_says_that_quantised_weights_are_held_in_the_engines_type() -> None:
    asked = question("Qwen3-32B", "NVIDIA-L4", 24, 1)
    spec = replace(asked.model.spec, quantised=format_from({"quantization_config": awq(128)}))
    line = refusal(replace(asked, model=replace(asked.model, spec=spec)))
    assert (line or "").startswith(
        "model weights, dequantised from AWQ, 4 bits, groups of 128, want 6"
    )


def test_kernels_pack_as_many_inputs_together_as_plans_count() -> None:
    assert BLOCK == PACKED_INPUTS


PACKED_FITS = {
    "openai/gpt-oss-20b": ("L4", 24, 1, 12.8),
    "openai/gpt-oss-120b": ("H100", 80, 1, 60.7),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": ("H200", 141, 1, 67.7),
    "casperhansen/llama-3.3-70b-instruct-awq": ("H100", 80, 1, 37.3),
    "Qwen/Qwen3-30B-A3B-FP8": ("L40S", 48, 1, 29.9),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": ("H100", 80, 1, 39.0),
    "Qwen/Qwen2.5-72B-Instruct-AWQ": ("H100", 80, 1, 39.0),
}
"""The smallest of usual GPUs, how many of them, and GiB of packed weights."""


def packed_question(repository: str, product: str, gib: float, ranks: int) -> PoolQuestion:
    asked = question("Llama-3-70B", product, gib, ranks)
    model = ModelBytes(spec_from(CONFIGS[repository]), 2, ranks, packed=True)
    device = replace(asked.device, available=asked.device.total - CUDA_MIB * MIB - model.weights)
    step = model.step(step_tokens(asked.config), asked.config.max_running_requests)
    return replace(asked, model=model, device=device, step=step)


@pytest.mark.parametrize("repository", CONFIGS)
def test_packed_weights_fit_where_dequantised_ones_do_not(repository: str) -> None:
    product, gib, ranks, weights = PACKED_FITS[repository]
    asked = packed_question(repository, product, gib, ranks)
    assert asked.model.weights / 2**30 == pytest.approx(weights, abs=0.1)
    assert refusal(asked) is None
    dequantised = replace(asked, model=replace(asked.model, packed=False))
    assert "dequantised from" in (refusal(dequantised) or "")


def test_two_h100_hold_llama_70b_in_fp8() -> None:
    repository = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
    assert refusal(packed_question(repository, "H100", 80, 2)) is None
    line = refusal(packed_question(repository, "H100", 80, 1)) or ""
    assert line.startswith("model weights, packed as FP8, want 693")
    assert "raise tensorParallelSize (accelerator.count) to 2" in line


def test_more_ranks_are_recommended_only_where_each_has_whole_groups() -> None:
    """gpt-oss has 90 groups of 32 inputs, Qwen3-30B-A3B-FP8 6 of 128."""
    gpt_oss, qwen = (
        ModelBytes(spec_from(CONFIGS[name]), 2, packed=True)
        for name in ("openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B-FP8")
    )
    assert [wider.ranks for wider in gpt_oss.wider()] == [2, 4, 8]
    assert [wider.ranks for wider in qwen.wider()] == [2, 4]
    assert [wider.ranks for wider in replace(qwen, packed=False).wider()] == [2, 4, 8]


def test_the_rank_with_most_groups_is_planned() -> None:
    """Four ranks have 23, 23, 22 and 22 groups of each expert."""
    repository = "openai/gpt-oss-120b"
    model = ModelBytes(spec_from(CONFIGS[repository]), 2, 4, packed=True)
    experts = 36 * 128 * 3 * 2880 * 23 * 17
    plain = replace(model, spec=replace(model.spec, packing=None))
    biases = 36 * 128 * 2 * (23 * 32 - 720) * 2
    others = plain.weights - 36 * 128 * 3 * 2880 * 720 * 2 + biases
    assert model.weights == experts + others
    narrow = replace(model.spec, hidden_size=320)  # what experts compute takes the most
    unpacked = replace(narrow, packing=None)
    assert replace(model, spec=narrow).step(4096, 1) > replace(model, spec=unpacked).step(4096, 1)
    assert refusal(packed_question(repository, "L4", 24, 4)) is None
