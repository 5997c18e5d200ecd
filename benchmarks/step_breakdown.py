"""Where a step's time goes, and how far a run is from the limits of the machine.

The profiler splits a step into matrix products, attention (rotation and storing with it), other
operators, waiting where the shards of a layer meet, and the rest: Python. Times are those of the
thread that runs the loop and computes one of the shards. Threads inside one operator wait for each
other in that operator's time. Limits are measured by this process, in the same run: the best rate
of a large bfloat16 product, and of reading memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Final

import torch
from sluice_runtime.layers.dense import linear
from sluice_runtime.model.spec import ModelSpec
from torch.profiler import ProfilerActivity, profile

PRODUCTS: Final = ("_linear_pointwise", "addmm", "aten::mm", "linear")
ATTENTION: Final = (
    "sluice::attend", "paged_attention", "rotate_and_store", "scaled_dot_product", "index_select",
    "roll", "addcmul",
)  # fmt: skip
WAITING: Final = ("sluice::wait",)
KINDS: Final = {"products": PRODUCTS, "attention": ATTENTION, "waiting": WAITING}


@dataclass(frozen=True)
class Breakdown:
    """Milliseconds of one step, by kind of work."""

    products: float
    attention: float
    operators: float
    waiting: float
    python: float

    @property
    def whole(self) -> float:
        return float(sum(asdict(self).values()))


def breakdown(step: Callable[[], object], steps: int) -> Breakdown:
    """The mean of `steps` calls of `step` under the profiler."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        whole = time.perf_counter() - began
    spent = dict.fromkeys((*KINDS, "operators"), 0.0)
    for event in profiled.key_averages():
        spent[_kind(event.key)] += event.self_cpu_time_total / 1000 / steps
    return Breakdown(**spent, python=max(0.0, 1000 * whole / steps - sum(spent.values())))


def _kind(operator: str) -> str:
    for kind, names in KINDS.items():
        if any(name in operator for name in names):
            return kind
    return "operators"


@torch.inference_mode()
def product_rate(spec: ModelSpec) -> float:
    """FLOP/s of the model's widest product in bfloat16, at a size where the weights are free."""
    rows, width, out = 2048, spec.hidden_size, 2 * spec.intermediate_size
    multiply, x = linear(torch.randn(out, width).bfloat16()), torch.randn(rows, width).bfloat16()
    return 2.0 * rows * width * out / _best_seconds(lambda: multiply(x))


def read_rate(size_bytes: int) -> float:
    """Bytes/s of reading `size_bytes` again and again: those of one step's weights, keys and
    values, for example."""
    numbers = torch.ones(size_bytes // 4)
    return size_bytes / _best_seconds(numbers.sum)


def _best_seconds(call: Callable[[], object], times: int = 10) -> float:
    seconds: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@dataclass(frozen=True)
class Work:
    """The least that any engine must compute and read for a workload."""

    flops: float
    read_bytes: float


def least_work(spec: ModelSpec, prompts: Iterable[int], answers: Iterable[int]) -> Work:
    """Least work of a workload whose requests all decode together: every step reads the weights
    once, and each row its past."""
    prompts, answers = list(prompts), list(answers)
    qkv = spec.hidden_size * (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    layer = (
        qkv
        + spec.hidden_size * spec.heads * spec.head_dim
        + 3 * spec.hidden_size * spec.intermediate_size
    )
    body, head = spec.layers * layer, spec.hidden_size * spec.vocabulary_size
    tokens = sum(prompts) + sum(answers)
    # The past of token p has p tokens. Each query head multiplies their keys and values.
    past = sum((p + a) ** 2 / 2 for p, a in zip(prompts, answers, strict=True))
    decoded_past = sum((p + a / 2) * a for p, a in zip(prompts, answers, strict=True))
    number_bytes = 2
    attention = 4.0 * spec.layers * spec.heads * spec.head_dim * past
    kv_bytes = 2.0 * spec.layers * spec.kv_heads * spec.head_dim * number_bytes
    return Work(
        flops=2.0 * (tokens * body + sum(answers) * head) + attention,
        read_bytes=max(answers) * (body + head) * number_bytes + decoded_past * kv_bytes,
    )
