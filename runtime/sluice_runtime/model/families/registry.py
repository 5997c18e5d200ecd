"""The registry of architectures: a `Family` for each name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_contract.config.model_shape import language_model

from sluice_runtime.model.config_json import Config, refused
from sluice_runtime.model.families.family import Family
from sluice_runtime.model.families.gemma3 import GEMMA3, GEMMA3_WITH_VISION
from sluice_runtime.model.families.glm import GLM, GLM4
from sluice_runtime.model.families.gpt_oss import GPT_OSS
from sluice_runtime.model.families.granite import GRANITE
from sluice_runtime.model.families.olmo2 import OLMO2
from sluice_runtime.model.families.phi3 import PHI3
from sluice_runtime.model.families.plain import LLAMA, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE
from sluice_runtime.model.spec import ModelSpec

ARCHITECTURES: Final[Mapping[str, Family]] = {
    "Qwen3ForCausalLM": QWEN3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "MixtralForCausalLM": MIXTRAL,
    "Phi3ForCausalLM": PHI3,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3_WITH_VISION,
    "GlmForCausalLM": GLM,
    "Glm4ForCausalLM": GLM4,
    "Olmo2ForCausalLM": OLMO2,
    "GptOssForCausalLM": GPT_OSS,
    "GraniteForCausalLM": GRANITE,
}
"""Families by the name in config.json's `architectures`."""


def spec_from(config: Config) -> ModelSpec:
    """The spec that config.json describes.

    Raises:
        ModelLoadError: names the key, its value and what is allowed.
    """
    named = config.get("architectures")
    alone = named[0] if isinstance(named, list) and len(named) == 1 else None
    family = ARCHITECTURES.get(str(alone))
    if family is None:
        raise refused("architectures", named, "one of " + ", ".join(ARCHITECTURES))
    return family.spec({**family.defaults, **language_model(config)})


def family_of(spec: ModelSpec) -> Family:
    """The family that a spec was read by."""
    return ARCHITECTURES[spec.architecture]
