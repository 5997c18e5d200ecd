"""The registry of architectures: a `Family` for each name. Families that need only values are
defined here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_contract.config.model_shape import language_model

from sluice_runtime.model.config_json import Config, refused
from sluice_runtime.model.families.family import ExpertNames, Family
from sluice_runtime.model.families.gemma3 import GEMMA3, GEMMA3_WITH_VISION
from sluice_runtime.model.families.glm import GLM, GLM4
from sluice_runtime.model.families.gpt_oss import GPT_OSS
from sluice_runtime.model.families.granite import GRANITE
from sluice_runtime.model.families.olmo2 import OLMO2
from sluice_runtime.model.families.phi3 import PHI3
from sluice_runtime.model.spec import ModelSpec

LLAMA: Final = Family()
"""Llama and Mistral."""
MIXTRAL: Final = Family(
    experts=ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6},
)

ARCHITECTURES: Final[Mapping[str, Family]] = {
    "Qwen3ForCausalLM": Family(qk_norm=True),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3MoeForCausalLM": Family(qk_norm=True, experts=ExpertNames()),
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
    """The family that read a spec."""
    return ARCHITECTURES[spec.architecture]
