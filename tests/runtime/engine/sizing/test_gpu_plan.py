"""Each model on each GPU of the table gets a pool of one long context, or a refusal that helps."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest
import torch
from sluice_contract.config.accelerators import PRODUCTS, Accelerator
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.sizing import resolve_settings, resolved_values
from sluice_operator.api.status import ModelStatus
from sluice_operator.cli.kv_capacity import kv_capacity_of
from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.engine.sizing.gpu_plan import (
    MIB,
    DeviceBytes,
    ModelBytes,
    PoolQuestion,
    check_weights,
    device_pool_pages,
    step_tokens,
)
from sluice_runtime.engine.sizing.plan import resolved, running_requests
from sluice_runtime.engine.sizing.pool_size import with_running_requests
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.layers import experts
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.layers.stack import PagedStep
from sluice_runtime.layers.stacks import PlainStack
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.parallel.group import Solo
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Tensors without values make torch import what transformers imports too: seconds, for one worker.
pytestmark = pytest.mark.xdist_group("transformers")

CONTEXT = 8192


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts are computed as there, whose steps take the most."""
    monkeypatch.setattr(experts, "can_fuse", lambda weights: True)


META = torch.device("meta")


def spec(
    name: str,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    vocabulary: int,
    *,
    tied: bool,
    **more: Any,
) -> ModelSpec:
    return spec_from(
        {
            "architectures": [name],
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": vocabulary,
            "tie_word_embeddings": tied,
            "max_position_embeddings": 40_960,
            "rope_theta": 1e6,
            "dtype": "bfloat16",
            **more,
        }
    )


MOE = "Qwen3MoeForCausalLM"
EXPERTS = {"num_experts": 160, "num_experts_per_tok": 8, "moe_intermediate_size": 2560}
GLM4 = {"num_key_value_heads": 2, "attention_bias": True, "partial_rotary_factor": 0.5}
QWEN, QWEN2, LLAMA = "Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"
WITH_EXPERTS = "Qwen3-Coder-480B-A35B"
"""Its 30,000 tensors take a second to make."""
GEMMA = "Gemma3ForCausalLM"
OSS, OSS_EXPERTS = "GptOssForCausalLM", {"num_local_experts": 32, "num_experts_per_tok": 4}
MODELS = {
    "gpt-oss-20b": (
        spec(OSS, 2880, 2880, 24, 64, 201_088, tied=False, head_dim=64, **OSS_EXPERTS),
        20_914_757_184,
    ),
    "Gemma-3-27B": (
        spec(GEMMA, 5376, 21_504, 62, 32, 262_208, tied=True, num_key_value_heads=16),
        27_009_346_304,
    ),
    "Qwen3-0.6B": (spec(QWEN, 1024, 3072, 28, 16, 151_936, tied=True), 596_049_920),
    "Qwen3-8B": (spec(QWEN, 4096, 12_288, 36, 32, 151_936, tied=False), 8_190_735_360),
    "Qwen3-32B": (spec(QWEN, 5120, 25_600, 64, 64, 151_936, tied=False), 32_762_123_264),
    "Qwen2.5-14B": (spec(QWEN2, 5120, 13_824, 48, 40, 152_064, tied=False), 14_770_033_664),
    WITH_EXPERTS: (
        spec(MOE, 6144, 8192, 62, 96, 151_936, tied=False, **EXPERTS),
        480_154_875_392,
    ),
    "Llama-3-8B": (spec(LLAMA, 4096, 14_336, 32, 32, 128_256, tied=False), 8_030_261_248),
    "Llama-3-70B": (spec(LLAMA, 8192, 28_672, 80, 64, 128_256, tied=False), 70_553_706_496),
    "Phi-4": (
        spec("Phi3ForCausalLM", 5120, 17_920, 40, 40, 100_352, tied=False, num_key_value_heads=10),
        14_659_507_200,
    ),
    "GLM-4-9B-0414": (
        spec("Glm4ForCausalLM", 4096, 13_696, 40, 32, 151_552, tied=False, **GLM4),
        9_400_279_040,
    ),
    "Granite-3.3-8B": (
        spec("GraniteForCausalLM", 4096, 12_800, 40, 32, 49_159, tied=True),
        8_170_864_640,
    ),
    "OLMo-2-1124-7B": (
        spec("Olmo2ForCausalLM", 4096, 11_008, 32, 32, 100_352, tied=False, num_key_value_heads=32),
        7_298_617_344,
    ),
    "Mixtral-8x7B": (
        spec("MixtralForCausalLM", 4096, 14_336, 32, 32, 32_000, tied=False),
        46_702_792_704,
    ),
}
"""With their published numbers of parameters."""
TOLD_IN_TWO_STEPS: Final = "Mixtral-8x7B"
"""Eight T4s hold its weights, and beside them a pool only with a larger memoryPercent."""


