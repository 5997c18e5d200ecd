"""Trials of a canary: how the requests of both revisions end, counted by key and minute.

A key is bad from the first minute on in which a request of it failed, and counted bad once; late
answers likewise, apart from failures. A trial is a minute of a key that was not bad before. The
minute is that in which an attempt ends, by the router's clock.

Counts and the table of keys begin anew with each pair of revisions and with each percent: what is
judged is one step. Keys that do not recur are in the table only once they are bad: else requests
without a chat would fill it. When keys are too many, half of them are counted, of both revisions
alike.

Of a request only the first attempt counts, if engines of its key's own side were asked. A retry
goes to the former revision, and would bring it the requests that the new one has failed. An attempt
that an engine hands back goes on with the next one.

A first token is late by the slo of the new revision, on both sides: the limit is that of the engine
of the new revision that was last asked. Nothing is done per event of an answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple

from sluice_contract.wire.load import CanaryCounts, SideCounts, TrialCounts

from sluice_router.attempts import Reply
from sluice_router.canary import (
    CanaryKey,
    Shares,
    goes_to_new,
    is_of_side,
    percent_of,
    revisions_of,
)
from sluice_router.engines import Clock, Fleet, condition
from sluice_router.errors import AttemptFailedError, TrialEnd, trial_end, trial_end_of
from sluice_router.targets import Target

MAX_KEYS: Final = 1 << 16
"""Most keys of a step in the table; beyond it half of them are counted no more."""
MAX_MINUTE_KEYS: Final = 8192
"""Most keys of both revisions in a minute; beyond it half of all are counted no more."""
MINUTE_SECONDS: Final = 60.0
LEAVES_SECONDS: Final = 25.0
"""Time without a first byte after which a client that leaves was not answered. Load balancers in
front of routers give up later: Google Cloud's after 30 s by default, AWS's and nginx after 60 s. A
longer slo for the first token is the limit instead."""
HEAVY_SHARE: Final = 0.25
HEAVY_MIN_REQUESTS: Final = 20
"""Requests in a minute below which no key is heavy."""


_NEW, _BAD = 1, 2
"""What a trial of the open minute is: of a new key, bad."""


class _Signal:
    """One signal of one revision: of closed minutes the counts, of the open minute the keys."""

    def __init__(self, flag: int) -> None:
        """`flag`: that of a key that was seen; the next bit is that of a bad one."""
        self.counts = TrialCounts()
        self._seen, self._bad = flag, flag << 1
        self._trials: dict[bytes, int] = {}

    def add(self, digest: bytes, flags: int, *, is_bad: bool) -> int:
        """Count the end of an attempt; the flags of its key after it."""
        if flags & self._bad:
            return flags
        trial = self._trials.get(digest, 0 if flags & self._seen else _NEW)
        self._trials[digest] = trial | (_BAD if is_bad else 0)
        return flags | self._seen | (self._bad if is_bad else 0)

    def keep(self, is_counted: Callable[[bytes], bool]) -> None:
        """Drop the open minute's trials of other keys."""
        self._trials = {key: trial for key, trial in self._trials.items() if is_counted(key)}

    def close(self) -> tuple[int, int]:
        """Close the minute; its trials, good and bad ones."""
        trials, self._trials = self._trials.values(), {}
        bad = sum(trial & _BAD for trial in trials) // _BAD
        self.counts = TrialCounts(
            trials=self.counts.trials + len(trials),
            bad=self.counts.bad + bad,
            keys=self.counts.keys + sum(trial & _NEW for trial in trials),
        )
        return len(trials) - bad, bad


class _Side:
    """Trials of one revision."""

    def __init__(self) -> None:
        self.heavy_share: float | None = None
        self.requests = Counter[bytes]()
        """Requests of each key in the open minute."""
        self._errors, self._late = _Signal(1), _Signal(4)

    @property
    def counts(self) -> SideCounts:
        """Counts of all closed minutes."""
        return SideCounts(errors=self._errors.counts, late=self._late.counts)

    def add(self, digest: bytes, flags: int, *, failed: bool | None, late: bool | None) -> int:
        """Count an attempt that ended; the flags of its key after it."""
        self.requests[digest] += 1
        if failed is not None:
            flags = self._errors.add(digest, flags, is_bad=failed)
        if late is not None:
            flags = self._late.add(digest, flags, is_bad=late)
        return flags

    def keep(self, is_counted: Callable[[bytes], bool]) -> None:
        """Drop what the open minute has of other keys."""
        self.requests = Counter(
            {key: requests for key, requests in self.requests.items() if is_counted(key)}
        )
        self._errors.keep(is_counted)
        self._late.keep(is_counted)

    def close(self) -> Counter[str]:
        """Close the minute; its trials by outcome."""
        answered, failed = self._errors.close()
        in_time, late = self._late.close()
        most, requests = max(self.requests.values(), default=0), self.requests.total()
        is_heavy = requests >= HEAVY_MIN_REQUESTS and most > HEAVY_SHARE * requests
        self.heavy_share = most / requests if is_heavy else None
        self.requests.clear()
        return Counter(answered=answered, failed=failed, in_time=in_time, late=late)


