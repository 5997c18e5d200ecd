"""The load report: what an engine answers on `GET /load`.

Cheap to make, read by the router (least loaded) and the autoscaler. Prometheus is for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from sluice_contract.base import ContractModel
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.kv_transfer import KvBackend, KvFingerprint

MAX_COUNT: Final = 2**53
"""Far beyond any count, and exact in a float, as which readers compute with it."""
MIN_PROMPT_SHARE: Final = 0.1
"""Least share of a step's time that its prompt tokens are taken to need: a measurement below it is
not believed.
"""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


_PART: Final = ConfigDict(alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False)
"""How pydantic reads and writes the parts of a `LoadReport`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverQueues:
    """Lengths, in requests, of the four hand-over queues; all 0 in the mixed role."""

    __pydantic_config__: ClassVar = _PART

    bootstrap: Count = 0
    """Prefill engines: rooms whose prompt is not computed; each is queued or running, too."""
    inflight: Count = 0
    """Prefill engines: computed, and held for the reader; neither queued nor running."""
    prealloc: Count = 0
    """Decode engines: without pages; queued, too."""
    transfer: Count = 0
    """Decode engines: with pages, without the prompt; running, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """An engine's work, as the engine counts and measures it: one value from there through load
    report and routers to the autoscaler. Totals count since the report's epoch began."""

    __pydantic_config__: ClassVar = _PART

    queued_requests: Count = 0
    queued_tokens: Count = 0
    """Prompt tokens not computed yet, of waiting and of partly prefilled requests."""
    queued_work_seconds: float = 0.0
    """Predicted seconds to compute `queued_tokens` at the measured prefill rate; 0 when unknown."""
    running_requests: Count = 0
    kv_pages_total: Count = 0
    kv_pages_free: Count = 0
    kv_pages_evictable: Count = 0
    """Pages of cached prefixes that no request uses."""
    queues: HandoverQueues = HandoverQueues()
    prefill_tokens_per_second: float | None = None
    """Rate of prompts while some are computed: tokens by the whole time of their steps, with what
    decodes beside them. It predicts how long prompts wait; None while unknown."""
    marginal_prefill_tokens_per_second: float | None = None
    """The inverse of what a prompt token adds to a step that decodes anyway: counts the work of
    prompts where that of answers is counted apart. At most 1 / `MIN_PROMPT_SHARE` of the rate
    above; None while unknown."""
    itl_seconds: float | None = None
    """Mean time between two steps that gave an answer tokens, in the last ten seconds: drafts that
    are kept do not shorten it. None while no answer ran."""
    prompt_tokens_total: Count = 0
    """Tokens of received prompts that missed the prefix cache."""
    generated_tokens_total: Count = 0
    finished_requests_total: Count = 0

    @property
    def requests(self) -> int:
        """Requests in the engine, each counted once: those in the queues of the hand-over are
        queued or running, too, except those that are held for their reader."""
        queues = self.queues
        handed_over = queues.bootstrap + queues.prealloc + queues.transfer
        return max(self.queued_requests + self.running_requests, handed_over) + queues.inflight

    @property
    def kv_pages_available(self) -> int:
        """Pages that a request could get now."""
        return self.kv_pages_free + self.kv_pages_evictable

    @property
    def kv_used(self) -> float:
        """Share of the pages that requests hold."""
        total = self.kv_pages_total
        return (total - self.kv_pages_available) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class SloCounts:
    """Requests of an engine with an slo since its epoch began, each once: answers that ended, and
    requests whose first token is late, even while they wait."""

    __pydantic_config__: ClassVar = _PART

    requests: Count
    in_time: Count
    """Requests that kept the slo."""
    late: Count
    """Requests without a first token that are later than the slo allows, now."""


MEASURED_BYTES: Final = 16 << 20
"""Read before a rate is given: the first reads open connections."""