def divided(names: Iterable[str]) -> list[tuple[str, int]]:
    """With each number of ranks that can share it."""
    return [
        (name, ranks)
        for name, ranks in product(sorted(names), (1, 2, 4, 8))
        if ranks in MODELS[name][0].rank_counts
    ]


class MetaWeights:
    """Tensors without values, counted."""

    def __init__(self) -> None:
        self.size_bytes = self.values = 0

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(part.shape, dtype=dtype, device=META)
        self.size_bytes += tensor.nbytes
        self.values += tensor.numel()
        return tensor

    def settle(self) -> None:
        pass

    def unread(self) -> list[str]:
        return []


def decoder(model: ModelSpec, ranks: int = 1) -> tuple[Decoder, MetaWeights]:
    weights = MetaWeights()
    placement = Placement(META, Solo(0, ranks))
    return build_decoder(Reader(model, weights, torch.bfloat16, placement), TORCH), weights


def of_two_layers(model: ModelSpec) -> ModelSpec:
    sparse = model.experts and replace(model.experts, layers=frozenset({1}))
    return replace(model, layers=2, experts=sparse)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param(*case, marks=pytest.mark.process if case == (WITH_EXPERTS, 1) else ())
        for case in divided(MODELS)
    ],
)
def test_weights_take_what_is_read_of_them(name: str, ranks: int) -> None:
    model, parameters = MODELS[name]
    if ranks > 1:
        model = of_two_layers(model)
    weights = decoder(model, ranks)[1]
    assert ModelBytes(model, 2, ranks).weights == weights.size_bytes
    if ranks == 1:
        assert weights.values == parameters


class Peak(TorchDispatchMode):
    """Bytes of tensors made inside that are alive at once, at most."""

    def __init__(self) -> None:
        super().__init__()
        self._alive = 0
        self._known: set[int] = set()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {leaf.untyped_storage()._cdata for leaf in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata in before | self._known:
                continue
            self._known.add(storage._cdata)
            self._alive += storage.nbytes()
            weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        self.bytes = max(self.bytes, self._alive)
        return result

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._alive -= size


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


class PagedKernel:
    """Attention as a kernel over pages does it: rotated queries and keys, and the output."""

    def __init__(self, shape: ModelSpec, ranks: int) -> None:
        self._heads, self._kv_heads = shape.heads // ranks, shape.rank_kv_heads(ranks)

    def attend(self, layer: int, qkv: Tensor, head_norm: object) -> Tensor:
        queries, keys, _ = qkv.split((self._heads, self._kv_heads, self._kv_heads), dim=1)
        rotated, _ = queries * 1.0, keys * 1.0
        return torch.empty_like(rotated)


def traced_bytes(model: ModelSpec, ranks: int, tokens: int, rows: int) -> int:
    """What one layer and the logits take, without sampling."""
    made, _ = decoder(replace(model, layers=1), ranks)
    stack = made.layers
    assert isinstance(stack, PlainStack)
    kernel = PagedKernel(model, ranks)
    stack._operators = replace(
        stack._operators, attention=lambda *_: kernel, attention_by=lambda *_: kernel
    )
    nothing: Any = None
    unread = PagedStep(nothing, nothing, nothing)
    with Peak() as peak:
        x = torch.empty(tokens, model.hidden_size, dtype=torch.bfloat16, device=META)
        hidden = stack.forward(x, unread)
        del x
        made.logits(hidden[:rows])
    return int(peak.bytes)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        # One in three has each model and each number of ranks.
        pytest.param(*case, marks=() if place % 3 == 1 else pytest.mark.full)
        for place, case in enumerate(divided(MODELS))
    ],
)
def test_a_step_takes_no_more_than_its_bound_and_little_less(name: str, ranks: int) -> None:
    model = MODELS[name][0]
    for tokens, rows in ((16_384, 1), (8192, 256), (2048, 256), (256, 256)):
        bound = ModelBytes(model, 2, ranks).step(tokens, rows)
        traced = traced_bytes(model, ranks, tokens, rows)
        assert traced <= bound, (tokens, rows)
        sampling = sampling_bytes(rows, model.vocabulary_size, model.context_length_tokens)
        activations = bound - sampling
        assert activations <= max(1.2 * traced, 64 * MIB), (tokens, rows)


CUDA_MIB = 600
"""Of a context, which is there before anything is allocated."""


