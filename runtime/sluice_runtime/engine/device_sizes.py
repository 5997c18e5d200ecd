"""What a model, a full step and a KV pool take of a GPU's memory: arithmetic alone.

How much a step takes is an upper bound here; once the weights are loaded `engine.device_memory`
measures it. Knows no tensor. One rank of several has its part of everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.config.accelerators import FIXED_MIB, GRAPH_ROW_MIB
from sluice_contract.config.engine import EngineConfig

from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.model.spec import ModelSpec

MIB: Final = 1 << 20
MAX_RANKS: Final = 8
"""Ranks that a refusal recommends: GPUs of one machine."""
_NORM_VALUES: Final = 10
"""Of 2 bytes each, for each value of the hidden size; traced."""


@dataclass(frozen=True)
class DeviceBytes:
    """Memory of one GPU, and how much of it is still available."""

    total: int
    available: int


@dataclass(frozen=True)
class ModelBytes:
    """What one of `ranks` ranks takes for a model, in bytes."""

    spec: ModelSpec
    itemsize: int
    """Bytes of a value of weights, activations, keys and values."""
    ranks: int = 1

    @property
    def weights(self) -> int:
        spec, ranks = self.spec, self.ranks
        heads = (spec.heads + spec.kv_heads) * spec.head_dim
        attention = 2 * heads * spec.hidden_size // ranks
        norms = 2 * spec.hidden_size + (2 * spec.head_dim if spec.variant.qk_norm else 0)
        outputs = (spec.heads + 2 * spec.kv_heads) * spec.head_dim // ranks
        biases = outputs if spec.variant.qkv_bias else 0
        table = -(-spec.vocabulary_size // ranks) * spec.hidden_size
        tables = table if spec.tied_embeddings else 2 * table
        values = spec.layers * (attention + norms + biases) + self._mlps + tables + spec.hidden_size
        return values * self.itemsize

    @property
    def _mlps(self) -> int:
        """Values of the feed-forward parts of all layers."""
        spec, experts = self.spec, self.spec.experts
        row = 3 * spec.hidden_size // self.ranks
        if experts is None:
            return spec.layers * row * spec.intermediate_size
        sparse = len(experts.layers)
        each = experts.count * (row * experts.width + spec.hidden_size)
        return (spec.layers - sparse) * row * spec.intermediate_size + sparse * each

    @property
    def token(self) -> int:
        """Keys and values of one token."""
        spec = self.spec
        return spec.layers * 2 * (spec.kv_heads // self.ranks) * spec.head_dim * self.itemsize

    def step(self, tokens: int, rows: int) -> int:
        """At most, of a step that computes `tokens` and samples `rows`: what the widest part of a
        layer holds at once beside the residual stream, then logits and sampling."""
        spec = self.spec
        feed_forward = 4 * spec.intermediate_size // self.ranks + 3 * spec.hidden_size
        if (experts := spec.experts) is not None:
            # Each token once for each of its experts; and what the router chooses, in float32.
            hidden, width = spec.hidden_size, experts.width // self.ranks
            copies = experts.active * max(2 * hidden, hidden + 2 * width, 4 * width)
            chosen = 4 * experts.count + 16 * experts.active
            feed_forward = max(feed_forward, copies + chosen + 3 * hidden)
        heads = (spec.heads + 2 * spec.kv_heads) * spec.head_dim // self.ranks
        attention = 3 * heads + 3 * spec.hidden_size
        # A norm that is no single kernel computes in float32.
        norm = _NORM_VALUES * spec.hidden_size
        widest = max(feed_forward, attention, norm)
        sampling = sampling_bytes(rows, spec.vocabulary_size, spec.context_length_tokens)
        return tokens * widest * self.itemsize + sampling

    def over(self, ranks: int) -> ModelBytes:
        """The same model over another number of ranks."""
        return replace(self, ranks=ranks)

    def wider(self) -> Iterator[ModelBytes]:
        """Over more ranks, as far as its layers can be divided."""
        for ranks in (2, 4, 8):
            uneven = any(part % ranks for part in self.spec.shared_sizes.values())
            if self.ranks < ranks <= MAX_RANKS and not uneven:
                yield self.over(ranks)


@dataclass(frozen=True)
class PoolQuestion:
    """How much of one GPU the KV pool gets, once the weights are loaded."""

    config: EngineConfig
    model: ModelBytes
    context_tokens: int
    device: DeviceBytes
    step: int
    """Bytes that a full step takes."""

    @property
    def least_reserved(self) -> int:
        """Bytes of a full step, the CUDA graphs and a fixed part."""
        graphs = (self.config.cuda_graph_max_batch or 0) * GRAPH_ROW_MIB
        return self.step + (graphs + FIXED_MIB) * MIB

    @property
    def reserved(self) -> int:
        """Bytes kept free: what memoryFraction leaves, or more where that is too little."""
        left = self.device.total - int(self.device.total * fraction_of(self.config))
        return max(left, self.least_reserved)

    @property
    def affordable_tokens(self) -> int:
        return max(0, self.device.available - self.reserved) // self.model.token

    @property
    def fits(self) -> bool:
        """Whether the pool holds one context: every request that may come fits an empty pool."""
        return self.affordable_tokens >= self.context_tokens


def step_tokens(config: EngineConfig) -> int:
    """Most tokens of one step: a chunk, or maxPrefillTokens without chunks, or one each row."""
    chunk = config.chunk_size or -1
    prompts = chunk if chunk != -1 else config.max_prefill_tokens or 1
    return max(prompts, config.max_running_requests or 1)


def fraction_of(config: EngineConfig) -> float:
    return config.memory_fraction or 1.0


def mib(size: float) -> str:
    return f"{int(size) >> 20} MiB"
