"""Runs an engine's loop in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sluice_runtime.engine.build import Engine, EngineHooks, build_engine
from sluice_runtime.engine.loop import Clock, EngineLoop, Pipeline
from sluice_runtime.engine.report import StepLog
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import (
    Generate,
    Grammar,
    GrammarKind,
    Sampling,
    StepResult,
    ToApi,
    ToEngine,
    TokenDelta,
)

from tests.runtime.harness import engine_config

MODEL = "dummy://qwen3-tiny"
EOS = 258
MAX_TURNS = 20_000


@dataclass
class Answers:
    """The engine's end of a link, and what came over it."""

    coming: list[ToEngine] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, TokenDelta] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """Request ids as they ended."""

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        coming, self.coming = self.coming, []
        if not coming:
            time.sleep(min(timeout_seconds, 0.005))  # as a socket that a compiled grammar wakes
        return coming

    def send(self, message: ToApi) -> None:
        if not isinstance(message, StepResult):
            return
        for delta in message.deltas:
            self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                assert delta.request_id not in self.ends
                self.ends[delta.request_id] = delta
                self.order.append(delta.request_id)

    def text(self, request_id: str) -> str:
        return bytes(t for t in self.tokens[request_id] if t < 256).decode(errors="replace")


def grammar(kind: GrammarKind, text: str) -> Grammar:
    return Grammar(kind, text, [EOS], "response_format")


def ask(name: str, wanted: Grammar | None, max_tokens: int = 400, **fields: Any) -> Generate:
    sampling = fields.pop("sampling", Sampling(temperature=1.0, seed=len(name)))
    prompt = list(f"Answer {name}: ".encode())
    return Generate(
        name,
        prompt,
        max_tokens,
        sampling,
        stop_token_ids=[EOS],
        credit_tokens=1 << 30,
        grammar=wanted,
        **fields,
    )


@contextmanager
def engine_of(hooks: EngineHooks | None = None, **settings: Any) -> Iterator[Engine]:
    """A small engine on random weights; what compiles its grammars ends with it."""
    config = resolved(engine_config(MODEL, **settings))
    hooks = hooks or EngineHooks(poison_freed_pages=True)
    engine = build_engine(config, resolve(config.model.uri), hooks)
    try:
        yield engine
    finally:
        engine.grammar_compiler.close()


def run(
    engine: Engine,
    requests: Sequence[ToEngine],
    until: int | None = None,
    *,
    overlap: bool = False,
) -> Answers:
    """Turns of the loop until all requests, or `until` of them, have ended.

    Each look at the clock is a millisecond after the last: what a step costs, and so what is
    drafted in it, is no matter of this machine's speed.
    """
    answers = Answers(coming=list(requests))
    page_size = engine.settings.page_size
    wanted = until or sum(isinstance(request, Generate) for request in requests)
    with closing(engine.executor(overlap=overlap)) as executor:
        loop = EngineLoop(
            answers,
            Pipeline(engine.grammars, engine.scheduler, executor),
            lambda pace: StepLog(page_size, pace),
            clock=Clock(monotonic=map((0.001).__mul__, count()).__next__),
        )
        for _ in range(MAX_TURNS):
            loop.step()
            if len(answers.ends) >= wanted:
                while loop._pending:  # else its pages would be in use for the tests that follow
                    loop._finish(loop._pending.popleft())
                return answers
    raise AssertionError("requests are still running")
