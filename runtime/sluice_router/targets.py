"""Whom a request is sent to: one engine, or in a service of two pools a decode engine and the
prefill engine that computes its prompt.

Binds the pure picks to random numbers, and names a prefill engine to a decode engine. Knows no
network.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice_contract.handover import PrefillRef, signed_header
from sluice_contract.labels import Role
from yarl import URL

from sluice_router.engines import EngineState
from sluice_router.pick import Draw, pick, pick_pair

_NAME_CHARACTERS = 253
"""Of an engine's name in a signed header; a URL, where there is no pod, may be longer."""


@dataclass(frozen=True, slots=True)
class Target:
    """The engine that is asked, and the one that computes the prompt for it, if that is another."""

    engine: EngineState
    prefill: EngineState | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its engines."""
        return (self.engine.key, *((self.prefill.key,) if self.prefill else ()))

    @property
    def name(self) -> str:
        """For people."""
        name = self.engine.endpoint.name
        return f"{name} prefill={self.prefill.endpoint.name}" if self.prefill else name


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """Whom to ask, or why there is nobody."""

    target: Target | None
    message: str


class Choose(Protocol):
    """Chooses among engines; `tried`: keys of those that are left out. `generates`: whether the
    request has a prompt."""

    def __call__(
        self,
        engines: Sequence[EngineState],
        now: float,
        tried: Collection[str],
        *,
        generates: bool,
    ) -> TargetChoice: ...


def chooser(roles: Collection[Role], stale_seconds: float, source: random.Random) -> Choose:
    """How a service with pools of these roles is asked."""

    def draw() -> Draw:
        return Draw(source.random(), source.random())

    def one(
        engines: Sequence[EngineState], now: float, tried: Collection[str], role: Role
    ) -> TargetChoice:
        choice = pick(engines, now, draw(), stale_seconds=stale_seconds, role=role, tried=tried)
        message = choice.message if role is Role.MIXED else f"{role}: {choice.message}"
        return TargetChoice(Target(choice.engine) if choice.engine else None, message)

    def mixed(
        engines: Sequence[EngineState], now: float, tried: Collection[str], *, generates: bool
    ) -> TargetChoice:
        return one(engines, now, tried, Role.MIXED)

    def pair(
        engines: Sequence[EngineState], now: float, tried: Collection[str], *, generates: bool
    ) -> TargetChoice:
        if not generates:
            return one(engines, now, tried, Role.DECODE)
        draws = (draw(), draw())
        found = pick_pair(engines, now, draws, stale_seconds=stale_seconds, tried=tried)
        if found.decode is None:
            return TargetChoice(None, found.message)
        return TargetChoice(Target(found.decode, found.prefill), found.message)

    return pair if Role.DECODE in roles else mixed


def prefill_signer(
    key: bytes, unix_clock: Callable[[], float]
) -> Callable[[EngineState, str], str]:
    """Signs, for the request with an id, which prefill engine a decode engine is to ask."""

    def sign(prefill: EngineState, request_id: str) -> str:
        return signed_header(key, _reference(prefill), request_id, unix_clock())

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
