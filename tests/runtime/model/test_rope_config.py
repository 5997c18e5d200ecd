"""How positions turn into angles is read in both spellings, as transformers reads it, and what is
not implemented is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import pytest
import torch
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRope,
    Rope,
    YarnScaling,
    inverse_frequencies,
)
from sluice_runtime.model.families.registry import spec_from
from torch import Tensor

from tests.runtime.model.configs import (
    GEMMA3,
    GLM4,
    GPT_OSS,
    GRANITE,
    LLAMA,
    LLAMA3,
    LONG,
    MISTRAL,
    MIXTRAL,
    MOE,
    OLMO2,
    PHI3,
    QWEN2,
    QWEN3,
    YARN,
)

SCALING = Llama3Scaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("written", "rope"),
    [
        ({}, Rope(10_000.0)),
        ({"rope_theta": 1e6, "rope_scaling": None}, Rope(1e6)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, Rope(1e6)),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, Rope(5e5, SCALING)),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, Rope(5e5, SCALING)),
        (
            {"rope_theta": 1e5, "rope_scaling": {"factor": 4.0, "type": "linear"}},
            Rope(1e5, LinearScaling(4.0)),
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8}}, Rope(1e4, LinearScaling(8.0))),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, Rope(1e4)),
    ],
)
def test_both_spellings_of_rope(written: dict[str, Any], rope: Rope) -> None:
    assert spec_from(LLAMA | written).rope == rope


def test_partial_and_interleaved_rope() -> None:
    assert spec_from(PHI3 | {"partial_rotary_factor": 0.75}).rope == Rope(1e4, rotated=12)
    nested = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    assert spec_from(PHI3 | {"rope_parameters": nested}).rope == Rope(1e4, rotated=12)
    assert spec_from(GLM4).rope == Rope(1e4, rotated=8, interleaved=True)


def test_factors_of_longrope_are_chosen_by_the_context_that_is_served() -> None:
    """The magnitude: transformers' `_compute_longrope_parameters`."""
    spec = spec_from(PHI3 | {"rope_scaling": LONG, "original_max_position_embeddings": 8192})
    scaling = spec.rope.scaling
    assert isinstance(scaling, LongRope)
    assert scaling.magnitude == pytest.approx((1 + 2 / 13) ** 0.5)
    assert (scaling.context_tokens, scaling.is_long) == (32_768, True)
    for served, is_long in ((8192, False), (8193, True)):
        scaling = spec.serving(served).rope.scaling
        assert isinstance(scaling, LongRope)
        assert scaling.is_long == is_long
    given = spec_from(PHI3 | {"rope_scaling": {**LONG, "attention_factor": 1.5}}).rope.scaling
    assert isinstance(given, LongRope)
    assert (given.magnitude, given.original_context_tokens) == (1.5, 4096)


@pytest.mark.parametrize("written", [{}, {"rope_scaling": None, "rope_parameters": None}])
def test_gpt_oss_without_a_rope_has_the_default_of_transformers(written: dict[str, Any]) -> None:
    without = {key: value for key, value in GPT_OSS.items() if key != "rope_scaling"}
    assert spec_from(without | written).rope == spec_from(GPT_OSS).rope
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    assert spec_from(without | plain).rope == Rope(1e4)


@pytest.mark.parametrize("config", [QWEN2, QWEN3, MOE, LLAMA])
def test_yarn_as_transformers_reads_it(config: dict[str, Any]) -> None:
    written = {"type": "yarn", "factor": 4.0, "beta_fast": None, "attention_factor": None}
    of_model = spec_from(config | {"rope_scaling": written}).rope
    assert of_model == Rope(1e4, YarnScaling(4.0, 32.0, 1.0, 512, truncate=True))
    assert isinstance(of_model.scaling, YarnScaling)
    assert of_model.scaling.magnitude == pytest.approx(1.1386294)
    written |= {"original_max_position_embeddings": 128, "attention_factor": 1.5}
    scaling = spec_from(config | {"rope_scaling": written}).rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.original_context_tokens, scaling.magnitude) == (128, 1.5)


