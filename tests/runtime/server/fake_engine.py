"""An engine without a model: speaks `messages` over the real link and answers with an echo.

The answer to a prompt is the prompt again, token by token, then `<eos>`. Run as a program it is an
engine process for the supervisor's tests.
"""

from __future__ import annotations

import argparse
import subprocess
import threading
import time
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import msgspec
from sluice_contract.wire.load import EngineFigures, HandoverQueues, StepCosts, StepShapes
from sluice_runtime.engine.loop import HEARTBEAT_SECONDS
from sluice_runtime.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Adapters,
    Credit,
    Drain,
    EngineFailed,
    EngineReady,
    FinishReason,
    FlushCache,
    Generate,
    Heartbeat,
    HostCacheLoad,
    Load,
    LoadedAdapter,
    PlainTokens,
    Refusal,
    RoleTaken,
    StepResult,
    TakeRole,
    ToApi,
    ToEngine,
    TokenDelta,
    TokenLogprob,
)
from sluice_runtime.wire.transport import EngineLink

EOS = 258
CONTEXT_TOKENS = 512
POOL_TOKENS = 1024
PAGE_TOKENS = 16
MOST_RUNNING = 4
MOST_QUEUED = 8
QUEUE_SECONDS = 0.25
"""What the engine says that every request waited."""
ADAPTER, ADAPTER_KEY = "poems", "poems@01"
READY = EngineReady(
    protocol_version=PROTOCOL_VERSION,
    epoch="e1",
    context_length_tokens=CONTEXT_TOKENS,
    kv_pool_tokens=POOL_TOKENS,
    page_size_tokens=PAGE_TOKENS,
    max_running_requests=MOST_RUNNING,
    max_queued_requests=MOST_QUEUED,
    vocabulary_size=259,
    kv_dtype="float32",
    adapters=Adapters([LoadedAdapter(ADAPTER, ADAPTER_KEY)]),
    start={"imports": 2.5, "weights": 7.25},
)


NO_QUEUES = HandoverQueues()


def load(running: int, queued: int = 0, queues: HandoverQueues = NO_QUEUES) -> Load:
    return Load(
        time_seconds=12.5,
        figures=EngineFigures(
            queued_requests=queued,
            queued_tokens=queued * 10,
            running_requests=running,
            kv_pages_total=POOL_TOKENS // PAGE_TOKENS,
            kv_pages_free=POOL_TOKENS // PAGE_TOKENS - running,
            queued_work_seconds=0.25,
            queues=queues,
            prefill_tokens_per_second=1500.0,
            marginal_prefill_tokens_per_second=2500.0,
            itl_seconds=0.025,
            costs=StepCosts(
                seconds=(0.01, 1e-5, 0.0, 1e-4, 0.0),
                decode=StepShapes(steps=90, mean=(1.0, 0.0, 0.0, 3.5, 700.0)),
            ),
            prompt_tokens_total=700,
            generated_tokens_total=90,
            finished_requests_total=6,
        ),
        new_token_ratio=0.7,
        retractions=2,
        chunk_cuts=3,
        evicted_pages=7,
        drafted_tokens=9,
        accepted_tokens=6,
        beta=0.4,
        average_usage=0.3,
        saved_share=0.2,
        host_cache=HostCacheLoad(
            hit_tokens={"memory": 32, "disk": 16},
            copied_bytes={"saved": 300, "loaded": 200},
            copy_seconds={"saved": 0.5, "loaded": 0.25},
            bad_pages=1,
            used_bytes={"memory": 100, "disk": 0},
        ),
        steps={"DECODE": 5},
        grammar_requests=queued,
        grammar_compilations={"limit": 2},
        grammar_compile_seconds=1.5,
        grammars_given_up={"slow": 0},
        chunk_budget_tokens=384,
        chunk_budgets={"Target": 7},
        step_error_ratio=0.125,
    )


def score_of(token: int, top: int) -> TokenLogprob:
    """Second best, after the token beside it."""
    best = [(token ^ 1, -0.25), (token, -0.5), *((other, -9.0) for other in range(20))]
    return TokenLogprob(token, -0.5, 2, best[:top])


Sent = TypeVar("Sent", bound=ToEngine)


@dataclass
class _Answer:
    generate: Generate
    cached_tokens: int
    sent: int = 0
    credit: int = field(init=False)
    """Tokens that may be sent before the reader grants more."""

    def __post_init__(self) -> None:
        self.credit = self.generate.credit_tokens

    def next_delta(self, tokens: int) -> TokenDelta:
        """The next `tokens` tokens, or those up to the end."""
        deltas = [self._next_token()]
        while len(deltas) < tokens and deltas[-1].finish_reason is None:
            deltas.append(self._next_token())
        return msgspec.structs.replace(
            deltas[0],
            token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
            finish_reason=deltas[-1].finish_reason,
            logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        )

    def _next_token(self) -> TokenDelta:
        asked = self.generate
        if asked.max_tokens == 0:
            return TokenDelta(asked.request_id, (), "length", prompt_logprobs=self._prompt_scores())
        ended = self.sent == len(asked.prompt_ids)
        token = EOS if ended else asked.prompt_ids[self.sent]
        self.sent += 1
        self.credit -= 1
        reason: FinishReason | None = None
        if token in asked.stop_token_ids:
            reason = "stop"
        elif self.sent == asked.max_tokens or ended:
            reason = "length"
        scores = (score_of(token, asked.logprobs),) if asked.logprobs >= 0 else ()
        if self.sent > 1:
            return TokenDelta(asked.request_id, (token,), reason, logprobs=scores)
        return TokenDelta(
            asked.request_id,
            (token,),
            reason,
            logprobs=scores,
            prompt_logprobs=self._prompt_scores(),
            cached_tokens=self.cached_tokens,
            queue_seconds=QUEUE_SECONDS,
        )

    def _prompt_scores(self) -> list[TokenLogprob] | None:
        top = self.generate.prompt_logprobs
        return None if top < 0 else [score_of(t, top) for t in self.generate.prompt_ids[1:]]