class HandoverWire(ContractModel):
    """What carries KV pages to or from an engine."""

    model_config = ConfigDict(allow_inf_nan=False)

    backend: KvBackend
    protocol: Literal["tcp", "rdma"]
    gigabytes_per_second: float | None = Field(default=None, ge=0)
    """Mean rate of a decode engine's reads since its start; absent until it has read
    `MEASURED_BYTES`."""


def read_rate(read_bytes: int, read_seconds: float) -> float | None:
    """GB/s of one read, with two digits; None until enough was read."""
    if read_bytes < MEASURED_BYTES or read_seconds <= 0:
        return None
    return float(f"{read_bytes / read_seconds / 1e9:.2g}")


ROUTER_HEADER: Final = "X-Sluice-Router"
"""Header of a request for a load report: the router's name, as `router_name` writes it."""
MAX_INTERVAL_SECONDS: Final = 60.0


def router_name(draw: int, interval_seconds: float) -> str:
    """A router's name, which tells it apart from others, and says how often it asks."""
    return f"{draw:016x};{interval_seconds:g}"


def router_seconds(name: str) -> float:
    """Time for which a router counts after it has asked: three intervals of its requests."""
    try:
        seconds = float(name.partition(";")[2])
    except ValueError:
        seconds = 1.0
    return 3 * min(max(seconds, 0.0), MAX_INTERVAL_SECONDS)


class LoadReport(ContractModel):
    """One engine's load at `time_seconds`. NaN and infinity are refused: they would
    go on to all who read the load of a service."""

    model_config = ConfigDict(allow_inf_nan=False)

    role: Role
    epoch: str
    """Differs after every restart of the engine process."""
    revision: str | None = None
    """Revision of the engine's pool; absent outside a cluster."""
    kv_fingerprint: KvFingerprint | None = None
    """Absent where it hands no KV cache over."""
    accelerator: Accelerator | None = None
    """What the engine computes on, as it has found it; absent on CPUs."""
    time_seconds: float
    """Unix time at which the engine process made the report."""
    draining: bool
    max_running_requests: Count
    max_queued_requests: Count
    page_size_tokens: Count
    bootstrap_port: int | None = None
    """Port of a prefill engine to which decode engines connect."""
    handover_version: int | None = None
    """Version of the protocol between prefill and decode engines, which must be equal. Absent in
    role mixed."""
    handover: HandoverWire | None = None
    """Absent in role mixed."""
    private_calls: bool = False
    """Whether it takes private calls, and so goes on with answers that another engine began."""
    answer_identity: str | None = None
    """Opaque: an answer goes on only between engines that say the same."""
    figures: EngineFigures
    slo: SloCounts | None = None
    """Absent without an slo and in role prefill."""
    routers: Count = 0
    """Routers that ask for the load, by `ROUTER_HEADER`."""
    adapters: dict[str, str] = Field(default_factory=dict)
    """Loaded adapters: by name, a key that is equal where their files are."""
    adapters_failed: dict[str, str] = Field(default_factory=dict)
    """Adapters that could not be loaded: by name, why."""
    adapters_file: str | None = None
    """`adapters_digest` of the file that the engine has followed, as far as it could."""


EngineCondition = Literal["ready", "unready", "draining", "failing"]
"""Whether an engine gets new requests (`ready`), or why not."""


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


class Ledger(ContractModel):
    """What became of the requests for completions that a router got since its start: each is
    counted in one field. It is answered on `GET /ledger`."""

    answered: Count = 0
    """The whole answer was sent, and no engine broke off."""
    resumed: Count = 0
    """The whole answer was sent; another engine had gone on with it, or began it anew."""
    refused: Count = 0
    """Not served, and the client was told why: 4xx, or 503 before an answer began."""
    abandoned: Count = 0
    """The client left, or did not read."""
    lost: Count = 0
    """Accepted and not answered: 500, 502 or 504, or an answer that broke off and that no engine
    could end."""
    open: Count = 0
    """Not ended yet."""


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
