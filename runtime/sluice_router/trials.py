"""Trials of a canary: how the requests of both revisions end, counted by key and minute.

A key is bad from the first minute on in which a request of it failed, and counted bad once; late
answers likewise, apart from failures. A trial is a minute of a key that was not bad before. The
minute is that in which an attempt ends, by the router's clock.

Counts and the table of keys begin anew with each pair of revisions and with each percent: what is
judged is one step. Keys that do not recur are in the table only once they are bad: else requests
without a chat would fill it.

Of a request only the first attempt counts, if engines of its key's own side were asked. A retry
goes to the former revision, and would bring it the requests that the new one has failed. An attempt
that an engine hands back goes on with the next one.

A first token is late by the slo of the new revision, on both sides: the limit is that of the engine
of the new revision that was last asked. Nothing is done per event of an answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from http import HTTPStatus
from types import TracebackType
from typing import Final

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
from sluice_router.engines import Clock
from sluice_router.errors import AttemptFailedError, fails_trial
from sluice_router.targets import Target

MAX_KEYS: Final = 1 << 16
"""Most keys of a pair of revisions; requests of further ones are no trials."""
MAX_MINUTE_KEYS: Final = 4096
"""Most keys of one revision in a minute; requests of further ones are no trials."""
MINUTE_SECONDS: Final = 60.0
HEAVY_SHARE: Final = 0.25
HEAVY_MIN_REQUESTS: Final = 20
"""Requests in a minute below which no key is heavy."""


class _Signal:
    """One signal of one revision: of closed minutes the counts, of the open minute the keys."""

    def __init__(self, flag: int) -> None:
        """`flag`: that of a key that was seen; the next bit is that of a bad one."""
        self.counts = TrialCounts()
        self._seen, self._bad = flag, flag << 1
        self._open()

    def _open(self) -> None:
        self._trials: set[bytes] = set()
        self._turned_bad: set[bytes] = set()
        self._new_keys = 0

    def add(self, digest: bytes, flags: int, *, is_bad: bool) -> int:
        """Count the end of an attempt; the flags of its key after it."""
        if flags & self._bad:
            return flags
        if digest not in self._trials:
            self._trials.add(digest)
            self._new_keys += not flags & self._seen
        if is_bad:
            self._turned_bad.add(digest)
            return flags | self._seen | self._bad
        return flags | self._seen

    def close(self) -> tuple[int, int]:
        """Close the minute; its trials, good and bad ones."""
        trials, bad = len(self._trials), len(self._turned_bad)
        self.counts = TrialCounts(
            trials=self.counts.trials + trials,
            bad=self.counts.bad + bad,
            keys=self.counts.keys + self._new_keys,
        )
        self._open()
        return trials - bad, bad


class _Side:
    """Trials of one revision."""

    def __init__(self, keys: dict[bytes, int]) -> None:
        """`keys`: flags of the keys of both revisions, by digest."""
        self.heavy_share: float | None = None
        self.requests_left_out = 0
        self._errors, self._late = _Signal(1), _Signal(4)
        self._keys = keys
        self._open()

    def _open(self) -> None:
        self._requests = Counter[bytes]()
        self._all_requests = 0

    @property
    def counts(self) -> SideCounts:
        """Counts of all closed minutes."""
        return SideCounts(errors=self._errors.counts, late=self._late.counts)

    def add(self, key: CanaryKey, *, failed: bool | None, late: bool | None) -> None:
        """Count an attempt that ended; None: it says nothing about that."""
        if failed is None and late is None:
            return
        self._all_requests += 1
        digest, has_room = key.digest, len(self._keys) < MAX_KEYS or key.digest in self._keys
        is_beyond = digest not in self._requests and len(self._requests) >= MAX_MINUTE_KEYS
        if is_beyond or (key.recurs and not has_room):
            self.requests_left_out += 1
            return
        self._requests[digest] += 1
        flags = self._keys.get(digest, 0)
        if failed is not None:
            flags = self._errors.add(digest, flags, is_bad=failed)
        if late is not None:
            flags = self._late.add(digest, flags, is_bad=late)
        if has_room and (key.recurs or failed or late):
            self._keys[digest] = flags

    def close(self) -> Counter[str]:
        """Close the minute; its trials by outcome."""
        answered, failed = self._errors.close()
        in_time, late = self._late.close()
        most, requests = max(self._requests.values(), default=0), self._all_requests
        is_heavy = requests >= HEAVY_MIN_REQUESTS and most > HEAVY_SHARE * requests
        self.heavy_share = most / requests if is_heavy else None
        self._open()
        return Counter(answered=answered, failed=failed, in_time=in_time, late=late)


class Trials:
    """Trials of one router's canary."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.totals = Counter[tuple[str, str]]()
        """Trials in closed minutes since the router's start, by side (`new`, `former`) and
        outcome (`answered`, `failed`, `in_time`, `late`)."""
        self._begin(("", "", 0))

    def _begin(self, step: tuple[str, str, int]) -> None:
        self._step, self._epoch = step, secrets.token_hex(8)
        keys: dict[bytes, int] = {}
        self._new, self._former = _Side(keys), _Side(keys)
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
        due_seconds = None if self._ttft_seconds is None else since_seconds + self._ttft_seconds
        return Trial(self, self._new if new else self._former, key, due_seconds, limit)

    def counts(self, shares: Shares) -> CanaryCounts | None:
        """Counts of all closed minutes; None without a canary."""
        revision, former = revisions_of(shares)
        if revision == former:
            return None
        self._follow(shares)
        return CanaryCounts(
            epoch=self._epoch,
            revision=revision,
            former=former,
            percent=percent_of(shares),
            new_counts=self._new.counts,
            former_counts=self._former.counts,
            heavy_share=self._new.heavy_share,
            requests_left_out=self._new.requests_left_out + self._former.requests_left_out,
        )

    def close_minute(self) -> None:
        """Close the open minute if it is over."""
        minute = int(self.clock() // MINUTE_SECONDS)
        for _ in range(min(2, minute - self._minute)):  # the last closed one may be empty
            for name, side in (("new", self._new), ("former", self._former)):
                for outcome, count in side.close().items():
                    self.totals[name, outcome] += count
        self._minute = minute

    def _follow(self, shares: Shares) -> None:
        """Begin anew with other revisions, and with another percent."""
        if (step := (*revisions_of(shares), percent_of(shares))) != self._step:
            self._begin(step)
        self.close_minute()


class Trial:
    """The first attempt of a request, as a context of the attempt, at whose end it is counted."""

    def __init__(
        self,
        trials: Trials,
        side: _Side,
        key: CanaryKey,
        due_seconds: float | None,
        limit: asyncio.Timeout | None,
    ) -> None:
        """`due_seconds`: until when the first token is in time; None: that is not judged."""
        self._trials = trials
        self._side = side
        self._key = key
        self._due_seconds = due_seconds
        self._limit = limit
        self._reply: Reply | None = None
        self._failure: AttemptFailedError | None = None
        self._late: bool | None = None

    def began(self, reply: Reply | None, failure: AttemptFailedError | None) -> None:
        """The first byte came, or without a reply the attempt failed. The first byte of an answer
        that is not streamed is no token."""
        self._reply, self._failure = reply, failure
        if reply is not None and reply.streams_events and self._due_seconds is not None:
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
        self._trials.close_minute()
        self._side.add(self._key, failed=self._failed(error), late=self._late)

    @property
    def _is_overdue(self) -> bool:
        return self._due_seconds is not None and self._trials.clock() > self._due_seconds

    def _failed(self, error: BaseException | None) -> bool | None:
        """None: neither the engine's answer nor its fault."""
        if isinstance(error, asyncio.CancelledError):  # by its limit, or by the client
            return True if self._limit is not None and self._limit.expired() else None
        if error is not None:
            return True if fails_trial(error) else None
        assert self._reply is not None
        if self._reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return True
        return False if self._reply.status < HTTPStatus.BAD_REQUEST else None