class _Step:
    """Trials of both revisions in one step, and the table of their keys."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self.new, self.former = _Side(), _Side()
        self.minutes = 0
        """Closed ones."""
        self.recurs = False
        """Whether any key that was counted may recur."""
        self._flags: dict[bytes, int] = {}
        self._mask = 0
        """Bits that are 0 in the digests of the keys that are counted."""

    @property
    def key_share(self) -> float:
        """Share of the keys that are counted, 0 to 1."""
        return 1 / (self._mask + 1)

    def add(self, side: _Side, key: CanaryKey, *, failed: bool | None, late: bool | None) -> None:
        """Count an attempt that ended; None: it says nothing about that."""
        if (failed is None and late is None) or not self._is_counted(key.digest):
            return
        self.recurs |= key.recurs
        flags = side.add(key.digest, self._flags.get(key.digest, 0), failed=failed, late=late)
        if key.recurs or failed or late:
            self._flags[key.digest] = flags
        while self._has_too_many:
            self._halve()

    @property
    def _has_too_many(self) -> bool:
        minute = len(self.new.requests) + len(self.former.requests)
        return len(self._flags) > MAX_KEYS or minute > MAX_MINUTE_KEYS

    def _is_counted(self, digest: bytes) -> bool:
        return not int.from_bytes(digest) & self._mask

    def _halve(self) -> None:
        """Count half of the keys from the beginning of the open minute on. The bit that decides
        says nothing about a key's side."""
        self._mask = self._mask << 1 | 1
        self._flags = {key: flags for key, flags in self._flags.items() if self._is_counted(key)}
        self.new.keep(self._is_counted)
        self.former.keep(self._is_counted)


class _Attempt(NamedTuple):
    """A first attempt, and where it is counted."""

    step: _Step
    side: _Side
    key: CanaryKey
    target: Target

    def add(self, *, failed: bool | None, late: bool | None) -> None:
        self.step.add(self.side, self.key, failed=failed, late=late)


class _Unavailable(NamedTuple):
    """An attempt whose engine took no request, perhaps because it drains."""

    attempt: _Attempt
    engine_key: str
    seconds: float
    """When the attempt ended."""


