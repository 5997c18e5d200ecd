"""Which settings would make a model fit a GPU, each changed alone, and to which number. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sluice_contract.config.engine import EngineConfig

from sluice_runtime.engine.device_sizes import (
    MIB,
    DeviceBytes,
    ModelBytes,
    PoolQuestion,
    fraction_of,
    mib,
    step_tokens,
)

SMALLEST_CHUNK: Final = 256
SMALLEST_CONTEXT: Final = 1024
"""Smaller ones are never recommended."""


def advice(question: PoolQuestion) -> str:
    """`lower A to 1 or B to 2, or raise C to 3`; where nothing helps, the memory that would."""
    page = question.config.page_size or 1
    lower, higher = [], []
    if (context := question.affordable_tokens // page * page) >= SMALLEST_CONTEXT:
        lower.append(f"contextLength to {context}")
    if chunk := next((n for n in _chunks(question.config) if _with_chunk(question, n).fits), None):
        lower.append(f"chunkSize to {chunk}")
    if (fraction := _largest_fraction(question)) and _with_fraction(question, fraction).fits:
        higher.append(f"memoryFraction to {fraction}")
    wider = (model for model in question.model.wider() if _over(question, model).fits)
    if model := next(wider, None):
        higher.append(f"tensorParallelSize (accelerator.count) to {model.ranks}")
    ways = [f"{verb} {' or '.join(w)}" for verb, w in (("lower", lower), ("raise", higher)) if w]
    return ", or ".join(ways) or f"take GPUs with {mib(_missing(question))} more"


def smaller_chunk(config: EngineConfig) -> int:
    """To be recommended where nothing is known but that a step did not fit."""
    return next(_chunks(config), SMALLEST_CHUNK)


def _chunks(config: EngineConfig) -> Iterator[int]:
    """Smaller chunks, halved each time, in whole pages."""
    page, chunk = config.page_size or 1, step_tokens(config) // 2
    while chunk >= max(SMALLEST_CHUNK, page):
        yield chunk // page * page
        chunk //= 2


def _with_chunk(question: PoolQuestion, tokens: int) -> PoolQuestion:
    """A step takes as much less as the upper bounds say."""
    config = question.config.model_copy(update={"chunk_size": tokens})
    return replace(question, config=config, step=_scaled(question, question.model, config))


def _with_fraction(question: PoolQuestion, fraction: float) -> PoolQuestion:
    config = question.config.model_copy(update={"memory_fraction": fraction})
    return replace(question, config=config)


def _over(question: PoolQuestion, model: ModelBytes) -> PoolQuestion:
    """With the same model over more ranks."""
    available = question.device.available + question.model.weights - model.weights
    device = DeviceBytes(question.device.total, available)
    step = _scaled(question, model, question.config)
    return replace(question, model=model, device=device, step=step)


def _scaled(question: PoolQuestion, model: ModelBytes, config: EngineConfig) -> int:
    rows = config.max_running_requests or 1
    before = question.model.step(step_tokens(question.config), rows)
    return question.step * model.step(step_tokens(config), rows) // before


def _largest_fraction(question: PoolQuestion) -> float | None:
    """What a full step leaves, in hundredths; None if it is no more than the present one."""
    share = int((1 - question.least_reserved / question.device.total) * 100) / 100
    return share if share > fraction_of(question.config) else None


def _missing(question: PoolQuestion) -> int:
    wanted = question.reserved + question.context_tokens * question.model.token
    return wanted - question.device.available + MIB
