"""Shapes of published models, by the names of their repositories on Hugging Face.

`sluice plan` and `sluice explain` assume them before a model is resolved; engines never read this
table. The numbers are those of each repository's config.json. A fine-tuned model of the same size
has the same shape. Rows for a longer name come before those for its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sluice_contract.config.model_facts import ModelFacts, packed_parts
from sluice_contract.config.model_shape import Experts, ModelShape
from sluice_contract.config.packing import FP8, MXFP4, Packing, packable


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
    dtype: str = "bfloat16"

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
            dtype=self.dtype,
            context_tokens=self.shape.context_length_tokens,
            quantization=self.quantization,
            parameters=self.shape.parameters,
            packed_parts=packed_parts(self.shape, self.packing),
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
        path = name.casefold().rstrip("/").split("/")
        segment = path[-1]
        places = [at for at, letter in enumerate(segment) if re.match(r"[a-z0-9.]", letter)]
        plain = "".join(segment[at] for at in places)
        for model in PUBLISHED:
            for match in model.pattern.finditer(plain):
                first, last = places[match.start()], places[match.end() - 1]
                if segment[:first][-1:].isalnum() or _OTHER_MODEL.search(segment):
                    continue
                if not _OTHER_CONTEXT.search(segment, last + 1):
                    return _as_named(model, "/".join(path[-2:]))
    return None


class _Copy(NamedTuple):
    """Quantised copies of published models, by their names."""

    pattern: str
    """Pattern of the beginning of owner and name, in lower case."""
    quantization: str | None
    packing: Packing | None
    dtype: str = "bfloat16"
    width: int | None = None
    """Width of the feed-forward part, where the copies have another one."""


_INT4: Final = Packing(4, 3, 128)
"""AWQ and GPTQ as they are mostly published: groups of 128, scales in float16, zeros."""
_AWQ: Final = r"awq(?![a-z0-9])"
_GPTQ: Final = r"gptq(?![a-z0-9])(?!.*(int8|8-?bit))"
_REFUSED: Final = r"bnb|exl[23]|gguf|int[48]|nvfp4|[2-8]-?bit|w[0-9]+a[0-9]+"
_COPIES: Final = (
    _Copy("qwen/qwen3-.*-fp8$", "fp8", Packing(8, 4, 128)),
    _Copy(rf"qwen/qwen2\.5-72b-instruct-{_AWQ}", "awq", _INT4, "float16", 29_696),
    _Copy(rf"qwen/qwen2\.5-72b-instruct-{_GPTQ}", "gptq", _INT4, "float16", 29_696),
    _Copy(rf".*(?<![a-z0-9]){_AWQ}", "awq", _INT4, "float16"),
    _Copy(rf".*(?<![a-z0-9]){_GPTQ}", "gptq", _INT4, "float16"),
    _Copy(".*(?<![a-z0-9])fp8(?![a-z0-9])", "compressed-tensors", FP8),
    _Copy(
        rf".*(?<![a-z0-9])(bf16|bfloat16|fp?16|fp32|mlx|{_REFUSED})(?![a-z0-9])",
        None,
        None,
    ),
)
"""The first that fits counts: those of one owner, those of a format, and those whose format stays
not packed."""


def _as_named(model: PublishedModel, name: str) -> PublishedModel:
    """The model in the format of the copy that has the name; itself if it is no copy."""
    copy = next((copy for copy in _COPIES if re.match(copy.pattern, name)), None)
    if copy is None:
        return model
    shape = replace(model.shape, intermediate_size=copy.width or model.shape.intermediate_size)
    packing = copy.packing and packable(copy.packing, shape)
    return replace(
        model, shape=shape, dtype=copy.dtype, quantization=copy.quantization, packing=packing
    )


_REFUSED_FORMAT: Final = re.compile(
    rf"(?<![a-z0-9])((awq|bnb|gptq|mlx)[-_.])?({_REFUSED})(?![a-z0-9])", re.IGNORECASE
)


def refused_format(model: PublishedModel, name: str) -> str | None:
    """The part of `name`, such as `GPTQ-Int8`, that says a format that engines do not read; None:
    it says none, or `model`, as `published_model` has found it by the name, is in a format that
    they read."""
    found = None if model.quantization else _REFUSED_FORMAT.search(name.rstrip("/").split("/")[-1])
    return found and found[0]


GATED_OWNERS: Final = {"meta-llama": "Llama", "google": "Gemma"}
"""Owners whose repositories of a family need a token of an account that has accepted its terms."""


def is_gated(uri: str) -> bool:
    """Whether a hub's repository needs a token."""
    owner, _, name = uri.partition("://")[2].partition("/")
    family = GATED_OWNERS.get(owner)
    return uri.startswith("hf://") and family is not None and family.casefold() in name.casefold()


