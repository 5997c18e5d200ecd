"""Features that this version of the engine lacks: one table by which both engine and operator
refuse.

A row is deleted when the feature lands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

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
    """A key of a quantisation, and the values that engines read; None: it may be absent."""

    key: str
    """Path of the key; `*` stands for every key of an object."""
    allowed: tuple[object, ...]

    def __str__(self) -> str:
        words = ("absent" if value in (None, {}) else str(value) for value in self.allowed)
        return f"{self.key} {' or '.join(dict.fromkeys(words))}"


_WEIGHTS: Final = "config_groups.*.weights"
QUANTISATIONS: Final[Mapping[str, tuple[Required, ...]]] = {
    "awq": (
        Required("bits", (4,)),
        Required("version", (None, "gemm", "GEMM")),
        Required("zero_point", (True,)),
    ),
    "compressed-tensors": (
        Required("format", ("float-quantized",)),
        Required("transform_config", (None, {})),
        Required("sparsity_config.format", (None, "dense")),
        Required(f"{_WEIGHTS}.type", ("float",)),
        Required(f"{_WEIGHTS}.num_bits", (8,)),
        Required(f"{_WEIGHTS}.strategy", ("tensor", "channel", "block")),
    ),
    "fp8": (Required("fmt", (None, "e4m3", "float8_e4m3fn")),),
    "gptq": (
        Required("bits", (4,)),
        Required("desc_act", (None, False)),
        Required("checkpoint_format", (None, "gptq", "gptq_v2")),
        Required("dynamic", (None, {})),
        Required("sym", (None, True, False)),
    ),
    "modelopt": (Required("quant_algo", ("FP8",)),),
    "mxfp4": (),
}
"""Supported quantisations, by the names in config.json's `quant_method`: the operator refuses
others before a download. The runtime's `model/quantisation_config.py` reads sizes and blocks."""


def unsupported_key(
    method: str, quantisation: Mapping[str, Any]
) -> tuple[str, object, Required] | None:
    """The first key of a supported method whose value engines do not read, and that value."""
    for required in QUANTISATIONS[method]:
        for path, value in _at(quantisation, required.key.split(".")):
            if not any(value == own and type(value) is type(own) for own in required.allowed):
                return path, value, required
    return None


def allowed_quantisations(name: str) -> str:
    """What is allowed in the place of a quantisation, for people. `name`: as
    `packing.quantisation_of` has it, with the key that is refused."""
    method, _, refused = name.partition(" (")
    rules = QUANTISATIONS.get(method, ())
    rule = next((each for each in rules if fnmatchcase(refused.split(" ")[0], each.key)), None)
    names = (f"{own} ({rule})" if rule and own == method else own for own in QUANTISATIONS)
    return ", ".join(names)


def _at(values: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Values at a path, each with its own path; None if there is none."""
    first, *rest = keys
    for key in values if first == "*" else (first,):
        value = values.get(key)
        if not rest:
            yield key, value
        elif isinstance(value, Mapping):
            yield from ((f"{key}.{path}", own) for path, own in _at(value, rest))
        elif "*" not in rest:
            yield ".".join((key, *rest)), None


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
