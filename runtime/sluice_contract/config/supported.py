"""Features that this version of the engine lacks: one table by which both engine and operator
refuse.

A row is deleted when the feature lands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice_contract.base import ConfigError, ContractModel
from sluice_contract.cluster.labels import Role
from sluice_contract.config.engine import EngineSettings


@dataclass(frozen=True)
class Unsupported:
    """A setting, which of its values this version refuses, and which it allows."""

    key: str
    """Path of the setting, as users spell it."""
    refuses: Callable[[EngineSettings], bool]
    allowed: str
    on_cpus_only: bool = False
    """Whether the feature is missing only on CPUs."""
    on_gpus_only: bool = False
    """Whether the feature is missing only on GPUs."""

    def applies(self, *, on_cpus: bool) -> bool:
        return not (self.on_gpus_only if on_cpus else self.on_cpus_only)


ROWS: Final = (
    Unsupported(
        "tensorParallelSize",
        lambda s: (s.tensor_parallel_size or 1) != 1,
        "1 without an accelerator (with one, accelerator.count is the tensor parallel size)",
        on_cpus_only=True,
    ),
    Unsupported(
        "weightDtype",
        lambda s: s.weight_dtype not in (None, "auto"),
        "auto with an accelerator (int8 is for CPUs)",
        on_gpus_only=True,
    ),
    Unsupported(
        "cudaGraphMaxBatch",
        lambda s: s.cuda_graph_max_batch not in (None, 0),
        "0 without an accelerator",
        on_cpus_only=True,
    ),
    Unsupported(
        "attentionBackend",
        lambda s: (s.attention_backend or "").startswith("flashinfer"),
        "auto, native or torch without an accelerator",
        on_cpus_only=True,
    ),
    Unsupported(
        "attentionBackend",
        lambda s: s.attention_backend == "native",
        "auto, flashinfer or torch with an accelerator",
        on_gpus_only=True,
    ),
)


def allowed_so_far() -> dict[str, str]:
    """Allowed values in the rows of the table, by key, for people."""
    keys = dict.fromkeys(row.key for row in ROWS)
    return {key: "; ".join(row.allowed for row in ROWS if row.key == key) for key in keys}


ARCHITECTURES: Final = (
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Glm4ForCausalLM",
    "GlmForCausalLM",
    "GptOssForCausalLM",
    "GraniteForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Olmo2ForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
"""Supported architectures, by the names in config.json: the operator refuses others before they are
downloaded. The engine's own table is the runtime's `model/families/registry.py`."""


class Required(NamedTuple):
    """A key of a quantisation, and its only value that engines read."""

    key: str
    value: object


QUANTISATIONS: Final[Mapping[str, Required | None]] = {
    "awq": Required("bits", 4),
    "compressed-tensors": Required("format", "float-quantized"),
    "fp8": None,
    "gptq": Required("bits", 4),
    "modelopt": Required("quant_algo", "FP8"),
    "mxfp4": None,
}
"""Supported quantisations, by the names in config.json's `quant_method`: the operator refuses
others before a download. The engine's own table is in the runtime's
`model/quantisation_config.py`, which also checks the other keys."""
ALLOWED_QUANTISATIONS: Final = ", ".join(
    f"{name} ({rule.key} {rule.value})" if rule else name for name, rule in QUANTISATIONS.items()
)

ROLES: Final = (Role.MIXED, Role.PREFILL, Role.DECODE)
"""Roles that an engine can have in this version."""


def unsupported(settings: EngineSettings, *, on_cpus: bool = True) -> Iterator[ConfigError]:
    """A refusal for every requested setting that this version does not support. `on_cpus`: whether
    the engine has no accelerator."""
    for row in ROWS:
        if row.applies(on_cpus=on_cpus) and row.refuses(settings):
            yield ConfigError(row.key, _value(settings, row.key), row.allowed)


def unused_without_adapters(settings: EngineSettings) -> Iterator[str]:
    """A warning for every given setting that an engine without adapters ignores."""
    unused = {
        "maxLorasPerBatch": settings.max_loras_per_batch,
        "maxLoraRank": settings.max_lora_rank,
    }
    for key, value in unused.items():
        if value is not None:
            yield f"{key}: {value} is not read without adapters"


def _value(settings: ContractModel, key: str) -> object:
    """The value at a key, whose parts are spelled in camelCase."""
    value: object = settings
    for part in key.split("."):
        assert isinstance(value, ContractModel)
        fields = type(value).model_fields.items()
        value = getattr(value, next(name for name, field in fields if field.alias == part))
    return value