def _row(
    repository: str,
    kind: str,
    sizes: str,
    pattern: str = "",
    *,
    tied: bool = False,
) -> PublishedModel:
    """A row of the table. `repository`: in brackets what other names of the shape lack; `kind`:
    architecture without ForCausalLM; `sizes`: hidden size, width of the feed-forward part, layers,
    heads, key heads, their size, vocabulary, context, and of experts count, active ones and width;
    `pattern`: empty: the name."""
    hidden, width, layers, heads, kv_heads, head_dim, *others = map(int, sizes.split())
    vocabulary, context, *experts = others
    shape = ModelShape(
        vocabulary, hidden, width, layers, heads, kv_heads, head_dim, context, tied_embeddings=tied
    )
    if experts:
        count, active, own_width = experts
        own = Experts(frozenset(range(layers)), count, active, own_width, renormalised=True)
        shape = replace(shape, experts=own)
    name = re.sub(r"\[.*?\]|[^a-z0-9.]", "", repository.partition("/")[2].casefold())
    packed = ("mxfp4", MXFP4) if kind == "GptOss" else ()
    return PublishedModel(
        re.sub(r"[][]", "", repository),
        re.compile(f"{pattern or re.escape(name)}(?![0-9](?!bit))"),
        kind if "For" in kind else f"{kind}ForCausalLM",
        shape,
        *packed,
    )


