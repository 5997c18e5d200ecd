"""Engines on this machine's GPU with random weights of published shapes, prepared as in production.

The weights are made where they are used: nothing is read from a disk, so a benchmark begins in
seconds. Benchmarks of scheduler settings compare these on one engine (`under`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.sizing import PlannedConfig, ResolvedConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.prepare import prepare
from sluice_runtime.engine.sizing.plan import resolved, scheduler_settings
from sluice_runtime.model.files import ModelFiles
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_simulator.percentiles import Spread, spread
from sluice_simulator.record import Record
from sluice_simulator.traces.request import TraceRequest

from benchmarks.gpu.limits import beside
from benchmarks.turns import SCALE, report

# From the config.json of Qwen/Qwen3-0.6B, meta-llama/Meta-Llama-3-8B and openai/gpt-oss-20b. The
# context of the second is that of 3.1, so that a prompt of 100,000 tokens fits. The third is not
# quantised.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151_936,
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
    },
    "llama3-8b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256,
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201_088,
        "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 15e4,
        "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4,
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
    },
}  # fmt: skip


DEFAULTS: dict[str, Any] = {"prefix_cache": False}
"""Settings of all engines. No prefix cache, because no prompt repeats another one or its
beginning."""


def accelerator() -> dict[str, Any]:
    """This machine's first GPU, as engine.json has it."""
    found = torch.cuda.get_device_properties(0)
    product = str(found.name).replace(" ", "-")
    return {"product": product, "memory_mib": found.total_memory >> 20, "count": 1}


def configured(shape: str, **settings: Any) -> PlannedConfig:
    """The configuration of a model with the sizes of the accelerator table, except for
    `settings`."""
    given = {
        "model": {"uri": f"random://{shape}"},
        "accelerator": accelerator(),
        **DEFAULTS,
        **settings,
    }
    return resolved(EngineConfig.model_validate(given))


@contextmanager
def engine(shape: str, **settings: Any) -> Iterator[Engine]:
    """An engine of `configured`, ready to serve; its memory is free again afterwards.

    Raises:
        RuntimeError: flashinfer does not compute it, or no step was computed by a CUDA graph,
            except where `settings` have torch.
    """
    config = configured(shape, **settings)
    plain = config.attention_backend == "torch"
    files = ModelFiles(config.model.uri, None, SHAPES[shape], {})
    made = build_engine(config, files)
    with closing(made.grammar_compiler):
        prepare(config, made)
        if made.model.backend.graph_wrappers is None and not plain:
            raise RuntimeError(f"{made.model.backend.name} computes, not flashinfer")
        yield made
        if not made.runner.graph_steps and not plain:
            raise RuntimeError("no step was computed by a CUDA graph")


def under(made: Engine, shape: str, **settings: Any) -> Engine:
    """`made` with the scheduler of other settings, once its requests have ended. Rows and chunk may
    be no larger than those that it was made for."""
    config = configured(shape, **settings)
    assert isinstance(config, ResolvedConfig), "settings without maxRunningRequests"
    context = made.settings.limits.context_length_tokens
    scheduling = scheduler_settings(config, context, made.pool.pages)
    scheduler = Scheduler(scheduling, PageAllocator(made.pool.pages))
    return replace(made, settings=scheduling, scheduler=scheduler)


def told(figure: str, value: float, unit: str, **more: object) -> None:
    """Reports a figure as one line, with the device's limit and what others reach where that is
    known."""
    device = torch.cuda.get_device_name(0)
    known = beside(figure, device) if SCALE == 1 else {}
    report(figure, value, unit=unit, **{**known, **more})


def output_rate(record: Record) -> float:
    """Tokens a second, from the first arrival to the last token."""
    return sum(line.tokens for line in record.timelines) / record.ended_seconds


def first_tokens(record: Record) -> Spread:
    """Times to the first token, in seconds from arrival."""
    return spread(
        [
            line.first_token_seconds - line.request.arrival_seconds
            for line in record.timelines
            if line.first_token_seconds is not None
        ]
    )


def gaps(record: Record) -> Spread:
    """Gaps in seconds between tokens."""
    return spread(record.gaps.values, record.gaps.counts)


def check_served(record: Record) -> None:
    """Raises if a request failed: a rate without it would mean nothing."""
    failed = [line.error for line in record.timelines if line.error]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first one: {failed[0]}")


def at_once(lengths: Sequence[tuple[int, int]]) -> list[TraceRequest]:
    """Requests of (prompt, answer) tokens that are all there at the beginning."""
    return [TraceRequest(0.0, prompt, answer) for prompt, answer in lengths]
