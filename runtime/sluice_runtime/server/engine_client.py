"""The engine process as the routes see it: whether it is ready, its load, and a token stream for
each choice.

One task reads the link and hands each delta to its stream. Errors here become HTTP responses in
`failures`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol

from msgspec.structs import replace
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineFigures

from sluice_runtime.errors import (
    AbortedError,
    EngineDiedError,
    HandedBackError,
    InvalidRequestError,
    OverloadedError,
    SluiceRuntimeError,
    TenantFullError,
    UnavailableError,
)
from sluice_runtime.scheduler.limits import queue_full, tenant_requests
from sluice_runtime.server.token_stream import CREDIT_TOKENS, TokenStream
from sluice_runtime.wire.messages import (
    Abort,
    AdaptersChanged,
    Drain,
    EngineFailed,
    EngineReady,
    FlushCache,
    Generate,
    HandBack,
    HandedBack,
    Heartbeat,
    Load,
    Loading,
    RoleTaken,
    StepResult,
    TakeRole,
    ToApi,
    ToEngine,
    TokenDelta,
)

SILENCE_SECONDS: Final = 10.0
"""Silence after which an engine counts as hung. An engine sends a step or a heartbeat each second,
even while a long step computes (`engine.outbox`)."""
_LOOK_SECONDS: Final = 1.0
LOADING_SECONDS: Final = 600.0
"""Longest silence of an engine that loads its model; it reports how much it has read."""
HAND_BACK_SECONDS: Final = 3.0
"""Time for the engine's answer to a hand-back. If a step takes longer, the engine is so slow that
its queue should go elsewhere anyway."""
ENGINE_DIED: Final = EngineFailed("EngineDied", "the engine process has gone")
"""The failure of an engine process that ended without reporting one."""
ENGINE_HUNG: Final = EngineFailed(
    "EngineHung", f"the engine process has been silent for {SILENCE_SECONDS:g} s"
)
"""The failure of an engine process that is silent but has not ended."""


class EngineConnection(Protocol):
    """The part of `transport.ApiLink` that is used."""

    def messages(self) -> AsyncIterator[ToApi]: ...
    def send(self, message: ToEngine) -> None: ...


class StepObserver(Protocol):
    """Observer of every request and step, which keeps the metrics."""

    def began(self, ready: EngineReady) -> None: ...
    def opened(self, generate: Generate) -> None: ...
    def answered(self, request_id: str) -> None: ...
    def stepped(self, result: StepResult) -> None: ...
    def loaded(self, load: Load) -> None: ...


class EngineClient:
    """The only reader and writer of the link. Belongs to the event loop it runs in."""

    def __init__(
        self,
        link: EngineConnection,
        clock: Callable[[], float],
        observer: StepObserver,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        credit_tokens: int = CREDIT_TOKENS,
    ) -> None:
        """`credit_tokens`: tokens of a choice that may wait here for its reader."""
        self._link = link
        self._clock = clock
        self._observer = observer
        self._sleep = sleep
        self.credit_tokens = credit_tokens
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
        self._handed_back: asyncio.Future[int] | None = None
        self._hand_backs = 0
        """Number of the last call."""
        self._drawn = asyncio.Event()
        """Set, and replaced by a new one, when a step has sampled a token."""
        self._reported = asyncio.Event()
        """Set, and replaced by a new one, when a load has come."""

    async def run(self) -> EngineFailed:
        """Reads messages until the engine has failed, ended or hung; then gives every stream its
        error and returns the failure.

        Raises:
            TransportError: the engine has another protocol version.
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
            self._settle_hand_back(0)  # the streams have ended
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
        """Returns when an engine that was ready hangs. Counts checks, not only seconds: after a
        suspension of this process, messages sent meanwhile are still unread."""
        await self.became_ready.wait()
        last_message, silent_looks = self._last_message_seconds, 0
        while silent_looks * _LOOK_SECONDS < SILENCE_SECONDS:
            await self._sleep(_LOOK_SECONDS)
            silent_looks = silent_looks + 1 if self._last_message_seconds == last_message else 0
            last_message = self._last_message_seconds

    def open_all(
        self,
        choices: Sequence[Generate],
        names: Collection[str] = (),
        *,
        router_id: str = "",
        observed: bool = True,
    ) -> list[TokenStream]:
        """Starts all choices of a request, or none; the caller closes the streams. `names`: for
        `abort`; `router_id`: for `hand_back`.

        Raises:
            UnavailableError: no engine can run the choices now.
            InvalidRequestError: the engine never holds so many choices at once.
            OverloadedError: the queue has no room for the choices now.
        """
        self.check_capacity(len(choices), choices[0].tenant)
        streams = [
            TokenStream(
                c.request_id, self._link.send, _field_of(c), names, router_id, c.credit_tokens
            )
            for c in choices
        ]
        for choice, stream in zip(choices, streams, strict=True):
            self._open(choice, stream, observed=observed)
        return streams

    def check_capacity(self, choices: int, tenant: str) -> None:
        """Refuses choices that can never fit together, or for which the queue or the tenant's share
        of it has no room now. Raises like `open_all`."""
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
        waiting = self.load.figures.queued_requests if self.load else 0
        if waiting >= queued:
            raise OverloadedError(
                f"the queue is full: {waiting} requests wait, {choices} more come; allowed: "
                f"{queued} (maxQueuedRequests)"
            )
        if error := queue_full(ready, len(self._unfinished), choices):
            raise OverloadedError(error)

    def open(self, generate: Generate, *, observed: bool = True) -> TokenStream:
        """Starts a request of one choice; see `open_all`. `observed`: whether the metrics include
        it."""
        return self.open_all([generate], observed=observed)[0]

    async def token_drawn(self) -> None:
        """Returns when a step draws a token for any request, even a closed one."""
        await self._drawn.wait()

    def _open(self, generate: Generate, stream: TokenStream, *, observed: bool) -> None:
        assert generate.request_id not in self._unfinished, (
            "ids are drawn here, and never a client's"
        )
        self._unfinished[generate.request_id] = generate.tenant
        self._unfinished_of[generate.tenant] += 1
        self._streams[generate.request_id] = stream
        self._link.send(generate)
        if observed:
            self._observer.opened(generate)

    def close(self, stream: TokenStream, *, answered: bool = False) -> None:
        """Forgets a request; if it still runs, aborts it, which frees its pages. `answered`:
        whether its answer is complete, as after a stop string."""
        if self._streams.pop(stream.request_id, None) and not stream.ended:
            if answered:
                self._observer.answered(stream.request_id)
            self._link.send(Abort(stream.request_id))

    def abort(self, name: str) -> int:
        """Ends all streams with this name; returns how many."""
        streams = [stream for stream in self._streams.values() if name in stream.names]
        for stream in streams:
            self.close(stream)
            stream.put(AbortedError("the request was aborted"))
        return len(streams)

    def end_all(self, error: SluiceRuntimeError) -> None:
        """Aborts every request; their streams end with `error`."""
        for stream in list(self._streams.values()):
            self.close(stream)
            stream.put(error)

    async def hand_back(self, router_ids: Sequence[str], most: int, waits_for: Role) -> int:
        """Ends at most `most` of the requests with these ids that have not begun; returns how many.
        Only one call at a time is allowed. If the engine does not answer in time, requests without
        a token are ended here.

        Raises:
            UnavailableError: there is no engine.
        """
        if self.ready is None or self.failure is not None:
            raise UnavailableError("the model is not loaded")
        groups = self._waiting_streams(router_ids)
        if not groups:
            return 0
        self._handed_back = asyncio.get_running_loop().create_future()
        ids = [[stream.request_id for stream in streams] for streams in groups]
        self._hand_backs += 1
        self._link.send(HandBack(self._hand_backs, waits_for, ids, most))
        try:
            async with asyncio.timeout(HAND_BACK_SECONDS):
                return await self._handed_back
        except TimeoutError:
            return self._take_back(groups, most)

    def _settle_hand_back(self, requests: int) -> None:
        if self._handed_back and not self._handed_back.done():
            self._handed_back.set_result(requests)

    def _take_back(self, groups: Sequence[Sequence[TokenStream]], most: int) -> int:
        """Ends requests without a token, because the engine does not answer; returns how many."""
        silent = [streams for streams in groups if not any(s.begun for s in streams)][:most]
        for stream in (stream for streams in silent for stream in streams):
            self.close(stream)
            stream.put(HandedBackError("the engine does not answer, and another one has room"))
        return len(silent)

    def _waiting_streams(self, router_ids: Sequence[str]) -> list[list[TokenStream]]:
        """Choices of requests without a token so far, grouped by request, in the order of the
        ids."""
        groups: dict[str, list[TokenStream]] = {id_: [] for id_ in router_ids if id_}
        for stream in self._streams.values():
            if stream.router_id in groups:
                groups[stream.router_id].append(stream)
        return [g for g in groups.values() if g and not any(stream.begun for stream in g)]

    def drain(self) -> None:
        """Tells the engine that no more requests will come."""
        if self.failure is None:
            self._link.send(Drain())

    async def take_role(self, role: Role, lame_duck_seconds: float, drain_seconds: float) -> None:
        """Asks the engine to take a role, and returns once it has. Only one call at a time is
        allowed. See `TakeRole`.

        Raises:
            UnavailableError: there is no engine.
            EngineDiedError: the engine ended.
        """
        if self.ready is None or self.failure is not None:
            raise UnavailableError("the model is not loaded")
        self._role_taken = asyncio.get_running_loop().create_future()
        self._link.send(TakeRole(role, lame_duck_seconds, drain_seconds))
        await self._role_taken

    async def rooms_ended(self) -> None:
        """Returns once no decode engine needs this draining prefill engine any more."""
        while True:
            load = self.load
            if load and load.handover and load.handover.draining:
                queues = load.figures.queues
                if not queues.bootstrap + queues.inflight:
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
        """Ends every open stream with `error`."""
        for stream in self._streams.values():
            stream.put(error)

    def healthy(self, loading_seconds: float = LOADING_SECONDS) -> bool:
        """Whether the engine process is alive, judged by its messages. `loading_seconds`: how long
        it may be silent while it loads its model."""
        if self.failure is not None:
            return False
        silent_seconds = self._clock() - self._last_message_seconds
        return silent_seconds < (loading_seconds if self.ready is None else SILENCE_SECONDS)

    def _receive(self, message: ToApi) -> None:
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
            case HandedBack():
                if message.number == self._hand_backs:
                    self._settle_hand_back(message.requests)
            case StepResult():
                self._take_load(message.load)
                self._observer.stepped(message)
                self._take_deltas(message.deltas)

    def _take_deltas(self, deltas: Sequence[TokenDelta]) -> None:
        if any(delta.token_ids for delta in deltas):
            self._drawn.set()
            self._drawn = asyncio.Event()
        for delta in deltas:
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


def _field_of(generate: Generate) -> str | None:
    """The field of the client's request that set its grammar; None without one."""
    return generate.grammar.field if generate.grammar else None


def _empty_load(ready: EngineReady) -> Load:
    """Placeholder load of an engine that has just started, until its first report."""
    pages = ready.kv_pool_tokens // ready.page_size_tokens
    return Load(
        time_seconds=0.0,
        figures=EngineFigures(kv_pages_total=pages, kv_pages_free=pages),
        new_token_ratio=0.0,
        retractions=0,
        chunk_cuts=0,
        steps={},
    )