class Trials:
    """Trials of one router's canary."""

    def __init__(self, clock: Clock, fleet: Fleet) -> None:
        self.clock = clock
        self._fleet = fleet
        self._unavailable = deque[_Unavailable](maxlen=MAX_MINUTE_KEYS)
        """Attempts that wait for the engine's next report, in the order of their ends."""
        self.totals = Counter[tuple[str, str]]()
        """Trials in closed minutes since the router's start, by side (`new`, `former`) and
        outcome (`answered`, `failed`, `in_time`, `late`)."""
        self._begin(("", "", 0))

    def _begin(self, identity: tuple[str, str, int]) -> None:
        self._identity, self._step = identity, _Step()
        self._ttft_seconds: float | None = None
        self._minute = int(self.clock() // MINUTE_SECONDS)

    def begin(
        self,
        shares: Shares,
        target: Target,
        key: CanaryKey,
        since_seconds: float,
        limit: asyncio.Timeout | None,
    ) -> Trial | None:
        """The trial of a first attempt; None: its engines are not of the key's own side.
        `since_seconds`: when the request was first sent; `limit`: the request's."""
        new = goes_to_new(shares, key)
        engines = (target.engine, target.prefill) if target.prefill else (target.engine,)
        if not all(is_of_side(shares, engine, new=new) for engine in engines):
            return None
        self._follow(shares)
        if new and target.engine.received is not None:
            self._ttft_seconds = target.engine.received.report.slo_ttft_seconds
        side = self._step.new if new else self._step.former
        attempt = _Attempt(self._step, side, key, target)
        return Trial(self, attempt, since_seconds, self._ttft_seconds, limit)

    def counts(self, shares: Shares) -> CanaryCounts | None:
        """Counts of all closed minutes; None without a canary."""
        revision, former = revisions_of(shares)
        if revision == former:
            return None
        self._follow(shares)
        return CanaryCounts(
            epoch=self._step.epoch,
            revision=revision,
            former=former,
            percent=percent_of(shares),
            minutes=self._step.minutes,
            new_counts=self._step.new.counts,
            former_counts=self._step.former.counts,
            heavy_share=self._step.new.heavy_share,
            recurs=self._step.recurs,
            key_share=self._step.key_share,
        )

    def add(self, attempt: _Attempt, end: TrialEnd, *, late: bool | None) -> None:
        """Count an attempt that ended now."""
        self.close_minute()
        failed = {"answered": False, "failed": True}.get(end)
        attempt.add(failed=failed, late=late)
        if end in ("unavailable", "prefill_unavailable"):
            target = attempt.target
            engine = (end == "prefill_unavailable" and target.prefill) or target.engine
            self._unavailable.append(_Unavailable(attempt, engine.key, self.clock()))

    def _settle(self) -> None:
        """Count attempts at engines that took no request as failed, if the engine's next load
        report says that it does not drain. Without a report within a minute they are no trials."""
        while self._unavailable:
            attempt, key, seconds = self._unavailable[0]
            engine, now = self._fleet.engine(key), self.clock()
            if engine is not None and condition(engine, now) not in ("draining", "unready"):
                if engine.received is not None and engine.received.received_seconds > seconds:
                    attempt.add(failed=True, late=None)
                elif now - seconds < MINUTE_SECONDS:
                    return
            self._unavailable.popleft()

    def close_minute(self) -> None:
        """Close the open minute if it is over."""
        self._settle()
        minute = int(self.clock() // MINUTE_SECONDS)
        for _ in range(min(2, minute - self._minute)):  # the last closed one may be empty
            for name, side in (("new", self._step.new), ("former", self._step.former)):
                for outcome, count in side.close().items():
                    self.totals[name, outcome] += count
        self._step.minutes += minute - self._minute
        self._minute = minute

    def _follow(self, shares: Shares) -> None:
        """Begin anew with other revisions, and with another percent."""
        if (identity := (*revisions_of(shares), percent_of(shares))) != self._identity:
            self._begin(identity)
        self.close_minute()


class Trial:
    """The first attempt of a request, as a context of the attempt, at whose end it is counted."""

    def __init__(
        self,
        trials: Trials,
        attempt: _Attempt,
        since_seconds: float,
        ttft_seconds: float | None,
        limit: asyncio.Timeout | None,
    ) -> None:
        """`ttft_seconds`: after which the first token is late; None: that is not judged."""
        self._trials = trials
        self._attempt = attempt
        self._since_seconds = since_seconds
        self._ttft_seconds = ttft_seconds
        self._limit = limit
        self._reply: Reply | None = None
        self._failure: AttemptFailedError | None = None
        self._late: bool | None = None

    def began(self, reply: Reply | None, failure: AttemptFailedError | None) -> None:
        """The first byte came, or without a reply the attempt failed. The first byte of an answer
        that is not streamed is no token."""
        self._reply, self._failure = reply, failure
        if reply is not None and reply.streams_events and self._ttft_seconds is not None:
            self._late = self._is_overdue

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._reply is None and self._failure is not None:
            error = self._failure
        if self._reply is None and self._is_overdue:
            self._late = True
        self._trials.add(self._attempt, self._end(error), late=self._late)

    @property
    def _waited_seconds(self) -> float:
        return self._trials.clock() - self._since_seconds

    @property
    def _is_overdue(self) -> bool:
        return self._ttft_seconds is not None and self._waited_seconds > self._ttft_seconds

    def _end(self, error: BaseException | None) -> TrialEnd:
        if isinstance(error, asyncio.CancelledError):  # by its limit, or by the client
            is_over = self._limit is not None and self._limit.expired()
            longest_seconds = max(LEAVES_SECONDS, self._ttft_seconds or 0.0)
            was_silent = self._reply is None and self._waited_seconds > longest_seconds
            return "failed" if is_over or was_silent else "none"
        if error is not None:
            return trial_end(error)
        assert self._reply is not None
        return trial_end_of(self._reply.status)
