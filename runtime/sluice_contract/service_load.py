"""The service's load: what a router answers on `GET /load`, one summary for the autoscaler.

Each row carries the engine's own report and its age by the router's clock, so that a reader can
leave out what is stale without trusting the clocks of the engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from sluice_contract.base import ContractModel
from sluice_contract.load import LoadReport

EngineCondition = Literal["ready", "unready", "draining", "failing"]
"""Whether the router gives an engine new requests (`ready`), or why it does not."""


class EngineLoad(ContractModel):
    """One engine as the router sees it."""

    name: str
    """The pod's name, or the URL of an engine that has none."""
    url: str
    condition: EngineCondition
    inflight_requests: int
    """Requests that this router is having served by the engine."""
    report: LoadReport | None = None
    report_age_seconds: float | None = None
    """Since the report arrived, by the router's clock; absent with the report."""


class ServiceLoad(ContractModel):
    """All engines of a service, and what waits in this router."""

    draining: bool
    """The router itself is leaving: ask another."""
    discovered: bool
    """Whether the list of engines was read; an empty list before that means nothing."""
    waiting_requests: int
    """Requests held by this router because no engine is usable."""
    engines: tuple[EngineLoad, ...]
    picks: Mapping[str, int] = Field(default_factory=dict)
    """Requests given to an engine or a pair since this router's start, by why it was that one."""
    last_pick: str | None = None
    """The last of them: the request's id, the engines and their loads, for people."""
