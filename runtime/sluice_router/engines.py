"""What the router knows about one engine, as frozen values.

`Endpoint` comes from discovery; `EngineState` adds the load report and the router's own
experience.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvFingerprint
from sluice_contract.wire.load import EngineCondition, LoadReport

FIRST_BREAK_SECONDS = 0.25
LONGEST_BREAK_SECONDS = 8.0
PUBLIC_SECONDS = 60.0
"""How long an engine that has refused a private call gets none."""


class Phase(StrEnum):
    """Where an endpoint is in its life, by its EndpointSlice conditions."""

    READY = "ready"
    UNREADY = "unready"
    TERMINATING = "terminating"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine's address. A pod that comes back under the same address is another endpoint."""

    name: str
    url: str
    role: Role
    phase: Phase

    @property
    def key(self) -> str:
        """Identity across updates."""
        return f"{self.name}@{self.url}"


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """A load report, when it arrived, and how many of our requests it counts."""

    report: LoadReport
    received_seconds: float
    own_inflight: int
    kind: str | None = field(init=False)
    """Equal of two engines that can hand over to each other; None: it does not say. A text, since
    each pick compares those of all engines."""

    def __post_init__(self) -> None:
        found = self.report.kv_fingerprint
        version = self.report.handover_version
        kind = None if found is None else f"{version} {found.model_dump_json()}"
        object.__setattr__(self, "kind", kind)


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine: its endpoint, its last report, and this router's experience with it."""

    endpoint: Endpoint
    inflight: int = 0
    received: ReceivedReport | None = None
    failures: int = 0
    """Failed attempts since the last answer."""
    failed_until_seconds: float = 0.0
    unreachable: bool = False
    """Whether the last attempt to ask for a load report got no connection."""
    picked_seconds: float = 0.0
    """When it was last picked; of equal engines the one picked longer ago is next."""
    refused_private_seconds: float | None = None
    """When it last refused a private call, not long ago: its key, or its clock, is another."""

    @property
    def key(self) -> str:
        """The endpoint's."""
        return self.endpoint.key

    @property
    def fingerprint(self) -> KvFingerprint | None:
        """By its last report, however old: it does not change while the engine lives."""
        return self.received.report.kv_fingerprint if self.received is not None else None

    @property
    def hands_over(self) -> str | None:
        """Equal of two engines that can hand over to each other; None: not known yet."""
        return self.received.kind if self.received is not None else None

    @property
    def goes_on(self) -> bool:
        """Whether it goes on with answers that another engine began; false until a report says.
        Prefill engines take no part in that."""
        if self.endpoint.role is Role.PREFILL:
            return True
        takes = self.received is not None and self.received.report.private_calls
        return takes and self.refused_private_seconds is None

    @property
    def binds_headers(self) -> bool:
        """Whether it takes headers that are signed for a path and a body; false until a report
        says."""
        return self.received is not None and self.received.report.bound_headers

    def adapter_key(self, name: str) -> str | None:
        """Equal where adapters are; None: its last report had none of this name."""
        return self.received.report.adapters.get(name) if self.received is not None else None

    def ends_answers_of(self, identity: str) -> bool:
        """Whether it can have a part in an answer that an engine with this identity began."""
        if self.endpoint.role is Role.PREFILL:
            return True  # a decode engine with this identity takes only pages that fit
        known = self.received.report.answer_identity if self.received is not None else None
        return self.goes_on and known == identity

    @property
    def bootstrap_port(self) -> int | None:
        """Of a prefill engine: where decode engines connect, by its last report."""
        return self.received.report.bootstrap_port if self.received is not None else None

    def fresh(self, now: float, stale_seconds: float) -> ReceivedReport | None:
        """The report, unless it is older than `stale_seconds`."""
        received = self.received
        if received is None or now - received.received_seconds > stale_seconds:
            return None
        return received


def with_adapter(engines: Sequence[EngineState], name: str) -> Sequence[EngineState]:
    """Those to ask for an adapter. Where there are two pools, all of them have the very same one,
    so that a prompt's engine computes with what its reader decodes with; none: the pools have none
    alike. Where no engine has it, all: it is the model, or an engine says what there is."""
    keys = {one.key: found for one in engines if (found := one.adapter_key(name)) is not None}
    if not keys:
        return engines
    pools = [
        {keys.get(one.key) for one in engines if one.endpoint.role is role}
        for role in {one.endpoint.role for one in engines}
    ]
    if len(pools) == 1:
        return [one for one in engines if one.key in keys]
    alike = Counter(key for key in keys.values() if all(key in pool for pool in pools))
    key = max(alike, key=lambda each: (alike[each], each), default=None)
    return [one for one in engines if key is not None and keys.get(one.key) == key]


def break_seconds(failures: int) -> float:
    """How long an engine gets no requests after so many failures in a row: doubling."""
    return min(FIRST_BREAK_SECONDS * 2.0 ** min(failures - 1, 16), LONGEST_BREAK_SECONDS)


def condition(engine: EngineState, now: float) -> EngineCondition:
    """Whether the engine gets new requests, or why it does not."""
    if engine.endpoint.phase is Phase.TERMINATING:
        return "draining"
    if engine.received is not None and engine.received.report.draining:
        return "draining"
    if engine.endpoint.phase is Phase.UNREADY:
        return "unready"
    failing = engine.unreachable or engine.failed_until_seconds > now
    return "failing" if failing else "ready"
