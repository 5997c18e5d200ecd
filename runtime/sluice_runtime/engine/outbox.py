"""Messages that leave the engine: tokens as far as a request's credit allows, and heartbeats while
a step computes. Knows neither socket nor scheduler.

A request whose credit is used up keeps running, and its tokens are withheld here. Beyond a limit
the loop ends the request, so that a client that stopped reading does not hold pages or memory for
long. A request's last delta carries all withheld tokens, so credit is exceeded by at most the
limit.

Heartbeats keep a long step from being mistaken for a hang. A separate thread sends them, since the
engine's thread is inside the model. Both threads use one ZMQ socket, which only one may use at a
time. So the heartbeat thread sends only between the start and the end of a step, under a lock that
both take. Each heartbeat repeats the load from before the step. A step older than the limit counts
as hung and gets no more heartbeats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
from sluice_contract.config.accelerators import Accelerator

from sluice_runtime.wire.messages import Heartbeat, Load, PlainTokens, TokenDelta, TokenLogprob

MAX_WITHHELD_TOKENS: Final = 4096
STEP_LIMIT_SECONDS: Final = 600.0
"""Duration from which a step on CPUs is hung. The largest prompts on the slowest hosts take
minutes."""
GPU_STEP_LIMIT_SECONDS: Final = 60.0
"""Duration from which a step on GPUs is hung; steps there take seconds at most. The host then waits
for the device: in a kernel, or in a collective operation with a rank that is gone."""


def step_limit_seconds(accelerator: Accelerator | None) -> float:
    """Maximum duration of a step of an engine with this accelerator."""
    is_cpu = accelerator is None or accelerator.is_cpu
    return STEP_LIMIT_SECONDS if is_cpu else GPU_STEP_LIMIT_SECONDS


@dataclass(slots=True)
class _Account:
    credit: int
    withheld: tuple[int, ...] = ()
    scores: tuple[TokenLogprob, ...] = ()
    """Logprobs of the withheld tokens, if the request asked for them."""

    def take(self, delta: TokenDelta, max_tokens: int | None = None) -> TokenDelta:
        """`delta` with the withheld tokens first and its own last, cut to `max_tokens`; the rest is
        withheld."""
        tokens, scores = self.withheld + delta.token_ids, self.scores + delta.logprobs
        sent = len(tokens) if max_tokens is None else max(max_tokens, 0)
        self.withheld, self.scores = tokens[sent:], scores[sent:]
        return msgspec.structs.replace(delta, token_ids=tokens[:sent], logprobs=scores[:sent])


class Outbox:
    """Holds one account for each live request."""

    def __init__(self, max_withheld_tokens: int = MAX_WITHHELD_TOKENS) -> None:
        self._max_withheld = max_withheld_tokens
        self._accounts: dict[str, _Account] = {}

    def open(self, request_id: str, credit: int) -> None:
        """Opens the account of a new request; an id in use keeps its account."""
        self._accounts.setdefault(request_id, _Account(credit))

    def grant(self, request_id: str, credit: int) -> TokenDelta | None:
        """Adds credit; returns the withheld tokens that it releases. Unknown ids are ignored."""
        account = self._accounts.get(request_id)
        if account is None:
            return None
        account.credit += credit
        if not account.withheld or account.credit <= 0:
            return None
        return self._pay(account, TokenDelta(request_id, ()))

    def pass_on(self, delta: TokenDelta) -> TokenDelta | None:
        """The delta to send now, if any, with the tokens that were withheld before it."""
        account = self._accounts.get(delta.request_id)
        if account is None:
            return delta
        if delta.finish_reason is not None:
            del self._accounts[delta.request_id]
            return account.take(delta) if account.withheld else delta
        if account.credit > 0 and not account.withheld:
            account.credit -= len(delta.token_ids)
            return delta
        return self._pay(account, delta)

    def charge(self, plain: PlainTokens) -> tuple[PlainTokens, list[TokenDelta]]:
        """Splits tokens into those to send now, for which credit is taken, and those of requests
        whose credit is used up: these are for `pass_on`."""
        accounts = self._accounts
        late: list[int] = []
        for number, request_id in enumerate(plain.request_ids):
            account = accounts.get(request_id)
            if account is None:
                continue
            if account.credit > 0:  # so nothing is withheld
                account.credit -= 1
            else:
                late.append(number)
        if not late:
            return plain, []
        deltas, others = plain.deltas, set(late)
        sent = [delta for number, delta in enumerate(deltas) if number not in others]
        columns = [delta.request_id for delta in sent], [delta.token_ids[0] for delta in sent]
        return PlainTokens(*columns), [deltas[number] for number in late]

    def overdrawn(self, request_id: str) -> bool:
        """Whether more tokens are withheld than allowed."""
        account = self._accounts.get(request_id)
        return account is not None and len(account.withheld) > self._max_withheld

    def _pay(self, account: _Account, delta: TokenDelta) -> TokenDelta | None:
        paid = account.take(delta, account.credit)
        account.credit -= len(paid.token_ids)
        return paid if paid.token_ids else None


class HeartbeatThread:
    """Calls `send` from its own thread, and only while a step computes."""

    def __init__(
        self,
        send: Callable[[Heartbeat], None],
        monotonic: Callable[[], float],
        every_seconds: float,
        limit_seconds: float,
    ) -> None:
        self._send = send
        self._monotonic = monotonic
        self._every_seconds = every_seconds
        self._limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._load: Load | None = None
        """Load that heartbeats carry; None between steps."""
        self._began_seconds = 0.0

    @contextmanager
    def step(self, load: Load, began_seconds: float) -> Iterator[None]:
        """Marks the computation of a step, whose heartbeats carry `load`."""
        with self._lock:
            self._load, self._began_seconds = load, began_seconds
        try:
            yield
        finally:
            with self._lock:
                self._load = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the thread inside this context; nothing is sent after it."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopped,), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def beat(self) -> None:
        """Sends a heartbeat if a step computes that is neither new nor hung."""
        with self._lock:
            if self._load is None:
                return
            age_seconds = self._monotonic() - self._began_seconds
            if self._every_seconds <= age_seconds < self._limit_seconds:
                self._send(Heartbeat(self._load))

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._every_seconds):
            self.beat()