@dataclass
class FakeEngine:
    """Runs in a thread from `start` to `stop`. Everything it hears is in `heard`."""

    endpoint: str
    step_seconds: float = 0.0
    joined_at: int | None = None
    """Tokens of an answer's first delta, if its second one has all others."""
    paused: threading.Event = field(default_factory=threading.Event)
    """While set, requests are taken and nothing is answered."""
    queued: int = 0
    """What the next load reports say."""
    heard: list[ToEngine] = field(default_factory=list)
    refuse_with: str | None = None
    refusal: Refusal | None = None
    takes_roles: bool = True
    """Whether it takes another role at once; else it never does."""
    _answers: dict[str, _Answer] = field(default_factory=dict)
    _prompts: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    """With their salts; all of one but its last token is cached when it comes again."""
    _outbox: list[ToApi] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5)

    def say(self, message: ToApi) -> None:
        """Sends one message more, from the engine's thread."""
        self._outbox.append(message)

    @property
    def running(self) -> set[str]:
        return set(self._answers)

    def of(self, kind: type[Sent]) -> list[Sent]:
        return [message for message in list(self.heard) if isinstance(message, kind)]

    def run(self) -> None:
        link = EngineLink(self.endpoint)
        link.send(READY)
        step, beat_seconds = 0, time.monotonic()
        while not self._stopping.is_set():
            if time.monotonic() - beat_seconds >= HEARTBEAT_SECONDS:
                beat_seconds = time.monotonic()
                link.send(Heartbeat(load(len(self._answers), self.queued)))
            for message in link.poll(0.0 if self._sendable() else 0.002):
                self._receive(message)
            while self._outbox:
                link.send(self._outbox.pop(0))
            if sendable := self._sendable():
                step += 1
                link.send(self._step(step, sendable))
                time.sleep(self.step_seconds)
        link.close()

    def _sendable(self) -> list[_Answer]:
        """The answers whose next token may be sent now."""
        if self.paused.is_set():
            return []
        return [answer for answer in self._answers.values() if answer.credit > 0]

    def _receive(self, message: ToEngine) -> None:
        self.heard.append(message)
        match message:
            case Generate():
                prompt = (message.cache_salt, tuple(message.prompt_ids))
                cached_tokens = len(message.prompt_ids) - 1 if prompt in self._prompts else 0
                self._prompts.add(prompt)
                answer = _Answer(message, cached_tokens, len(message.generated_ids))
                self._answers[message.request_id] = answer
                if self.queued:
                    self.say(Heartbeat(load(0, self.queued)))
            case Abort():
                if self._answers.pop(message.request_id, None):
                    self.say(self._ended(TokenDelta(message.request_id, (), "abort")))
            case FlushCache():
                self._prompts.clear()
            case TakeRole() if self.takes_roles:
                self.say(RoleTaken(message.role, f"{READY.epoch}-{message.role}", 0))
            case Credit() if message.request_id in self._answers:
                self._answers[message.request_id].credit += message.tokens
            case Credit() | Drain() | TakeRole():
                pass

    def _ended(self, delta: TokenDelta) -> StepResult:
        return StepResult(0, "IDLE", time.monotonic(), 0.0, 0.0, [delta], load(len(self._answers)))

    def _step(self, step: int, answers: list[_Answer]) -> StepResult:
        special, plain = [], PlainTokens([], [])
        for answer in answers:
            request_id = answer.generate.request_id
            rest = CONTEXT_TOKENS if self.joined_at else 1
            delta = answer.next_delta(rest if answer.sent else self.joined_at or 1)
            if self.refuse_with:
                delta = TokenDelta(request_id, (), "error", self.refuse_with, refusal=self.refusal)
            if delta == TokenDelta(request_id, delta.token_ids[:1]):
                plain.request_ids.append(request_id)
                plain.token_ids.extend(delta.token_ids)
            else:
                special.append(delta)
            if delta.finish_reason:
                del self._answers[request_id]
        times, report = (time.monotonic(), 0.001, 0.0001), load(len(self._answers))
        return StepResult(step, "DECODE", *times, special, report, 0.5, plain)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--fail", default="")
    parser.add_argument("--orphan", action="store_true")
    options = parser.parse_args()
    if options.orphan:
        subprocess.run(["sh", "-c", "sleep 0.1 &"], check=True)
    if options.fail:
        link = EngineLink(options.endpoint)
        link.send(EngineFailed("ModelLoadFailed", options.fail))
        link.close()
        raise SystemExit(2)
    FakeEngine(options.endpoint, options.step_seconds).run()


if __name__ == "__main__":
    main()
