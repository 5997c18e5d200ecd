"""A row whose pages were computed by another engine decodes as that engine would have."""

from __future__ import annotations

import pytest
import torch
from sluice_runtime.engine.build import Engine, EngineHooks, build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.scheduler.batch import ForwardMode
from sluice_runtime.wire.messages import Generate, Sampling

from tests.runtime.harness import engine_config, generate

PAGE_TOKENS = 16
TOKENS = 20


@pytest.mark.parametrize("prompt_tokens", [5, 16, 40])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=1.0, seed=7, presence_penalty=0.5, frequency_penalty=0.5),
    ],
    ids=["greedy", "penalised"],
)
def test_it_decodes_without_a_forward_before(prompt_tokens: int, sampling: Sampling) -> None:
    prompt = [(7 * place) % 250 for place in range(prompt_tokens)]
    asked = generate("a", prompt, TOKENS, sampling=sampling)
    first, second = engine_of(), engine_of()
    expected, pages = prefilled_and_answered(first, asked)

    second.scheduler.add_remote(asked)
    (room,) = second.scheduler.next_preallocations(0.0)
    data = second.runner._pool.data
    data[list(room.page_ids)] = pages
    second.scheduler.resume("a", (expected[0], None, None), 0, 0.0)
    answer, modes = finished(second, expected[:1])
    assert answer == expected
    assert modes == {ForwardMode.DECODE}
    second.scheduler.check_integrity()


def prefilled_and_answered(engine: Engine, asked: Generate) -> tuple[list[int], torch.Tensor]:
    """The answer, and the pages of the prompt as they were after it had been computed."""
    scheduler = engine.scheduler
    scheduler.add(asked)
    batch = scheduler.next_batch(0.0)
    assert batch is not None
    (delta,) = scheduler.process(batch, engine.runner.forward(batch), 0.0).deltas
    (appended,) = batch.appended_pages
    pages = engine.runner._pool.data[list(appended.page_ids)].clone()
    return finished(engine, list(delta.token_ids))[0], pages


def finished(engine: Engine, answer: list[int]) -> tuple[list[int], set[ForwardMode]]:
    """`answer` and what follows it, and the modes of the steps that computed it."""
    answer, modes = list(answer), set()
    told = len(engine.scheduler._deltas)
    while batch := engine.scheduler.next_batch(0.0):
        modes.add(batch.mode)
        deltas = engine.scheduler.process(batch, engine.runner.forward(batch), 0.0).deltas[told:]
        answer += [token for delta in deltas for token in delta.token_ids]
        told = 0
    return answer, modes


def engine_of() -> Engine:
    config = resolved(
        engine_config("dummy://qwen3-tiny", page_size=PAGE_TOKENS, prefix_cache=False)
    )
    return build_engine(config, resolve(config.model.uri), EngineHooks(poison_freed_pages=True))
