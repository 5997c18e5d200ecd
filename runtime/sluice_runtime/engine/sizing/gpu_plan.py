"""Whether a model fits a GPU, how many pages its KV pool has, and what to change where it does not
fit. Pure.

The GPU memory of a model, a full step and a KV pool is computed; each of several ranks has its part
of all three. A step's memory is an upper bound here; `sizing.pool_size` measures it once the
weights are loaded.

Every refusal says what is needed, what there is, and which setting to change to which number. Each
recommended change suffices by itself. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.config.accelerators import FIXED_MIB, GRAPH_ROW_MIB, MACHINE_GPUS
from sluice_contract.config.model_shape import ModelShape, kv_values
from sluice_contract.config.packing import Packing, rank_counts, rank_sizes, widest_part
from sluice_contract.config.sizing import PlannedConfig, ResolvedConfig

from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.layers.attention_torch import GPU_SPAN_BYTES, MASK_BYTES
from sluice_runtime.model.families.family import Family
from sluice_runtime.model.families.registry import family_of
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.scheduler.kv_allocator import pages_for

MIB: Final = 1 << 20
_NORM_VALUES: Final = 10
"""Memory of a norm in float32 for each value of the hidden size, in 2-byte values; taken from a
memory trace."""
_WEIGHTS_SHARE: Final = 0.9
"""Largest fraction of the memory for weights and pool that weights may take with recommended
ranks."""
SMALLEST_CHUNK: Final = 256
SMALLEST_CONTEXT: Final = 1024
"""Minimum context length that is recommended."""


@dataclass(frozen=True)
class DeviceBytes:
    """Memory of one GPU, and how much of it is still available."""

    total: int
    available: int


@dataclass(frozen=True)
class ModelBytes:
    """Memory in bytes that one of `ranks` ranks takes for a model."""

    spec: ModelSpec
    itemsize: int
    """Size of a value of weights and activations."""
    ranks: int = 1
    draft: ModelBytes | None = None
    """Memory of the draft model."""
    other_values: int = 0
    """Number of weight values besides those of the decoder, such as those of a draft head."""
    kv_itemsize: int | None = None
    """Size of a value of keys and values; None: `itemsize`."""
    packed: bool = False
    """Whether quantised matrices stay packed, where the model has a packing."""

    @property
    def weights(self) -> int:
        return self._own_weights + (self.draft.weights if self.draft else 0)

    @property
    def _own_weights(self) -> int:
        spec, ranks, experts = self.spec, self.ranks, self._part.experts
        values = spec.layers * self._family.bias_values(spec, ranks) + self.other_values
        if experts is not None:  # routers too
            own = experts.count * spec.hidden_size
            own += self._family.expert_bias_values(spec, experts)
            values += len(experts.layers) * own
        norms = spec.layers * self._family.norm_values(spec, ranks) + spec.hidden_size
        norm_dtype = self._family.norm_dtype
        norm_itemsize = norm_dtype.itemsize if norm_dtype else self.itemsize
        matrices = rank_sizes(spec, self.packing, ranks)
        values += matrices.values
        return matrices.packed_bytes + values * self.itemsize + norms * norm_itemsize

    @property
    def packing(self) -> Packing | None:
        """Packing of matrices; None: all have `itemsize`."""
        return self.spec.packing if self.packed else None

    @property
    def _part(self) -> ModelShape:
        """Sizes of each layer's part on the rank that has most."""
        return widest_part(self.spec, self.packing, self.ranks)

    @property
    def _family(self) -> Family:
        return family_of(self.spec)

    @property
    def token(self) -> int:
        """Size of keys and values of one token."""
        spec = self.spec
        itemsize = self.kv_itemsize or self.itemsize
        own = kv_values(spec.layers, spec.rank_kv_heads(self.ranks), spec.head_dim)
        return own * itemsize + (self.draft.token if self.draft else 0)

    def step(self, tokens: int, rows: int) -> int:
        """Upper bound for a step that computes `tokens` and samples `rows`: what the widest part of
        a layer holds at once besides the residual stream, then logits and sampling."""
        spec, part = self.spec, self._part
        feed_forward = 4 * part.intermediate_size + 3 * spec.hidden_size
        if (experts := part.experts) is not None:
            # Each token once for each of its experts, and the router's float32 scores.
            hidden = spec.hidden_size
            copies = experts.active * self._family.expert_step_values(hidden, experts.width)
            chosen = 4 * experts.count + 16 * experts.active
            feed_forward = max(feed_forward, copies + chosen + 4 * hidden)
        heads = part.heads + 2 * part.kv_heads
        attention = 3 * heads * spec.head_dim + 3 * spec.hidden_size
        # A norm that is not one fused kernel computes in float32.
        norm = _NORM_VALUES * spec.hidden_size
        widest = max(feed_forward, attention, norm)
        sampling = sampling_bytes(rows, spec.vocabulary_size, spec.context_length_tokens)
        return tokens * widest * self.itemsize + sampling

    def gathered(self, context_tokens: int) -> int:
        """Upper bound in bytes where attention gathers a layer's keys and values, as plain torch
        does. It covers one context or decode rows, and masks of layers with and without a window.
        The measured step is a first chunk, which needs none of this."""
        spec, stored = self.spec, self.kv_itemsize or self.itemsize
        token_values = 2 * spec.rank_kv_heads(self.ranks) * spec.head_dim
        tokens = max(context_tokens, GPU_SPAN_BYTES // (token_values * stored))
        values = tokens * token_values
        most = self._family.gathered_values(values, spec.head_dim) * self.itemsize
        if self.kv_itemsize is not None:  # cast in float32: keys, then values
            most = max(most, values * (stored + self.itemsize + 4))
        own = most + 4 * MASK_BYTES
        return max(own, self.draft.gathered(context_tokens) if self.draft else 0)

    def over(self, ranks: int) -> ModelBytes:
        """The model divided over another number of ranks."""
        return replace(self, ranks=ranks, draft=self.draft and self.draft.over(ranks))

    def wider(self) -> Iterator[ModelBytes]:
        """The model over more ranks, as far as its layers can be divided."""
        ranks, counts = self.ranks, rank_counts(self.spec, self.packing)
        while (ranks := 2 * ranks) <= MACHINE_GPUS:
            if ranks in counts:
                yield self.over(ranks)


@dataclass(frozen=True)
class PoolQuestion:
    """Inputs for the KV pool's size on one GPU, once the weights are loaded."""

    config: ResolvedConfig
    model: ModelBytes
    context_tokens: int
    device: DeviceBytes
    step: int
    """Bytes of a full step whose prompts start at their first token."""
    gathers: bool = False
    """Whether attention gathers keys and values: see `ModelBytes.gathered`."""

    @property
    def least_reserved(self) -> int:
        """Bytes of a full step, even in a long context, of the CUDA graphs and of a fixed part."""
        graphs = self.config.cuda_graph_max_batch * GRAPH_ROW_MIB
        gathered = self.model.gathered(self.context_tokens) if self.gathers else 0
        return self.step + gathered + (graphs + FIXED_MIB) * MIB

    @property
    def reserved(self) -> int:
        """Bytes kept free: what memoryPercent leaves, or more where that is too little."""
        left = self.device.total - memory_share(self.device.total, self.config)
        return max(left, self.least_reserved)

    @property
    def affordable_tokens(self) -> int:
        return max(0, self.device.available - self.reserved) // self.model.token

    @property
    def fits(self) -> bool:
        """Whether the pool holds one full context, so that every valid request fits an empty
        pool."""
        return self.affordable_tokens >= self.context_tokens


def step_tokens(config: ResolvedConfig) -> int:
    """Most tokens of one step: a chunk, or maxPrefillTokens without chunks, or one each row."""
    prompts = config.max_prefill_tokens if config.chunk_size == -1 else config.chunk_size
    return max(prompts, config.max_running_requests)


def memory_share(total_bytes: int, config: PlannedConfig) -> int:
    """The bytes of a GPU's memory that weights and KV pool may take."""
    return total_bytes * config.memory_percent // 100


def mib(size: float) -> str:
    return f"{int(size) >> 20} MiB"


def check_weights(model: ModelBytes, config: PlannedConfig, device: DeviceBytes) -> None:
    """Checks that the weights fit, before they are read.

    Raises:
        OutOfMemoryError: names the bytes, and what would fit.
    """
    share = memory_share(device.total, config)
    if model.weights < share:
        return
    wider = next((m.ranks for m in model.wider() if m.weights < _WEIGHTS_SHARE * share), None)
    ranks = f"raise tensorParallelSize (accelerator.count) to {wider}, or " if wider else ""
    how = "packed as" if model.packing else "dequantised from"
    stored = f", {how} {model.spec.quantised}," if model.spec.quantised else ""
    raise OutOfMemoryError(
        f"model weights{stored} want {mib(model.weights)} of each GPU, and memoryPercent "
        f"{config.memory_percent} of its {mib(device.total)} is {mib(share)}; {ranks}take GPUs "
        f"with more than {mib(model.weights * 100 / config.memory_percent)}"
    )


def planned_pool_tokens(config: PlannedConfig, model: ModelBytes, total_bytes: int) -> int:
    """Tokens that the KV pool will hold, estimated before a step is measured: as configured, else
    from what the weights leave of memoryPercent of a GPU. Every rank gets the same result."""
    if config.kv_pool_tokens is not None:
        return config.kv_pool_tokens
    return max(0, memory_share(total_bytes, config) - model.weights) // model.token


def device_pool_pages(question: PoolQuestion) -> int:
    """Pages of the KV pool: as configured, else what the reserved memory leaves, but no more than
    maxRunningRequests full contexts can use.

    Raises:
        OutOfMemoryError: names phase, bytes wanted and available, and the settings to change.
    """
    config, page_size = question.config, question.config.page_size
    if config.kv_pool_tokens is not None:
        return _configured_pages(question, config.kv_pool_tokens, page_size)
    if not question.fits:
        context, device = question.context_tokens, question.device
        raise OutOfMemoryError(
            f"KV pool allocation: a context of {context} tokens needs "
            f"{mib(context * question.model.token)}; of the {mib(device.total)} of a GPU "
            f"{mib(device.available)} are available, of which {mib(question.reserved)} are kept "
            f"free (memoryPercent {config.memory_percent}; a full step needs "
            f"{mib(question.least_reserved)}); {advice(question)}"
        )
    useful = config.max_running_requests * question.context_tokens
    return min(question.affordable_tokens, pages_for(useful, page_size) * page_size) // page_size


def _configured_pages(question: PoolQuestion, tokens: int, page_size: int) -> int:
    token_bytes = question.model.token
    left = question.device.available - question.least_reserved
    if tokens * token_bytes > left:
        raise OutOfMemoryError(
            f"kvPoolTokens: {tokens} is not allowed; allowed: at most "
            f"{max(0, left) // token_bytes // page_size * page_size}: KV pool allocation needs "
            f"{tokens} tokens of {token_bytes} bytes, and {mib(question.device.available)} are "
            f"available, of which a full step needs {mib(question.least_reserved)}"
        )
    return tokens // page_size


def advice(question: PoolQuestion) -> str:
    """`lower A to 1 or B to 2, or raise C to 3`; where nothing helps, the memory that would."""
    page = question.config.page_size
    lower, higher = [], []
    if (context := question.affordable_tokens // page * page) >= SMALLEST_CONTEXT:
        lower.append(f"contextLength to {context}")
    if chunk := next((n for n in _chunks(question.config) if _with_chunk(question, n).fits), None):
        lower.append(f"chunkSize to {chunk}")
    if (percent := _largest_percent(question)) and _with_percent(question, percent).fits:
        higher.append(f"memoryPercent to {percent}")
    wider = (model for model in question.model.wider() if _over(question, model).fits)
    if model := next(wider, None):
        higher.append(f"tensorParallelSize (accelerator.count) to {model.ranks}")
    ways = [f"{verb} {' or '.join(w)}" for verb, w in (("lower", lower), ("raise", higher)) if w]
    return ", or ".join(ways) or f"take GPUs with {mib(_missing(question))} more"


def smaller_chunk(config: ResolvedConfig) -> int:
    """Chunk size to recommend after a step ran out of memory, when no sizes are known."""
    return next(_chunks(config), SMALLEST_CHUNK)


def _chunks(config: ResolvedConfig) -> Iterator[int]:
    """Smaller chunks, halved each time, in whole pages."""
    page, chunk = config.page_size, step_tokens(config) // 2
    while chunk >= max(SMALLEST_CHUNK, page):
        yield chunk // page * page
        chunk //= 2


def _with_chunk(question: PoolQuestion, tokens: int) -> PoolQuestion:
    """The question with another chunk size. The step's bytes shrink by the difference of the upper
    bounds."""
    config = question.config.model_copy(update={"chunk_size": tokens})
    return replace(question, config=config, step=_scaled(question, question.model, config))


def _with_percent(question: PoolQuestion, percent: int) -> PoolQuestion:
    config = question.config.model_copy(update={"memory_percent": percent})
    return replace(question, config=config)


def _over(question: PoolQuestion, model: ModelBytes) -> PoolQuestion:
    """The question with the model over more ranks."""
    available = question.device.available + question.model.weights - model.weights
    device = DeviceBytes(question.device.total, available)
    step = _scaled(question, model, question.config)
    return replace(question, model=model, device=device, step=step)


def _scaled(question: PoolQuestion, model: ModelBytes, config: ResolvedConfig) -> int:
    rows = config.max_running_requests
    before = question.model.step(step_tokens(question.config), rows)
    return question.step * model.step(step_tokens(config), rows) // before


def _largest_percent(question: PoolQuestion) -> int | None:
    """Largest memoryPercent that leaves room for a full step; None if it is not above the present
    one."""
    percent = int((1 - question.least_reserved / question.device.total) * 100)
    return percent if percent > question.config.memory_percent else None


def _missing(question: PoolQuestion) -> int:
    needed = question.reserved + question.context_tokens * question.model.token
    return needed - question.device.available + MIB
