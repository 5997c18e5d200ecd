"""The engine process as the routes see it: whether it is ready, its load, and a token stream for
each choice.

One task reads the link and hands each delta to its stream. Errors here become HTTP responses in
`failures`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from msgspec.structs import replace
from sluice_contract.cluster.labels import Role

from sluice_runtime.errors import (
    AbortedError,
    EngineDiedError,
    GrammarUnavailableError,
    InvalidRequestError,
    OverloadedError,
    PrefillFailedError,
    PrefillUnavailableError,
    RequestError,
    RequestOutOfMemoryError,
    SluiceRuntimeError,
    TenantFullError,
    UnavailableError,
)
from sluice_runtime.scheduler.limits import queue_full, tenant_requests
from sluice_runtime.wire.messages import (
    Abort,
    AdaptersChanged,
    Credit,
    Drain,
    EngineFailed,
    EngineReady,
    FlushCache,
    Generate,
    Heartbeat,
    Load,
    Loading,
    Refusal,
    RoleTaken,
    StepResult,
    TakeRole,
    ToApi,
    ToEngine,
    TokenDelta,
)

SILENCE_SECONDS: Final = 10.0
"""An engine from which neither a step nor a heartbeat came for so long counts as hung. It sends one
of them each second, also while a long step computes (`engine.outbox`)."""
_LOOK_SECONDS: Final = 1.0
LOADING_SECONDS: Final = 600.0
"""The same for an engine that loads its model; it reports how much it has read."""
CREDIT_TOKENS: Final = 1024
"""Tokens of one request that may be sent before the reader has taken earlier ones."""

_REFUSALS: Final[Mapping[Refusal, type[RequestError]]] = {
    "overloaded": OverloadedError,
    "unavailable": UnavailableError,
    "uncompiled": GrammarUnavailableError,
    "out_of_memory": RequestOutOfMemoryError,
    "prefill_failed": PrefillFailedError,
    "prefill_unavailable": PrefillUnavailableError,
}

ENGINE_DIED: Final = EngineFailed("EngineDied", "the engine process has gone")
"""The failure of an engine process that ended without reporting one."""
ENGINE_HUNG: Final = EngineFailed(
    "EngineHung", f"the engine process has been silent for {SILENCE_SECONDS:g} s"
)
"""The failure of an engine process that was not seen to end."""


class Link(Protocol):
    """The part of `transport.ApiLink` that is used."""

    def messages(self) -> AsyncIterator[ToApi]: ...
    def send(self, message: ToEngine) -> None: ...


class StepObserver(Protocol):
    """Observes every request and step; keeps the metrics."""

    def began(self, ready: EngineReady) -> None: ...
    def opened(self, generate: Generate) -> None: ...
    def answered(self, request_id: str) -> None: ...
    def stepped(self, result: StepResult) -> None: ...
    def loaded(self, load: Load) -> None: ...


class GenerationFailedError(SluiceRuntimeError):
    """The engine ended a request with an error; `str()` is for the client."""


class TokenStream:
    """The deltas of one choice; has one reader, which closes it."""

    def __init__(
        self,
        request_id: str,
        send: Callable[[ToEngine], None],
        grammar_field: str | None = None,
        names: Collection[str] = (),
    ) -> None:
        self.request_id = request_id
        self.names = names
        """Names by which a client may abort the request."""
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
            RequestOutOfMemoryError: a step that computed it found no memory.
            PrefillFailedError: the engine that computes its prompt failed.
            PrefillUnavailableError: that engine never took it.
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
        """Called by the engine client: one more delta, or the failure that ends the stream."""
        self._deltas.append(delta)
        self._arrived.set()

    def _grant(self, tokens: int) -> None:
        self._taken_tokens += tokens
        if not self.ended and self._taken_tokens >= CREDIT_TOKENS // 2:
            self._send(Credit(self.request_id, self._taken_tokens))
            self._taken_tokens = 0


class EngineClient:
    """The only reader and writer of the link. Belongs to the event loop it runs in."""

    def __init__(
        self,
        link: Link,
        clock: Callable[[], float],
        observer: StepObserver,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._link = link
        self._clock = clock
        self._observer = observer
        self._sleep = sleep
        self._streams: dict[str, TokenStream] = {}
        self._unfinished: dict[str, str] = {}
        """Requests that the engine has not ended yet, including aborted ones, by id: the tenant."""
        self._unfinished_of: Counter[str] = Counter()
        """How many of them each tenant has."""
        self._last_message_seconds = clock()
        self.ready: EngineReady | None = None
        self.became_ready = asyncio.Event()
        self.failure: EngineFailed | None = None
        self.loading: Loading | None = None
        """How far the model was read, as last reported."""
        self.load: Load | None = None
        self.role: Role | None = None
        """The last one that the engine took; None: it has the configured one."""
        self._role_taken: asyncio.Future[None] | None = None
        self._drawn = asyncio.Event()
        """Set, and replaced by a new one, when a step has sampled a token."""
        self._reported = asyncio.Event()
        """Set, and replaced by a new one, when a load has come."""

    async def run(self) -> EngineFailed:
        """Reads until the engine has failed, ended or hung; by then every stream has received its
        error.

        Raises:
            TransportError: the engine speaks another protocol.
        """
        failure = ENGINE_DIED
        reading = asyncio.ensure_future(self._read())
        hung = asyncio.ensure_future(self._until_silent())
        try:
            await asyncio.wait({reading, hung}, return_when=asyncio.FIRST_COMPLETED)
            failure = reading.result() if reading.done() else ENGINE_HUNG
        finally:
            reading.cancel()
            hung.cancel()
            self.failure = failure
            died = EngineDiedError(f"the engine has failed: {failure.message}")
            self.end_streams(died)
            if self._role_taken and not self._role_taken.done():
                self._role_taken.set_exception(died)
            await asyncio.gather(reading, hung, return_exceptions=True)
        return failure

    async def _read(self) -> EngineFailed:
        async for message in self._link.messages():
            self._last_message_seconds = self._clock()
            if isinstance(message, EngineFailed):
                return message
            self._receive(message)
        return ENGINE_DIED

    async def _until_silent(self) -> None:
        """Returns when an engine that was ready hangs. Counts looks, not only seconds: after this
        process itself was suspended, it has yet to read what the engine sent meanwhile."""
        await self.became_ready.wait()
        last_message, silent_looks = self._last_message_seconds, 0
        while silent_looks * _LOOK_SECONDS < SILENCE_SECONDS:
            await self._sleep(_LOOK_SECONDS)
            silent_looks = silent_looks + 1 if self._last_message_seconds == last_message else 0
            last_message = self._last_message_seconds

    def open_all(
        self, choices: Sequence[Generate], names: Collection[str] = (), *, observed: bool = True
    ) -> list[TokenStream]:
        """Starts all choices of a request, or none; the caller closes the streams. `names` are for
        `abort`.

        Raises:
            UnavailableError: there is no engine that could run them.
            InvalidRequestError: the engine never holds so many at once.
            OverloadedError: the queue has no place for so many now.
        """
        self.check_capacity(len(choices), choices[0].tenant)
        return [self._open(choice, names, observed=observed) for choice in choices]

    def check_capacity(self, choices: int, tenant: str) -> None:
        """Refuses choices that never fit all at once, or for which the queue or the tenant's part
        of it has no place now. Raises as `open_all`."""
        ready = self.ready
        if ready is None or self.failure is not None:
            raise UnavailableError("the model is not loaded")
        running, queued = ready.max_running_requests, ready.max_queued_requests
        most = tenant_requests(ready) if tenant else running + queued
        if choices > most:
            raise InvalidRequestError(
                f"prompt and n: {choices} answers are not allowed; allowed: at most "
                f"{most} (of {running} maxRunningRequests and {queued} maxQueuedRequests)"
            )
        unfinished = self._unfinished_of[tenant]
        if tenant and unfinished + choices > most:
            raise TenantFullError(
                f"the queue is full for one tenant: {unfinished} of its requests run or wait, "
                f"{choices} more come; allowed: {most} (of {running} maxRunningRequests "
                f"and {queued} maxQueuedRequests)"
            )
        waiting = self.load.queued_requests if self.load else 0
        if waiting >= queued:
            raise OverloadedError(
                f"the queue is full: {waiting} requests wait, {choices} more come; allowed: "
                f"{queued} (maxQueuedRequests)"
            )
        if error := queue_full(ready, len(self._unfinished), choices):
            raise OverloadedError(error)

    def open(self, generate: Generate, *, observed: bool = True) -> TokenStream:
        """Starts a request of one choice; see `open_all`. `observed`: it is in the metrics."""
        return self.open_all([generate], observed=observed)[0]

    async def token_drawn(self) -> None:
        """Returns when a step draws a token of any request, closed ones among them."""
        await self._drawn.wait()

    def _open(self, generate: Generate, names: Collection[str], *, observed: bool) -> TokenStream:
        assert generate.request_id not in self._unfinished, (
            "ids are drawn here, and never a client's"
        )
        self._unfinished[generate.request_id] = generate.tenant
        self._unfinished_of[generate.tenant] += 1
        field = generate.grammar.field if generate.grammar else None
        stream = TokenStream(generate.request_id, self._link.send, field, names)
        self._streams[generate.request_id] = stream
        self._link.send(generate)
        if observed:
            self._observer.opened(generate)
        return stream

    def close(self, stream: TokenStream, *, answered: bool = False) -> None:
        """Forgets a request; one that still runs is aborted, which frees its pages. `answered`: its
        answer is whole, as a stop string has come."""
        if self._streams.pop(stream.request_id, None) and not stream.ended:
            if answered:
                self._observer.answered(stream.request_id)
            self._link.send(Abort(stream.request_id))

    def abort(self, name: str) -> int:
        """Ends all streams that go by a name; returns how many."""
        streams = [stream for stream in self._streams.values() if name in stream.names]
        for stream in streams:
            self.close(stream)
            stream.put(AbortedError("the request was aborted"))
        return len(streams)

    def hand_back(self, error: SluiceRuntimeError) -> None:
        """Aborts every request; its stream ends with this error."""
        for stream in list(self._streams.values()):
            self.close(stream)
            stream.put(error)

    def drain(self) -> None:
        """Tells the engine that no more requests will come."""
        if self.failure is None:
            self._link.send(Drain())

    async def take_role(self, role: Role, lame_duck_seconds: float, drain_seconds: float) -> None:
        """Returns when the engine has this role; one call at a time. See `TakeRole`.

        Raises:
            UnavailableError: there is no engine.
            EngineDiedError: it has gone.
        """
        if self.ready is None or self.failure is not None:
            raise UnavailableError("the model is not loaded")
        self._role_taken = asyncio.get_running_loop().create_future()
        self._link.send(TakeRole(role, lame_duck_seconds, drain_seconds))
        await self._role_taken

    async def rooms_ended(self) -> None:
        """Of a prefill engine that drains: returns when no decode engine needs it any more."""
        while True:
            handover = self.load.handover if self.load else None
            if handover and handover.draining and not (handover.bootstrap + handover.inflight):
                return
            await self._reported.wait()

    def flush_cache(self) -> None:
        """Tells the engine to forget cached prefixes.

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

    def healthy(self, loading_seconds: float = LOADING_SECONDS) -> bool:
        """Whether the engine process is alive, judged by its messages. `loading_seconds`: how long
        it may be silent while it loads its model."""
        if self.failure is not None:
            return False
        silent_seconds = self._clock() - self._last_message_seconds
        return silent_seconds < (loading_seconds if self.ready is None else SILENCE_SECONDS)

    def _receive(
        self, message: Loading | EngineReady | AdaptersChanged | StepResult | Heartbeat | RoleTaken
    ) -> None:
        match message:
            case Loading():
                self.loading = message
            case EngineReady():
                self.ready = message
                self.became_ready.set()
                self._observer.began(message)
                self._take_load(_empty_load(message))
            case AdaptersChanged():
                assert self.ready is not None
                self.ready = replace(self.ready, adapters=message.adapters)
            case Heartbeat():
                self._take_load(message.load)
            case RoleTaken():
                self._take_role(message)
            case StepResult():
                self._take_load(message.load)
                self._observer.stepped(message)
                if any(delta.token_ids for delta in message.deltas):
                    self._drawn.set()
                    self._drawn = asyncio.Event()
                for delta in message.deltas:
                    if delta.finish_reason is not None:
                        self._ended(delta.request_id)
                    if stream := self._streams.get(delta.request_id):
                        stream.put(delta)

    def _take_role(self, message: RoleTaken) -> None:
        assert self.ready is not None
        port = message.bootstrap_port
        self.ready = replace(self.ready, epoch=message.epoch, bootstrap_port=port)
        self.role = message.role
        if self._role_taken and not self._role_taken.done():
            self._role_taken.set_result(None)

    def _ended(self, request_id: str) -> None:
        tenant = self._unfinished.pop(request_id, None)
        if tenant is not None:
            self._unfinished_of[tenant] -= 1

    def _take_load(self, load: Load) -> None:
        self.load = load
        self._reported.set()
        self._reported = asyncio.Event()
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
