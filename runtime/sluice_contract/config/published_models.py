"""Shapes of published models, by the names of their repositories on Hugging Face.

`sluice plan` and `sluice explain` assume them before a model is resolved; engines never read this
table. The numbers are those of each repository's config.json. A fine-tuned model of the same size
has the same shape. Rows for a longer name come before those for its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.config.model_facts import ModelFacts, packed_facts
from sluice_contract.config.model_shape import Experts, ModelShape
from sluice_contract.config.packing import FP8, MXFP4, Packing, divided


@dataclass(frozen=True)
class PublishedModel:
    """One published model."""

    repository: str
    """The first repository of this shape, as `owner/name`."""
    pattern: re.Pattern[str]
    """Pattern of the names of this shape, in lower case, of letters, digits and points alone."""
    architecture: str
    shape: ModelShape
    quantization: str | None = None
    packing: Packing | None = None

    @property
    def name(self) -> str:
        return self.repository.partition("/")[2]

    @property
    def facts(self) -> ModelFacts:
        """Facts that its config.json states."""
        return ModelFacts(
            architecture=self.architecture,
            layers=self.shape.layers,
            kv_heads=self.shape.kv_heads,
            head_dim=self.shape.head_dim,
            hidden_size=self.shape.hidden_size,
            tensor_parallel_sizes=[*self.shape.rank_counts],
            dtype="bfloat16",
            context_tokens=self.shape.context_length_tokens,
            quantization=self.quantization,
            parameters=self.shape.parameters,
            **packed_facts(self.shape, self.packing),
        )


_OTHER_MODEL: Final = re.compile(
    r"(?<![a-z0-9])(draft|eagle\d*|gradient|lora|medusa|mtp|speculators?)(?![a-z0-9])"
)
"""Words that make another model of the one whose name they stand beside."""
_OTHER_CONTEXT: Final = re.compile(r"(?<![a-z0-9.])\d+[km](?![a-z0-9])")
"""Context length that a fine-tuned model was extended to, behind its name."""


def published_model(names: Iterable[str]) -> PublishedModel | None:
    """The published model whose name begins at a word of one of the names' last segment; None: no
    row of the table has it, or other words make another model of it."""
    for name in names:
        segment = name.casefold().rstrip("/").rpartition("/")[2]
        places = [at for at, letter in enumerate(segment) if re.match(r"[a-z0-9.]", letter)]
        plain = "".join(segment[at] for at in places)
        for model in PUBLISHED:
            for match in model.pattern.finditer(plain):
                first, last = places[match.start()], places[match.end() - 1]
                if segment[:first][-1:].isalnum() or _OTHER_MODEL.search(segment):
                    continue
                if not _OTHER_CONTEXT.search(segment, last + 1):
                    return _as_named(model, segment)
    return None


_QUANTISED: Final = re.compile(r"(?<![a-z0-9])(fp8|awq|gptq)(?!.*int8)(?![a-z])")
"""Words of quantised copies whose format has no other sizes in use."""
_INT4: Final = Packing(4, 3, 128)
"""AWQ and GPTQ as they are mostly published: groups of 128, scales in float16, zeros."""


def _as_named(model: PublishedModel, segment: str) -> PublishedModel:
    """The model in the format that a word of its name says; itself without such a word."""
    if model.quantization is not None or (word := _QUANTISED.search(segment)) is None:
        return model
    stored = FP8 if word[1] == "fp8" else _INT4
    return replace(model, quantization=word[1], packing=divided(stored, model.shape))


GATED_OWNERS: Final = {"meta-llama": "Llama", "google": "Gemma"}
"""Owners whose repositories of a family need a token of an account that has accepted its terms."""


def is_gated(uri: str) -> bool:
    """Whether a hub's repository needs a token."""
    owner, _, name = uri.partition("://")[2].partition("/")
    family = GATED_OWNERS.get(owner)
    return uri.startswith("hf://") and family is not None and family.casefold() in name.casefold()


def _shape(
    sizes: str, head_dim: int, vocabulary: int, context: int, *, tied: bool = False
) -> ModelShape:
    """`sizes`: hidden size, width of the feed-forward part, layers, heads, key heads."""
    hidden, width, layers, heads, kv_heads = map(int, sizes.split())
    return ModelShape(
        vocabulary, hidden, width, layers, heads, kv_heads, head_dim, context, tied_embeddings=tied
    )


def _sparse(shape: ModelShape, count: int, active: int, width: int | None = None) -> ModelShape:
    """`shape` with experts in every layer."""
    layers, width = frozenset(range(shape.layers)), width or shape.intermediate_size
    return replace(shape, experts=Experts(layers, count, active, width, renormalised=True))


