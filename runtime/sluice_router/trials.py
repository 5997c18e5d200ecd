"""Trials of a canary: how the requests of both revisions end, counted by key and minute.

A trial is a key's requests of one minute. It is failed or late if any of them was: requests of one
chat fail together. The minute is that in which an attempt ends, by the router's clock.

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

from sluice_contract.wire.load import CanaryCounts, TrialCounts

from sluice_router.attempts import Reply
from sluice_router.canary import Shares, goes_to_new, is_of_side, revisions_of
from sluice_router.engines import Clock
from sluice_router.errors import AttemptFailedError, fails_trial
from sluice_router.targets import Target

MAX_KEYS: Final = 4096
"""Most keys of one revision in a minute; requests of further keys are no trials."""
MINUTE_SECONDS: Final = 60.0
HEAVY_SHARE: Final = 0.25
HEAVY_MIN_REQUESTS: Final = 20
"""Requests in a minute below which no key is heavy."""


class _Side:
    """Trials of one revision: of closed minutes the counts, of the open minute the keys."""

    def __init__(self) -> None:
        self.counts = TrialCounts()
        self.heavy_share: float | None = None
        self._open()

    def _open(self) -> None:
        self._requests = Counter[bytes]()
        self._all_requests = 0
        self._keys: dict[str, set[bytes]] = {}

    def add(self, key: bytes, *, failed: bool | None, late: bool | None) -> None:
        """Count an attempt that ended; None: it says nothing about that."""
        if failed is None and late is None:
            return
        self._all_requests += 1
        if key not in self._requests and len(self._requests) >= MAX_KEYS:
            return
        self._requests[key] += 1
        judged = {"trials": failed is not None, "timed": late is not None}
        for name, holds in (judged | {"failed": failed, "late": late}).items():
            if holds:
                self._keys.setdefault(name, set()).add(key)

    def close(self) -> Counter[str]:
        """Close the minute; its trials by outcome."""
        trials, failed, timed, late = (
            len(self._keys.get(name, ())) for name in ("trials", "failed", "timed", "late")
        )
        self.counts = TrialCounts(
            trials=self.counts.trials + trials,
            failed=self.counts.failed + failed,
            late=self.counts.late + late,
            timed=self.counts.timed + timed,
        )
        most, requests = max(self._requests.values(), default=0), self._all_requests
        is_heavy = requests >= HEAVY_MIN_REQUESTS and most > HEAVY_SHARE * requests
        self.heavy_share = most / requests if is_heavy else None
        self._open()
        outcomes = {"answered": trials - failed, "failed": failed}
        return Counter(outcomes | {"in_time": timed - late, "late": late})


class Trials:
    """Trials of one router's canary."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.totals = Counter[tuple[str, str]]()
        """Trials in closed minutes since the router's start, by side (`new`, `former`) and
        outcome (`answered`, `failed`, `in_time`, `late`)."""
        self._revisions = ("", "")
        self._begin(self._revisions)

    def _begin(self, revisions: tuple[str, str]) -> None:
        self._revisions, self._epoch = revisions, secrets.token_hex(8)
        self._new, self._former = _Side(), _Side()
        self._ttft_seconds: float | None = None
        self._minute = int(self.clock() // MINUTE_SECONDS)

    def begin(
        self,
        shares: Shares,
        target: Target,
        key: bytes,
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
            new=self._new.counts,
            old=self._former.counts,
            heavy_share=self._new.heavy_share,
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
        """Begin anew with other revisions; percents do not matter."""
        if (revisions := revisions_of(shares)) != self._revisions:
            self._begin(revisions)
        self.close_minute()


class Trial:
    """The first attempt of a request, as a context of the attempt, at whose end it is counted."""

    def __init__(
        self,
        trials: Trials,
        side: _Side,
        key: bytes,
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
