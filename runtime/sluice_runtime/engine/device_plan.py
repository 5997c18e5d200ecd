"""Whether a model fits a GPU, and how many pages its KV pool has. Pure.

Every refusal says what was wanted, what there is, and which setting to change to which number.
"""

from __future__ import annotations

from typing import Final

from sluice_contract.config.engine import EngineConfig

from sluice_runtime.engine.device_advice import advice
from sluice_runtime.engine.device_sizes import (
    DeviceBytes,
    ModelBytes,
    PoolQuestion,
    fraction_of,
    mib,
)
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.scheduler.pages import pages_for

_WEIGHTS_SHARE: Final = 0.9
"""Of a GPU's share for weights and pool; more ranks are recommended where weights take less."""


def check_weights(model: ModelBytes, config: EngineConfig, device: DeviceBytes) -> None:
    """Whether the weights fit, before they are read.

    Raises:
        OutOfMemoryError: names the bytes, and what would fit.
    """
    fraction = fraction_of(config)
    share = int(device.total * fraction)
    if model.weights < share:
        return
    wider = next((m.ranks for m in model.wider() if m.weights < _WEIGHTS_SHARE * share), None)
    ranks = f"raise tensorParallelSize (accelerator.count) to {wider}, or " if wider else ""
    raise OutOfMemoryError(
        f"model weights want {mib(model.weights)} of each GPU, and memoryFraction {fraction} of "
        f"its {mib(device.total)} is {mib(share)}; {ranks}take GPUs with more than "
        f"{mib(model.weights / fraction)}"
    )


def planned_pool_tokens(config: EngineConfig, model: ModelBytes, total_bytes: int) -> int:
    """About as many as the KV pool has, before a step was measured: as configured, else what the
    weights leave of memoryFraction of a GPU. Depends on nothing that differs between ranks."""
    if config.kv_pool_tokens is not None:
        return config.kv_pool_tokens
    if not model.token:  # more ranks than key heads: refused where the model is read
        return 0
    return max(0, int(total_bytes * fraction_of(config)) - model.weights) // model.token


def device_pool_pages(question: PoolQuestion) -> int:
    """Pages of the KV pool: as configured, else what the reserved memory leaves, but no more than
    maxRunningRequests full contexts can use.

    Raises:
        OutOfMemoryError: names phase, bytes wanted and available, and the settings to change.
    """
    config, page_size = question.config, question.config.page_size or 1
    if config.kv_pool_tokens is not None:
        return _configured_pages(question, config.kv_pool_tokens, page_size)
    if not question.fits:
        context, device = question.context_tokens, question.device
        raise OutOfMemoryError(
            f"KV pool allocation: a context of {context} tokens wants "
            f"{mib(context * question.model.token)}; of the {mib(device.total)} of a GPU "
            f"{mib(device.available)} are available, of which {mib(question.reserved)} are kept "
            f"free (memoryFraction {fraction_of(config)}; a full step wants "
            f"{mib(question.least_reserved)}); {advice(question)}"
        )
    useful = (config.max_running_requests or 1) * question.context_tokens
    return min(question.affordable_tokens, pages_for(useful, page_size) * page_size) // page_size


def _configured_pages(question: PoolQuestion, tokens: int, page_size: int) -> int:
    each, left = question.model.token, question.device.available - question.least_reserved
    if tokens * each > left:
        raise OutOfMemoryError(
            f"kvPoolTokens: {tokens} is not allowed; allowed: at most "
            f"{max(0, left) // each // page_size * page_size}: KV pool allocation wants {tokens} "
            f"tokens of {each} bytes, and {mib(question.device.available)} are available, of "
            f"which a full step wants {mib(question.least_reserved)}"
        )
    return tokens // page_size