def test_rope_scaling_goes_before_rope_parameters() -> None:
    both = {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default"}}
    assert spec_from(LLAMA | both).rope == Rope(1e4, SCALING)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"rope_scaling": "x"}, ["rope_scaling", "'x'", "an object"]),
        ({"rope_scaling": []}, ["rope_scaling", "[]", "an object"]),
        ({"rope_parameters": [1]}, ["rope_parameters", "[1]", "an object"]),
        ({"rope_theta": "x"}, ["rope_theta", "'x'", "a number"]),
        ({"rope_theta": None}, ["rope_theta", "None", "a number"]),
        (PHI3 | {"rope_scaling": {**LONG, "factor": "8"}}, ["factor", "'8'", "a number"]),
        (GEMMA3 | {"rope_scaling": "x"}, ["rope_scaling", "'x'", "an object"]),
        (GEMMA3 | {"rope_parameters": "x"}, ["rope_parameters", "'x'", "an object"]),
        (
            GEMMA3 | {"rope_parameters": {"full_attention": "x"}},
            ["full_attention", "'x'", "an object"],
        ),
        ({"rope_scaling": {"type": "mrope"}}, ["rope_type", "'mrope'", "'linear' or 'dynamic'"]),
        ({"rope_scaling": {"type": None}}, ["rope_type", "None", "'default'"]),
        ({"rope_scaling": {"type": "linear"}}, ["factor", "None", "type linear requires"]),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, ["factor", "0", "above 0"]),
        ({"rope_scaling": {"type": "linear", "factor": True}}, ["factor", "True", "above 0"]),
        ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, ["factor", "inf"]),
        ({"rope_scaling": {"type": "dynamic"}}, ["factor", "None", "type dynamic requires"]),
        ({"rope_theta": -1.0}, ["rope_theta", "-1.0", "above 0"]),
        ({"rope_scaling": YARN | {"factor": None}}, ["factor", "None", "type yarn"]),
        ({"rope_scaling": YARN | {"attention_factor": "1"}}, ["attention_factor", "'1'"]),
        ({"rope_scaling": {"rope_type": "llama3"}}, ["factor", "None"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["rope_type"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5", "1.0"]),
        (PHI3 | {"partial_rotary_factor": 0.7}, ["partial_rotary_factor", "0.7", "16"]),
        (PHI3 | {"partial_rotary_factor": 1.5}, ["partial_rotary_factor", "1.5"]),
        (PHI3 | {"rope_scaling": {"type": "yarn"}}, ["rope_type", "'yarn'", "'longrope'"]),
        (PHI3 | {"rope_scaling": {"type": "linear"}}, ["'linear'", "'default' or 'longrope'"]),
        (
            PHI3 | {"rope_scaling": {**LONG, "long_factor": [4] * 7}},
            ["long_factor", "[4, 4", "8 numbers"],
        ),
        (PHI3 | {"rope_scaling": {**LONG, "short_factor": None}}, ["short_factor", "None"]),
        (PHI3 | {"rope_scaling": {**LONG, "short_mscale": 1.1}}, ["short_mscale", "1.1"]),
        (GEMMA3 | {"rope_scaling": LONG}, ["rope_type", "'longrope'", "or 'yarn'"]),
        (
            PHI3 | {"rope_scaling": LONG, "original_max_position_embeddings": 1},
            ["original_max_position_embeddings", "1", "from 2"],
        ),
        (GEMMA3 | {"rope_parameters": {"rope_theta": 1e4}}, ["rope_parameters", "full_attention"]),
        (GPT_OSS | {"rope_scaling": YARN | {"mscale": 1.0}}, ["mscale", "1.0", "absent"]),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    changed: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        spec_from(QWEN3 | changed)
    assert all(part in str(caught.value) for part in parts), caught.value


FAMILIES: Final = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": MOE,
    "phi3": PHI3,
    "glm": GLM4 | {"architectures": ["GlmForCausalLM"]},
    "glm4": GLM4,
    "gpt_oss": GPT_OSS,
    "gemma3_text": GEMMA3,
    "olmo2": OLMO2,
    "granite": GRANITE | {"attention_multiplier": 0.25},  # of heads of 16, scores as usual
}
"""By the model_type of transformers."""
TYPES: Final[dict[str, dict[str, Any]]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {key: value for key, value in LLAMA3.items() if key != "rope_type"},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 4.0},
    "longrope": {
        "short_factor": [1.0 + pair for pair in range(8)],
        "long_factor": [3.0 + pair for pair in range(8)],
        "original_max_position_embeddings": 256,
    },
}
"""What belongs to each type of rotation."""
NOT_OF_TRANSFORMERS: Final = {
    *product(["phi3"], ["linear", "dynamic", "llama3", "yarn"]),
    # For layers with a window and without there would be two lists each.
    ("gemma3_text", "longrope"),
}
Rotations = Callable[[str, dict[str, Any]], tuple[dict[str, Any], Tensor, float]]


@pytest.fixture(scope="module")
def of_transformers() -> Rotations:
    """The config as transformers writes it, frequencies and magnitude at the longest context."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    def made(family: str, config: dict[str, Any]) -> tuple[dict[str, Any], Tensor, float]:
        own = {key: value for key, value in config.items() if key != "architectures"}
        theirs = AutoConfig.for_model(family, **own | {"pad_token_id": 0})
        layers = "full_attention" if family == "gemma3_text" else None
        parameters = theirs.rope_parameters[layers] if layers else theirs.rope_parameters
        function = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        longest = theirs.max_position_embeddings
        frequencies, magnitude = function(theirs, "cpu", seq_len=longest, layer_type=layers)
        return theirs.to_dict(), frequencies, magnitude

    return made


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_type_of_a_family_is_transformers(
    of_transformers: Rotations, family: str, kind: str
) -> None:
    plain = FAMILIES[family] | {"head_dim": 16}
    share = 0.5 if family.startswith("glm") else 1
    # Of Gemma 3 transformers reads the newer name alone.
    scaling = TYPES[kind] | {"rope_type" if family == "gemma3_text" else "type": kind}
    if kind == "longrope":
        for key in ("short_factor", "long_factor"):
            scaling[key] = scaling[key][: int(8 * share)]
    config = plain | {"rope_scaling": scaling}
    if (family, kind) in NOT_OF_TRANSFORMERS:
        with pytest.raises(ModelLoadError, match=f"rope_type: '{kind}' is not allowed"):
            spec_from(config)
        return
    written, frequencies, magnitude = of_transformers(family, dict(config))
    for spelling in (config, written | {"architectures": plain["architectures"]}):
        ours = inverse_frequencies(spec_from(spelling).rope, 16)
        turning = ours.values[: len(frequencies)]
        torch.testing.assert_close(turning, frequencies, rtol=1e-6, atol=0)
        assert not ours.values[len(frequencies) :].any()
        if ours.magnitudes is None:
            assert magnitude == 1
        else:
            assert ours.magnitudes[: len(frequencies)].tolist() == pytest.approx(
                [magnitude] * len(frequencies)
            )
