"""Whom a request is sent to: one engine, or in a service of two pools a decode engine and the
prefill engine that computes its prompt.

Calls the pure picks with random numbers, and keeps the last picks with their reasons. Names the
prefill engine to the decode engine in a signed header.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.handover import Bound, Keys, PrefillRef, signed_header
from yarl import URL

from sluice_router.engines import EngineState
from sluice_router.pick import Affinity, Choice, Draw, Reason, pick, pick_pair

logger = logging.getLogger("sluice.router.pick")
_NAME_CHARACTERS = 253
"""Longest name of an engine in a signed header. Without a pod the name is a URL, and is cut."""
MAX_KEPT_PICKS: Final = 256
"""How many of the last picks `/picks` shows."""
SignPrefill = Callable[[EngineState, str, Bound], str]
"""Value of `PREFILL_HEADER` that names this prefill engine, for the request with that id, path and
body."""


@dataclass(frozen=True, slots=True)
class Target:
    """The engine that answers, and in a service of two pools the one that computes the prompt."""

    engine: EngineState
    prefill: EngineState | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its engines."""
        return (self.engine.key, *((self.prefill.key,) if self.prefill else ()))

    @property
    def name(self) -> str:
        """Names of the engines, for people."""
        name = self.engine.endpoint.name
        return f"{name} prefill={self.prefill.endpoint.name}" if self.prefill else name


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The engines to ask, or why there are none."""

    target: Target | None
    reason: Reason
    message: str


class Choose(Protocol):
    """Chooses among engines; `tried`: keys of those that are left out. `generates`: whether the
    request has a prompt; `affinity`: of that prompt, or of its session."""

    def __call__(
        self,
        engines: Sequence[EngineState],
        now: float,
        tried: Collection[str],
        *,
        generates: bool,
        affinity: Affinity | None,
    ) -> TargetChoice: ...


def chooser(roles: Collection[Role], stale_seconds: float, source: random.Random) -> Choose:
    """How targets are chosen in a service with pools of these roles."""

    def draw() -> Draw:
        return Draw(source.random(), source.random(), source.random())

    def mixed(
        engines: Sequence[EngineState],
        now: float,
        tried: Collection[str],
        *,
        generates: bool,
        affinity: Affinity | None,
    ) -> TargetChoice:
        choice = pick(
            engines, now, draw(), stale_seconds=stale_seconds, tried=tried, affinity=affinity
        )
        return _single(choice)

    def pair(
        engines: Sequence[EngineState],
        now: float,
        tried: Collection[str],
        *,
        generates: bool,
        affinity: Affinity | None,
    ) -> TargetChoice:
        if not generates:
            choice = pick(
                engines, now, draw(), stale_seconds=stale_seconds, role=Role.DECODE, tried=tried
            )
            return _single(replace(choice, message=f"decode: {choice.message}"))
        draws = draw(), draw()
        pair_choice = pick_pair(
            engines, now, draws, stale_seconds=stale_seconds, tried=tried, affinity=affinity
        )
        target = Target(pair_choice.decode, pair_choice.prefill) if pair_choice.decode else None
        return TargetChoice(target, pair_choice.reason, pair_choice.message)

    return pair if Role.DECODE in roles else mixed


def _single(choice: Choice) -> TargetChoice:
    target = Target(choice.engine) if choice.engine else None
    return TargetChoice(target, choice.reason, choice.message)


class Pick(NamedTuple):
    """Engines that one attempt of a request asks, and why."""

    request_id: str
    reason: str
    message: str
    """Names the engines and their loads, for people."""


class Picks:
    """Picks of one router since its start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Counts of picks by reason."""
        self._recent: deque[Pick] = deque(maxlen=MAX_KEPT_PICKS)

    @property
    def last(self) -> str | None:
        """The last one, with the request's id."""
        return _line(self._recent[-1]) if self._recent else None

    def add(self, request_id: str, choice: TargetChoice) -> None:
        """A request goes to the choice's engines."""
        self.counts[choice.reason] += 1
        pick = Pick(request_id, choice.reason, choice.message)
        self._recent.append(pick)
        logger.debug("%s", _line(pick))

    def recent(self, request_id: str | None = None) -> list[Pick]:
        """The last ones, of one request or of all, newest first."""
        return [p for p in reversed(self._recent) if request_id in (None, p.request_id)]


def _line(pick: Pick) -> str:
    return f"{pick.request_id}: {pick.message}"


def prefill_signer(keys: Keys, unix_clock: Callable[[], float]) -> SignPrefill:
    """Signs which prefill engine a decode engine is to ask."""

    def sign(prefill: EngineState, request_id: str, bound: Bound) -> str:
        return signed_header(keys()[0], _reference(prefill), request_id, unix_clock(), bound)

    return sign


def _reference(prefill: EngineState) -> PrefillRef:
    """The life of the engine that reported last; a later one refuses the room."""
    received, host = prefill.received, URL(prefill.endpoint.url).host
    assert received is not None
    assert received.report.bootstrap_port is not None
    assert host is not None
    return PrefillRef(
        host=host,
        port=received.report.bootstrap_port,
        epoch=received.report.epoch,
        name=prefill.endpoint.name[:_NAME_CHARACTERS],
    )