def _model(
    repository: str,
    pattern: str,
    architecture: str,
    shape: ModelShape,
    quantization: str | None = None,
    packing: Packing | None = None,
) -> PublishedModel:
    compiled = re.compile(f"{pattern}(?![0-9])")
    return PublishedModel(repository, compiled, architecture, shape, quantization, packing)


def _qwen3(name: str, sizes: str, *, tied: bool = False) -> PublishedModel:
    shape = _shape(sizes, 128, 151_936, 40_960, tied=tied)
    return _model(f"Qwen/{name}", _plain(name), "Qwen3ForCausalLM", shape)


def _qwen3_moe(
    name: str, pattern: str, sizes: str, width: int, context: int = 40_960
) -> PublishedModel:
    shape = _sparse(_shape(sizes, 128, 151_936, context), 128, 8, width)
    return _model(f"Qwen/{name}", pattern, "Qwen3MoeForCausalLM", shape)


def _qwen2(name: str, sizes: str, head_dim: int, vocabulary: int) -> PublishedModel:
    shape = _shape(sizes, head_dim, vocabulary, 32_768, tied=vocabulary == 151_936)
    return _model(f"Qwen/{name}", _plain(name), "Qwen2ForCausalLM", shape)


def _llama(
    name: str, pattern: str, sizes: str, head_dim: int = 128, context: int = 131_072
) -> PublishedModel:
    shape = _shape(sizes, head_dim, 128_256, context, tied=int(sizes.split()[0]) < 4096)
    return _model(f"meta-llama/{name}", pattern, "LlamaForCausalLM", shape)


def _smollm2(name: str, sizes: str) -> PublishedModel:
    shape = _shape(sizes, 64, 49_152, 8192, tied=True)
    return _model(f"HuggingFaceTB/{name}-Instruct", _plain(name), "LlamaForCausalLM", shape)


def _gemma3(name: str, sizes: str, head_dim: int, context: int = 131_072) -> PublishedModel:
    kind, vocabulary = "Gemma3ForConditionalGeneration", 262_208
    if context < 131_072:  # text alone
        kind, vocabulary = "Gemma3ForCausalLM", 262_144
    shape = _shape(sizes, head_dim, vocabulary, context, tied=True)
    return _model(f"google/{name}-it", _plain(name), kind, shape)


def _gpt_oss(name: str, layers: int, experts: int) -> PublishedModel:
    shape = _sparse(_shape(f"2880 2880 {layers} 64 8", 64, 201_088, 131_072), experts, 4)
    named = f"openai/{name}", _plain(name), "GptOssForCausalLM"
    return _model(*named, shape, "mxfp4", divided(MXFP4, shape))


def _plain(name: str) -> str:
    return re.escape(re.sub(r"[^a-z0-9.]", "", name.casefold()))


