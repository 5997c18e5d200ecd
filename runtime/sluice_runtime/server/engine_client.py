"""The engine process as the routes see it: is it ready, how loaded is it, and a stream a request.

One task reads the link and hands each delta to its stream. Knows no HTTP, no text and no socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from sluice_runtime.errors import (
    AbortedError,
    EngineDiedError,
    GrammarUnavailableError,
    InvalidRequestError,
    OverloadedError,
    RequestError,
    SluiceRuntimeError,
    UnavailableError,
)
from sluice_runtime.messages import (
    Abort,
    Credit,
    Drain,
    EngineFailed,
    EngineReady,
    FlushCache,
    Generate,
    Heartbeat,
    Load,
    Refusal,
    StepResult,
    ToApi,
    ToEngine,
    TokenDelta,
)
from sluice_runtime.scheduler.limits import queue_full

SILENCE_SECONDS: Final = 30.0
"""An engine that neither stepped nor sent a heartbeat for so long hangs."""
CREDIT_TOKENS: Final = 1024
"""Tokens of one request that may be on their way to a reader that has not taken them."""

_REFUSALS: Final[Mapping[Refusal, type[RequestError]]] = {
    "overloaded": OverloadedError,
    "unavailable": UnavailableError,
    "uncompiled": GrammarUnavailableError,
}

ENGINE_DIED: Final = EngineFailed("EngineDied", "the engine process has gone")
"""What is known of an engine that went without a word."""


class Link(Protocol):
    """What of `transport.ApiLink` is used."""

    def messages(self) -> AsyncIterator[ToApi]: ...
    def send(self, message: ToEngine) -> None: ...


class StepObserver(Protocol):
    """Told of every request and step; keeps the metrics."""

    def opened(self, generate: Generate) -> None: ...
    def stepped(self, result: StepResult) -> None: ...
    def loaded(self, load: Load) -> None: ...


class GenerationFailedError(SluiceRuntimeError):
    """The engine ended a request with an error; `str()` is for the client."""


class TokenStream:
    """The deltas of one request, to be read by one reader, and closed by it."""

    def __init__(
        self,
        request_id: str,
        send: Callable[[ToEngine], None],
        grammar_field: str | None = None,
        names: Collection[str] = (),
    ) -> None:
        self.request_id = request_id
        self.names = names
        """What clients call the request that this is a choice of."""
        self._grammar_field = grammar_field
        self._send = send
        self._deltas: deque[TokenDelta | SluiceRuntimeError] = deque()
        self._arrived = asyncio.Event()
        self._taken_tokens = 0
        self.ended = False
        """Whether the terminal delta or a failure was read."""

    async def next(self) -> TokenDelta:
        """The next delta; the one with a finish reason is the last.

        Raises:
            GenerationFailedError: the engine ended this request with an error.
            InvalidRequestError: its grammar cannot be used.
            OverloadedError: the engine's queue is full.
            EngineDiedError: the engine has gone.
            UnavailableError: it drains, or this server hurries to its end.
        """
        while not self._deltas:
            self._arrived.clear()
            await self._arrived.wait()
        delta = self._deltas.popleft()
        self.ended = isinstance(delta, SluiceRuntimeError) or delta.finish_reason is not None
        if isinstance(delta, SluiceRuntimeError):
            raise delta
        if delta.refusal == "invalid":
            raise InvalidRequestError(delta.error or "invalid", self._grammar_field)
        if delta.refusal is not None:
            raise _REFUSALS[delta.refusal](delta.error or "the engine refused the request")
        if delta.finish_reason in ("error", "abort"):
            raise GenerationFailedError(delta.error or "the engine gave the request up")
        self._grant(len(delta.token_ids))
        return delta

    def put(self, delta: TokenDelta | SluiceRuntimeError) -> None:
        """For the engine client: one more delta, or the failure that ends the stream."""
        self._deltas.append(delta)
        self._arrived.set()

    def _grant(self, tokens: int) -> None:
        self._taken_tokens += tokens
        if not self.ended and self._taken_tokens >= CREDIT_TOKENS // 2:
            self._send(Credit(self.request_id, self._taken_tokens))
            self._taken_tokens = 0


class EngineClient:
    """The only reader and writer of the link. Belongs to the event loop it runs in."""

    def __init__(self, link: Link, clock: Callable[[], float], observer: StepObserver) -> None:
        self._link = link
        self._clock = clock
        self._observer = observer
        self._streams: dict[str, TokenStream] = {}
        self._held: set[str] = set()
        """Ids of requests that the engine was sent and has not ended, closed ones among them."""
        self._heard_seconds = clock()
        self.ready: EngineReady | None = None
        self.became_ready = asyncio.Event()
        self.failure: EngineFailed | None = None
        self.load: Load | None = None

    async def run(self) -> EngineFailed:
        """Reads until the engine has failed or gone; by then every stream has its error.

        Raises:
            TransportError: the engine speaks another protocol.
        """
        failure = ENGINE_DIED
        try:
            async for message in self._link.messages():
                self._heard_seconds = self._clock()
                if isinstance(message, EngineFailed):
                    failure = message
                    break
                self._receive(message)
        finally:
            self.failure = failure
            self.end_streams(EngineDiedError(f"the engine has failed: {failure.message}"))
        return failure

    def open_all(
        self, choices: Sequence[Generate], names: Collection[str] = ()
    ) -> list[TokenStream]:
        """Starts the choices of one request, all or none; the caller closes the streams. `names`
        are for `abort`.

        Raises:
            UnavailableError: there is no engine that could run them.
            InvalidRequestError: the engine never holds so many at once.
            OverloadedError: so many cannot be taken now.
        """
        if self.ready is None or self.failure is not None:
            raise UnavailableError("the model is not loaded")
        self._check_room(self.ready, len(choices))
        return [self._open(choice, names) for choice in choices]

    def open(self, generate: Generate) -> TokenStream:
        """Starts a request of one choice; see `open_all`."""
        return self.open_all([generate])[0]

    def _open(self, generate: Generate, names: Collection[str]) -> TokenStream:
        assert generate.request_id not in self._held, "ids are drawn here, and never a client's"
        self._held.add(generate.request_id)
        field = generate.grammar.field if generate.grammar else None
        stream = TokenStream(generate.request_id, self._link.send, field, names)
        self._streams[generate.request_id] = stream
        self._link.send(generate)
        self._observer.opened(generate)
        return stream

    def close(self, stream: TokenStream) -> None:
        """Forgets a request; one that still runs is aborted, which frees its pages."""
        if self._streams.pop(stream.request_id, None) and not stream.ended:
            self._link.send(Abort(stream.request_id))

    def abort(self, name: str) -> int:
        """Ends all streams that go by a name; returns how many."""
        found = [stream for stream in self._streams.values() if name in stream.names]
        for stream in found:
            self.close(stream)
            stream.put(AbortedError("the request was aborted"))
        return len(found)

    def drain(self) -> None:
        """Tells the engine that no more requests will come."""
        if self.failure is None:
            self._link.send(Drain())

    def flush_cache(self) -> None:
        """Requests that are opened from now on find nothing cached.

        Raises:
            UnavailableError: there is no engine.
        """
        if self.ready is None or self.failure is not None:
            raise UnavailableError("the model is not loaded")
        self._link.send(FlushCache())

    def end_streams(self, error: SluiceRuntimeError) -> None:
        """Every open stream ends with this error."""
        for stream in self._streams.values():
            stream.put(error)

    @property
    def healthy(self) -> bool:
        """Whether the engine process lives, as far as can be known from here."""
        if self.failure is not None:
            return False
        silent_seconds = self._clock() - self._heard_seconds
        return self.ready is None or silent_seconds < SILENCE_SECONDS

    def _check_room(self, ready: EngineReady, choices: int) -> None:
        """Refuses whatever the engine would refuse a part of, what it could never hold, and what
        would join a queue that does not move."""
        running, queued = ready.max_running_requests, ready.max_queued_requests
        if queue_full(ready, 0, choices):
            raise InvalidRequestError(
                f"prompt and n: {choices} answers are not allowed; allowed: at most "
                f"{running + queued} ({running} maxRunningRequests and {queued} maxQueuedRequests)"
            )
        waiting = self.load.queued_requests if self.load else 0
        if waiting >= queued:
            raise OverloadedError(
                f"the queue is full: {waiting} requests wait, {choices} more come; allowed: "
                f"{queued} (maxQueuedRequests)"
            )
        if error := queue_full(ready, len(self._held), choices):
            raise OverloadedError(error)

    def _receive(self, message: EngineReady | StepResult | Heartbeat) -> None:
        match message:
            case EngineReady():
                self.ready = message
                self.became_ready.set()
                self._take_load(_empty_load(message))
            case Heartbeat():
                self._take_load(message.load)
            case StepResult():
                self._take_load(message.load)
                self._observer.stepped(message)
                for delta in message.deltas:
                    if delta.finish_reason is not None:
                        self._held.discard(delta.request_id)
                    if stream := self._streams.get(delta.request_id):
                        stream.put(delta)

    def _take_load(self, load: Load) -> None:
        self.load = load
        self._observer.loaded(load)


def _empty_load(ready: EngineReady) -> Load:
    """The load of an engine that has just begun; its own first report follows."""
    pages = ready.kv_pool_tokens // ready.page_size_tokens
    return Load(
        time_seconds=0.0,
        queued_requests=0,
        queued_tokens=0,
        running_requests=0,
        kv_pages_total=pages,
        kv_pages_free=pages,
        kv_pages_evictable=0,
        queued_work_seconds=0.0,
        new_token_ratio=0.0,
        retractions=0,
        chunk_cuts=0,
        steps={},
    )
