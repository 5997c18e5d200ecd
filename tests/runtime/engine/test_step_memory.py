"""A step that finds no memory ends its own requests, by name; the engine and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from sluice_runtime.engine.build import Engine, EngineHooks
from sluice_runtime.engine.device import Device, HostDevice
from sluice_runtime.engine.sampling.draw import SamplingTable
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.wire.messages import Generate, TokenDelta

from tests.pairwise import matrix
from tests.runtime.engine.late_device import LateDevice
from tests.runtime.grammar.driving import Answers, engine_of, grammar, run
from tests.runtime.harness import generate

SHORT = [generate(f"short {n}", [5, 6, 7, n], 24, credit_tokens=64) for n in range(3)]
LONG = generate("long", range(200), 8, logprobs=2, prompt_logprobs=1)
LATE = generate("late", [9, 8, 7], 6)


@dataclass(frozen=True)
class Way:
    """How steps follow each other."""

    overlap: bool
    device: Callable[[], Device]

    def hooks(self) -> EngineHooks:
        return EngineHooks(poison_freed_pages=True, device=self.device())


WAYS = {
    "in turn": Way(overlap=False, device=HostDevice),
    "overlapped": Way(overlap=True, device=HostDevice),
    "launched ahead": Way(overlap=True, device=LateDevice),
}


def cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def cpu() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def interpreter() -> None:
    raise MemoryError


def without_memory_for(
    patch: pytest.MonkeyPatch, token: int, fails: Callable[[], None] = interpreter
) -> None:
    """Steps that read this token find none."""
    hidden = Decoder.hidden

    def or_fails(model: Decoder, token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        if token in token_ids:
            fails()
        return hidden(model, token_ids, *rest)

    patch.setattr(Decoder, "hidden", or_fails)


def error_of(answers: Answers, name: str) -> str:
    end: TokenDelta = answers.ends[name]
    assert (end.finish_reason, end.refusal) == ("error", "out_of_memory")
    return end.error or ""


def assert_nothing_is_held(engine: Engine) -> None:
    engine.scheduler.check_integrity()
    status = engine.scheduler.status()
    assert (status.running_requests, status.queued_requests) == (0, 0)
    assert status.pages_available == status.pages_total


@pytest.mark.parametrize(
    ("fails", "token", "way"),
    matrix([cuda, cpu, interpreter], [150, 199], WAYS, others=pytest.mark.full),
)
def test_the_requests_of_the_step_end_and_others_are_answered_as_ever(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[], None], token: int, way: str
) -> None:
    """The forward of a chunk fails, or that of the last one."""
    overlap, hooks = WAYS[way].overlap, WAYS[way].hooks()
    with engine_of(hooks, chunk_size=64, mixed_chunk=False) as engine:
        alone = run(engine, [*SHORT, LATE]).tokens
        without_memory_for(monkeypatch, token, fails)
        answers = run(engine, [*SHORT, LONG], overlap=overlap)
        answers.tokens |= run(engine, [LATE], overlap=overlap).tokens
        assert_nothing_is_held(engine)
    error = error_of(answers, "long")
    assert "EXTEND step" in error
    assert "lower chunkSize, maxRunningRequests or kvPoolTokens" in error
    assert "\n" not in error
    assert {name: answers.tokens[name] for name in alone} == alone


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("part", ["apply", "sample"])
def test_a_step_that_fails_while_it_samples_ends_all_that_it_mixed(
    monkeypatch: pytest.MonkeyPatch, part: str, way: Way
) -> None:
    """Also a row that follows a grammar and is in a step launched ahead already."""
    requests: list[Generate] = [
        *SHORT[:2],
        generate("with grammar", [1, 2, 3], 60, grammar=grammar("regex", "[ab]{50}")),
        LONG,
    ]
    overlap, original = way.overlap, getattr(SamplingTable, part)
    calls = 0

    def fails_once(table: SamplingTable, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise MemoryError
        return original(table, *arguments)

    settings = {"chunk_size": 64, "mixed_chunk": True}
    with engine_of(way.hooks(), **settings) as engine:
        alone = run(engine, [LATE]).tokens
        monkeypatch.setattr(SamplingTable, part, fails_once)
        answers = run(engine, requests, overlap=overlap)
        late = run(engine, [LATE], overlap=overlap).tokens
        assert_nothing_is_held(engine)
    failed = [name for name, end in answers.ends.items() if end.finish_reason == "error"]
    assert failed
    assert all("step needs" in error_of(answers, name) for name in failed)
    assert set(answers.ends) == {request.request_id for request in requests}
    assert late == alone