# fmt: off
PUBLISHED: Final = (
    _qwen3("Qwen3-0.6B", "1024 3072 28 16 8", tied=True),
    _qwen3("Qwen3-1.7B", "2048 6144 28 16 8", tied=True),
    _model(
        "Qwen/Qwen3-4B-Instruct-2507", "qwen34b(instruct|thinking)2507", "Qwen3ForCausalLM",
        _shape("2560 9728 36 32 8", 128, 151_936, 262_144, tied=True),
    ),
    _qwen3("Qwen3-4B", "2560 9728 36 32 8", tied=True),
    _qwen3("Qwen3-8B", "4096 12288 36 32 8"),
    _qwen3("Qwen3-14B", "5120 17408 40 40 8"),
    _qwen3("Qwen3-32B", "5120 25600 64 64 8"),
    _qwen3_moe(
        "Qwen3-30B-A3B-Instruct-2507", "(qwen330ba3b(instruct|thinking)2507|qwen3coder30ba3b)",
        "2048 6144 48 32 4", 768, 262_144,
    ),
    _qwen3_moe("Qwen3-30B-A3B", "qwen330ba3b", "2048 6144 48 32 4", 768),
    _qwen3_moe(
        "Qwen3-235B-A22B-Instruct-2507", "qwen3235ba22b(instruct|thinking)2507",
        "4096 12288 94 64 4", 1536, 262_144,
    ),
    _qwen3_moe("Qwen3-235B-A22B", "qwen3235ba22b", "4096 12288 94 64 4", 1536),
    _qwen2("Qwen2.5-0.5B-Instruct", "896 4864 24 14 2", 64, 151_936),
    _qwen2("Qwen2.5-1.5B-Instruct", "1536 8960 28 12 2", 128, 151_936),
    _qwen2("Qwen2.5-3B-Instruct", "2048 11008 36 16 2", 128, 151_936),
    _qwen2("Qwen2.5-7B-Instruct", "3584 18944 28 28 4", 128, 152_064),
    _qwen2("Qwen2.5-14B-Instruct", "5120 13824 48 40 8", 128, 152_064),
    _qwen2("Qwen2.5-32B-Instruct", "5120 27648 64 40 8", 128, 152_064),
    _qwen2("Qwen2.5-72B-Instruct", "8192 29568 80 64 8", 128, 152_064),
    _llama("Llama-3.2-1B-Instruct", r"llama3\.21b", "2048 8192 16 32 8", 64),
    _llama("Llama-3.2-3B-Instruct", r"llama3\.23b", "3072 8192 28 24 8"),
    _llama("Llama-3.1-8B-Instruct", r"llama3\.18b", "4096 14336 32 32 8"),
    _llama("Llama-3.3-70B-Instruct", r"llama3\.[13]70b", "8192 28672 80 64 8"),
    _llama("Llama-3.1-405B-Instruct", r"llama3\.1405b", "16384 53248 126 128 8"),
    _llama("Meta-Llama-3-8B-Instruct", "llama38b", "4096 14336 32 32 8", context=8192),
    _llama("Meta-Llama-3-70B-Instruct", "llama370b", "8192 28672 80 64 8", context=8192),
    _smollm2("SmolLM2-135M", "576 1536 30 9 3"),
    _smollm2("SmolLM2-360M", "960 2560 32 15 5"),
    _smollm2("SmolLM2-1.7B", "2048 8192 24 32 32"),
    _gemma3("gemma-3-1b", "1152 6912 26 4 1", 256, 32_768),
    _gemma3("gemma-3-4b", "2560 10240 34 8 4", 256),
    _gemma3("gemma-3-12b", "3840 15360 48 16 8", 256),
    _gemma3("gemma-3-27b", "5376 21504 62 32 16", 128),
    _gpt_oss("gpt-oss-20b", 24, 32),
    _gpt_oss("gpt-oss-120b", 36, 128),
    _model(
        "mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral8x7b", "MixtralForCausalLM",
        _sparse(_shape("4096 14336 32 32 8", 128, 32_000, 32_768), 8, 2),
    ),
    _model(
        "mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral8x22b", "MixtralForCausalLM",
        _sparse(_shape("6144 16384 56 48 8", 128, 32_768, 65_536), 8, 2),
    ),
    _model(
        "mistralai/Mistral-7B-Instruct-v0.2", r"mistral7b(instruct)?v0\.2", "MistralForCausalLM",
        _shape("4096 14336 32 32 8", 128, 32_000, 32_768),
    ),
    _model(
        "mistralai/Mistral-7B-Instruct-v0.3", r"mistral7b(instruct)?v0\.3", "MistralForCausalLM",
        _shape("4096 14336 32 32 8", 128, 32_768, 32_768),
    ),
    # Those that are not instruct have float32.
    _model(
        "allenai/OLMo-2-1124-7B-Instruct", "olmo211247binstruct", "Olmo2ForCausalLM",
        _shape("4096 11008 32 32 32", 128, 100_352, 4096),
    ),
    _model(
        "allenai/OLMo-2-1124-13B-Instruct", "olmo2112413binstruct", "Olmo2ForCausalLM",
        _shape("5120 13824 40 40 40", 128, 100_352, 4096),
    ),
    _model(
        "ibm-granite/granite-3.1-2b-instruct", r"granite3\.12b", "GraniteForCausalLM",
        _shape("2048 8192 40 32 8", 64, 49_155, 131_072, tied=True),
    ),
    _model(
        "ibm-granite/granite-3.1-8b-instruct", r"granite3\.18b", "GraniteForCausalLM",
        _shape("4096 12800 40 32 8", 128, 49_155, 131_072, tied=True),
    ),
    _model(
        "microsoft/Phi-4-mini-instruct", "phi4mini(instruct|reasoning)", "Phi3ForCausalLM",
        _shape("3072 8192 32 24 8", 128, 200_064, 131_072, tied=True),
    ),
    _model(
        "microsoft/phi-4", "phi4(?!mini|multimodal|reasoning)", "Phi3ForCausalLM",
        _shape("5120 17920 40 40 10", 128, 100_352, 16_384),
    ),
    _model(
        "zai-org/GLM-4-9B-0414", "glm49b(chat)?0414", "Glm4ForCausalLM",
        _shape("4096 13696 40 32 2", 128, 151_552, 32_768),
    ),
    _model(
        "zai-org/glm-4-9b-chat-hf", "glm49b(chat)?hf", "GlmForCausalLM",
        _shape("4096 13696 40 32 2", 128, 151_552, 131_072),
    ),
    _model(
        "zai-org/GLM-4-32B-0414", "glm432b0414", "Glm4ForCausalLM",
        _shape("6144 23040 61 48 2", 128, 151_552, 32_768),
    ),
)
# fmt: on