def question(name: str, product: str, gib: float, ranks: int, **settings: Any) -> PoolQuestion:
    """Once the weights are loaded, as far as they can be; a step as large as its bound."""
    accelerator = Accelerator(product=product, memory_mib=int(gib * 1024), count=ranks)
    planned = resolved(
        EngineConfig.model_validate(
            {"model": {"uri": "dummy://qwen3-tiny"}, "accelerator": accelerator, **settings}
        )
    )
    model, total = ModelBytes(MODELS[name][0], 2, ranks), int(gib * 1024) * MIB
    config = with_running_requests(planned, model.spec, total)
    device = DeviceBytes(total, max(0, total - CUDA_MIB * MIB - model.weights))
    step = model.step(step_tokens(config), config.max_running_requests)
    return PoolQuestion(config, model, CONTEXT, device, step)


def refusal(asked: PoolQuestion) -> str | None:
    """None where the engine starts."""
    try:
        check_weights(asked.model, asked.config, asked.device)
        pages = device_pool_pages(asked)
    except OutOfMemoryError as error:
        return str(error)
    tokens = pages * 16
    assert tokens >= asked.context_tokens
    assert tokens * asked.model.token <= asked.device.available - asked.reserved
    return None


@pytest.mark.parametrize(("name", "ranks"), divided(set(MODELS) - {TOLD_IN_TWO_STEPS}))
def test_a_model_fits_each_gpu_or_the_refusal_says_what_would(name: str, ranks: int) -> None:
    for row in PRODUCTS:
        gpu = row.name, row.memory_gib
        asked = question(name, *gpu, ranks)
        if (line := refusal(asked)) is None:
            share = asked.device.total * (asked.config.memory_percent or 100) // 100
            left = asked.device.total - share
            assert asked.reserved == left, "the table sets aside what a full step takes"
            continue
        assert re.search(r"(wants?|needs?) \d+ MiB", line)
        assert re.search(r"(lower|raise|take GPUs with) ", line)
        if wider := re.search(r"tensorParallelSize \(accelerator.count\) to (\d+)", line):
            assert refusal(question(name, *gpu, int(wider[1]))) is None, line
        if context := re.search(r"contextLength to (\d+)", line):
            assert refusal(replace(asked, context_tokens=int(context[1]))) is None, line
        if percent := re.search(r"memoryPercent to (\d+)", line):
            assert refusal(question(name, *gpu, ranks, memoryPercent=int(percent[1]))) is None


@pytest.mark.parametrize(("pages", "kv_itemsize"), [("auto", None), ("fp8_e4m3", 1)])
def test_the_operators_estimate_is_the_engines_pool_to_a_few_percent(
    pages: str, kv_itemsize: int | None
) -> None:
    models = {"Qwen3-8B": 1, "Qwen3-32B": 2, "Qwen3-Coder-480B-A35B": 8, "GLM-4-9B-0414": 8}
    for name, ranks in models.items():
        asked = question(name, "H200", 141, ranks, kvCacheDtype=pages)
        asked = replace(asked, model=replace(asked.model, kv_itemsize=kv_itemsize))
        spec, accelerator = asked.model.spec, asked.config.accelerator
        status = ModelStatus(
            uri="hf://org/name",
            revision="main",
            commit="c0ffee",
            bytes=asked.model.weights * ranks - 2 * spec.copied_weights(ranks),
            layers=spec.layers,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            hidden_size=spec.hidden_size,
            dtype="bfloat16",
        )
        assert accelerator is not None
        told = kv_capacity_of(
            status, accelerator, resolved_values(resolve_settings(asked.config, accelerator))
        )
        assert told.token_bytes == asked.model.token * ranks
        assert told.tokens == pytest.approx(asked.affordable_tokens, rel=0.05)


def test_a_step_that_takes_more_than_was_set_aside_makes_the_pool_smaller() -> None:
    asked = question("Qwen3-8B", "H100", 80, 1)
    larger = replace(asked, step=20 * 1024 * MIB)
    lost = (device_pool_pages(asked) - device_pool_pages(larger)) * 16 * asked.model.token
    assert lost == pytest.approx(larger.least_reserved - asked.reserved, abs=16 * asked.model.token)


def test_a_step_that_leaves_no_pool_is_told_the_chunk_that_would() -> None:
    asked = question("Qwen3-32B", "A100-80GB", 80, 1)
    larger = replace(asked, step=16 * 1024 * MIB)
    line = refusal(larger) or ""
    assert "lower contextLength to 5680 or chunkSize to 4096, or raise tensorParallelSize" in line
    assert "a full step needs 17408 MiB" in line