# fmt: off
PUBLISHED: Final = (
    _row("Qwen/Qwen3-0.6B", "Qwen3", "1024 3072 28 16 8 128 151936 40960", tied=True),
    _row("Qwen/Qwen3-1.7B", "Qwen3", "2048 6144 28 16 8 128 151936 40960", tied=True),
    _row(
        "Qwen/Qwen3-4B-Instruct-2507", "Qwen3", "2560 9728 36 32 8 128 151936 262144",
        "qwen34b(instruct|thinking)2507", tied=True,
    ),
    _row("Qwen/Qwen3-4B", "Qwen3", "2560 9728 36 32 8 128 151936 40960", tied=True),
    _row("Qwen/Qwen3-8B", "Qwen3", "4096 12288 36 32 8 128 151936 40960"),
    _row("Qwen/Qwen3-14B", "Qwen3", "5120 17408 40 40 8 128 151936 40960"),
    _row("Qwen/Qwen3-32B", "Qwen3", "5120 25600 64 64 8 128 151936 40960"),
    _row(
        "Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3Moe",
        "2048 6144 48 32 4 128 151936 262144 128 8 768",
        "(qwen330ba3b(instruct|thinking)2507|qwen3coder30ba3b)",
    ),
    _row("Qwen/Qwen3-30B-A3B", "Qwen3Moe", "2048 6144 48 32 4 128 151936 40960 128 8 768"),
    _row(
        "Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen3Moe",
        "4096 12288 94 64 4 128 151936 262144 128 8 1536", "qwen3235ba22b(instruct|thinking)2507",
    ),
    _row("Qwen/Qwen3-235B-A22B", "Qwen3Moe", "4096 12288 94 64 4 128 151936 40960 128 8 1536"),
    _row("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2", "896 4864 24 14 2 64 151936 32768", tied=True),
    _row("Qwen/Qwen2.5-1.5B-Instruct", "Qwen2", "1536 8960 28 12 2 128 151936 32768", tied=True),
    _row("Qwen/Qwen2.5-3B-Instruct", "Qwen2", "2048 11008 36 16 2 128 151936 32768", tied=True),
    _row("Qwen/Qwen2.5-7B-Instruct", "Qwen2", "3584 18944 28 28 4 128 152064 32768"),
    _row("Qwen/Qwen2.5-14B-Instruct", "Qwen2", "5120 13824 48 40 8 128 152064 32768"),
    _row("Qwen/Qwen2.5-32B-Instruct", "Qwen2", "5120 27648 64 40 8 128 152064 32768"),
    _row("Qwen/Qwen2.5-72B-Instruct", "Qwen2", "8192 29568 80 64 8 128 152064 32768"),
    _row(
        "meta-llama/Llama-3.2-1B[-Instruct]", "Llama", "2048 8192 16 32 8 64 128256 131072",
        tied=True,
    ),
    _row(
        "meta-llama/Llama-3.2-3B[-Instruct]", "Llama", "3072 8192 28 24 8 128 128256 131072",
        tied=True,
    ),
    _row("meta-llama/Llama-3.1-8B[-Instruct]", "Llama", "4096 14336 32 32 8 128 128256 131072"),
    _row(
        "meta-llama/Llama-3.3-70B-Instruct", "Llama", "8192 28672 80 64 8 128 128256 131072",
        r"llama3\.[13]70b",
    ),
    _row(
        "meta-llama/Llama-3.1-405B[-Instruct]", "Llama", "16384 53248 126 128 8 128 128256 131072"
    ),
    _row("meta-llama/[Meta-]Llama-3-8B[-Instruct]", "Llama", "4096 14336 32 32 8 128 128256 8192"),
    _row("meta-llama/[Meta-]Llama-3-70B[-Instruct]", "Llama", "8192 28672 80 64 8 128 128256 8192"),
    _row(
        "HuggingFaceTB/SmolLM2-135M[-Instruct]", "Llama", "576 1536 30 9 3 64 49152 8192",
        tied=True,
    ),
    _row(
        "HuggingFaceTB/SmolLM2-360M[-Instruct]", "Llama", "960 2560 32 15 5 64 49152 8192",
        tied=True,
    ),
    _row(
        "HuggingFaceTB/SmolLM2-1.7B[-Instruct]", "Llama", "2048 8192 24 32 32 64 49152 8192",
        tied=True,
    ),
    _row("google/gemma-3-1b[-it]", "Gemma3", "1152 6912 26 4 1 256 262144 32768", tied=True),
    _row(
        "google/gemma-3-4b[-it]", "Gemma3ForConditionalGeneration",
        "2560 10240 34 8 4 256 262208 131072", tied=True,
    ),
    _row(
        "google/gemma-3-12b[-it]", "Gemma3ForConditionalGeneration",
        "3840 15360 48 16 8 256 262208 131072", tied=True,
    ),
    _row(
        "google/gemma-3-27b[-it]", "Gemma3ForConditionalGeneration",
        "5376 21504 62 32 16 128 262208 131072", tied=True,
    ),
    _row("openai/gpt-oss-20b", "GptOss", "2880 2880 24 64 8 64 201088 131072 32 4 2880"),
    _row("openai/gpt-oss-120b", "GptOss", "2880 2880 36 64 8 64 201088 131072 128 4 2880"),
    _row(
        "mistralai/Mixtral-8x7B[-Instruct-v0.1]", "Mixtral",
        "4096 14336 32 32 8 128 32000 32768 8 2 14336",
    ),
    _row(
        "mistralai/Mixtral-8x22B[-Instruct-v0.1]", "Mixtral",
        "6144 16384 56 48 8 128 32768 65536 8 2 16384",
    ),
    _row(
        "mistralai/Mistral-7B-Instruct-v0.2", "Mistral", "4096 14336 32 32 8 128 32000 32768",
        r"mistral7b(instruct)?v0\.2",
    ),
    _row(
        "mistralai/Mistral-7B-Instruct-v0.3", "Mistral", "4096 14336 32 32 8 128 32768 32768",
        r"mistral7b(instruct)?v0\.3",
    ),
    # Those that are not instruct have float32.
    _row("allenai/OLMo-2-1124-7B-Instruct", "Olmo2", "4096 11008 32 32 32 128 100352 4096"),
    _row("allenai/OLMo-2-1124-13B-Instruct", "Olmo2", "5120 13824 40 40 40 128 100352 4096"),
    _row(
        "ibm-granite/granite-3.1-2b[-instruct]", "Granite", "2048 8192 40 32 8 64 49155 131072",
        tied=True,
    ),
    _row(
        "ibm-granite/granite-3.1-8b[-instruct]", "Granite", "4096 12800 40 32 8 128 49155 131072",
        tied=True,
    ),
    _row(
        "microsoft/Phi-4-mini-instruct", "Phi3", "3072 8192 32 24 8 128 200064 131072",
        "phi4mini(instruct|reasoning)", tied=True,
    ),
    _row(
        "microsoft/phi-4", "Phi3", "5120 17920 40 40 10 128 100352 16384",
        "phi4(?!mini|multimodal|reasoning)",
    ),
    _row(
        "zai-org/GLM-4-9B-0414", "Glm4", "4096 13696 40 32 2 128 151552 32768",
        "glm49b(chat)?0414",
    ),
    _row(
        "zai-org/glm-4-9b-chat-hf", "Glm", "4096 13696 40 32 2 128 151552 131072",
        "glm49b(chat)?hf",
    ),
    _row("zai-org/GLM-4-32B-0414", "Glm4", "6144 23040 61 48 2 128 151552 32768"),
)
# fmt: on