def test_a_configured_pool_is_taken_as_it_is_or_told_the_most_there_is() -> None:
    asked = question("Qwen3-8B", "L4", 24, 1, kvPoolTokens=16_000)
    assert device_pool_pages(asked) == 1000
    line = refusal(question("Qwen3-8B", "L4", 24, 1, kvPoolTokens=160_000)) or ""
    most = re.search(r"^kvPoolTokens: 160000 is not allowed; allowed: at most (\d+): ", line)
    assert most is not None
    tokens = int(most[1])
    assert device_pool_pages(question("Qwen3-8B", "L4", 24, 1, kvPoolTokens=tokens)) == tokens // 16
    assert refusal(question("Qwen3-8B", "L4", 24, 1, kvPoolTokens=tokens + 16))


@pytest.mark.parametrize(
    ("name", "ranks", "gpu", "rows"),
    [
        # Bytes of the weights of a rank and of a token: 1,192,099,840 and 114,688.
        # H100: (0.83 x 80 GiB - weights) / token = 611,261 tokens, of which 596 times 1,024.
        ("Qwen3-0.6B", 1, ("H100", 80), 592),
        # H200: (0.9 x 141 GiB - weights) / token = 1,177,679 tokens, 1,150 times.
        ("Qwen3-0.6B", 1, ("H200", 141), 1136),
        # L4: (0.84 x 24 GiB - weights) / token = 178,349 tokens, 174 times: too few.
        ("Qwen3-0.6B", 1, ("L4", 24), 256),
        # 16,060,522,496 and 131,072: 421,416 tokens, 411 times.
        ("Llama-3-8B", 1, ("H100", 80), 400),
        # 917,032 tokens, 895 times.
        ("Llama-3-8B", 1, ("H200", 141), 880),
        # 42,618 tokens, 41 times.
        ("Llama-3-8B", 1, ("L4", 24), 256),
        # 32,762,800,128 and 131,072: 293,988 tokens, 287 times.
        ("Qwen3-32B", 2, ("H100", 80), 272),
        # 789,604 tokens, 771 times.
        ("Qwen3-32B", 2, ("H200", 141), 768),
        # The weights do not fit: the engine refuses them.
        ("Qwen3-32B", 2, ("L4", 24), 256),
    ],
)
def test_as_many_requests_run_at_once_as_the_pool_holds_of_a_typical_length(
    name: str, ranks: int, gpu: tuple[str, float], rows: int
) -> None:
    config = question(name, *gpu, ranks).config
    assert config.max_running_requests == rows
    assert question(name, *gpu, ranks, maxRunningRequests=9).config.max_running_requests == 9


def test_a_configured_pool_and_graph_batch_decide_how_many_requests_run_at_once() -> None:
    small = question("Qwen3-0.6B", "H200", 141, 1, kvPoolTokens=320 * 1024).config
    assert small.max_running_requests == 320
    graphs = question("Qwen3-0.6B", "H100", 80, 1, cudaGraphMaxBatch=700).config
    assert graphs.max_running_requests == 700


def test_sampling_all_rows_takes_a_twentieth_of_a_gpu_at_most() -> None:
    """Of 16 GiB 819 MiB; a row of a vocabulary of 100,000 takes 22 bytes a token of it, and 4 for
    each of 4,097 tokens of its context: 2,216,388 bytes, so 387 rows fit."""
    chosen = running_requests(10_000_000, 8, 100_000, 4096, 16 << 30)
    assert (chosen.rows, chosen.reason) == (384, "SamplingMemory")
    assert chosen.message == (
        "from a KV pool of 10,000,000 tokens, 1,024 a request; sampling more takes over 5% of a "
        "GPU's memory"
    )
    assert sampling_bytes(384, 100_000, 4096) < (16 << 30) / 20 < sampling_bytes(400, 100_000, 4096)
    assert running_requests(10_000_000, 512, 100_000, 4096, 16 << 30).rows == 512


@pytest.mark.parametrize(
    ("pool_tokens", "rows", "reason", "says"),
    [
        (1000, 256, "Least", "; at least 256"),
        (500 * 1024, 496, "KvPool", "from a KV pool of 512,000 tokens, 1,024 a request"),
        (10_000_000, 4096, "Most", "; at most 4,096"),
    ],
)
def test_a_number_of_requests_says_what_decided(
    pool_tokens: int, rows: int, reason: str, says: str
) -> None:
    chosen = running_requests(pool_tokens, 8, 1000, 4096, 80 << 30)
    assert (chosen.rows, chosen.reason) == (rows, reason)
    assert chosen.message.endswith(says)
