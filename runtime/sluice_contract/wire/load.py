"""The load report: what an engine answers on `GET /load`.

It is cheap to make. The router reads it to find the least loaded engine, and the autoscaler to
scale; Prometheus metrics are for people.
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
"""Largest count: far beyond real ones, and still exact as a float, in which readers compute."""
MIN_PROMPT_SHARE: Final = 0.1
"""Smallest believable fraction of a step's time that its prompt tokens need; lower measurements are
raised to it.
"""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, le=1e15)]


_PART: Final = ConfigDict(alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False)
"""Pydantic's configuration for the parts of a `LoadReport`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverQueues:
    """Lengths, in requests, of the four hand-over queues; all 0 in the mixed role."""

    __pydantic_config__: ClassVar = _PART

    bootstrap: Count = 0
    """Prefill engines: requests whose prompt is not computed yet; each also counts as queued or
    running."""
    inflight: Count = 0
    """Prefill engines: requests whose prompt is computed and held for the decode engine; neither
    queued nor running."""
    prealloc: Count = 0
    """Decode engines: requests without pages; each also counts as queued."""
    transfer: Count = 0
    """Decode engines: requests with pages whose prompt has not arrived; each also counts as
    running."""


Amounts = tuple[Amount, Amount, Amount, Amount, Amount]
"""One amount for each term of the engines' cost model of a step: the step itself, its prompt
tokens, pairs of a prompt token and a token that it attends to, decode rows, tokens of their
context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShapes:
    """Steps of one kind: with prompt tokens, or without."""

    __pydantic_config__: ClassVar = _PART

    steps: Count
    """Number of steps since the report's epoch began."""
    mean: Amounts
    """Mean shape of about the last hundred steps. Short steps weigh more: each counts by the
    inverse square of its duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What an engine's steps cost, as its cost model has learnt. Steps that verify drafts are not
    part of it, nor steps whose prompts are computed in groups of layers."""

    __pydantic_config__: ClassVar = _PART

    seconds: Amounts
    """Seconds that one of each amount takes."""
    decode: StepShapes | None = None
    """Steps without prompt tokens; None before there are enough."""
    prefill: StepShapes | None = None
    """Steps with prompt tokens, which may decode too; None before there are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """An engine's work, as the engine measures it; load report, routers and autoscaler pass on this
    one type. Totals count since the report's epoch began."""

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
    """Prompt tokens per second of the steps that compute prompts, including those steps' time for
    decoding. Predicts how long prompts wait; None while unknown."""
    marginal_prefill_tokens_per_second: float | None = None
    """Inverse of the time that a prompt token adds to a step that decodes anyway, for counting the
    work of prompts separately from that of answers. At most 1 / `MIN_PROMPT_SHARE` times
    `prefill_tokens_per_second`; None while unknown."""
    itl_seconds: float | None = None
    """Mean time, in the last ten seconds, between two steps that gave an answer tokens; accepted
    drafts do not shorten it. None while no answer ran."""
    costs: StepCosts | None = None
    """Cost of steps, for comparisons at equal work; None before there are enough steps of any
    kind."""
    prompt_tokens_total: Count = 0
    """Tokens of received prompts that missed the prefix cache."""
    generated_tokens_total: Count = 0
    finished_requests_total: Count = 0

    @property
    def requests(self) -> int:
        """Requests in the engine, each counted once: the queued, the running, and those that a
        prefill engine holds for a decode engine."""
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
    """Requests of an engine with an slo since its epoch began, each counted once: ended answers,
    and requests whose first token is late, even if they still wait."""

    __pydantic_config__: ClassVar = _PART

    requests: Count
    in_time: Count
    """Requests that kept the slo."""
    late: Count
    """Requests that are late now: they have no first token yet, and the slo's time has passed."""


MEASURED_BYTES: Final = 16 << 20
"""Bytes that must be read before a rate is reported, because the first reads open connections."""


class HandoverWire(ContractModel):
    """Backend and protocol that carry KV pages to or from an engine."""

    model_config = ConfigDict(allow_inf_nan=False)

    backend: KvBackend
    protocol: Literal["tcp", "rdma"]
    gigabytes_per_second: float | None = Field(default=None, ge=0)
    """Mean rate of a decode engine's reads since its start; absent until it has read
    `MEASURED_BYTES`."""


def read_rate(read_bytes: int, read_seconds: float) -> float | None:
    """Rate in GB/s, with two digits; None until `MEASURED_BYTES` were read."""
    if read_bytes < MEASURED_BYTES or read_seconds <= 0:
        return None
    return float(f"{read_bytes / read_seconds / 1e9:.2g}")


ROUTER_HEADER: Final = "X-Sluice-Router"
"""Header of a request for a load report: the router's name, as `router_name` writes it."""
MAX_INTERVAL_SECONDS: Final = 60.0


def router_name(draw: int, interval_seconds: float) -> str:
    """A router's name, which identifies it and says how often it polls."""
    return f"{draw:016x};{interval_seconds:g}"


def router_seconds(name: str) -> float:
    """Time after a router's poll for which the router counts as alive: three of its intervals."""
    try:
        seconds = float(name.partition(";")[2])
    except ValueError:
        seconds = 1.0
    return 3 * min(max(seconds, 0.0), MAX_INTERVAL_SECONDS)


class LoadReport(ContractModel):
    """One engine's load at `time_seconds`. NaN and infinity are refused, because they would spread
    to all readers of a service's load."""

    model_config = ConfigDict(allow_inf_nan=False)

    role: Role
    epoch: str
    """Differs after every restart of the engine process."""
    revision: str | None = None
    """Revision of the engine's pool; absent outside a cluster."""
    kv_fingerprint: KvFingerprint | None = None
    """KV fingerprint of the engine; absent if it hands no KV cache over."""
    accelerator: Accelerator | None = None
    """Accelerator that the engine has found; absent on CPUs."""
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
    """Backend and rate of the hand-over; absent in role mixed."""
    private_calls: bool = False
    """Whether the engine takes private calls, and so can continue answers that another engine
    began."""
    answer_identity: str | None = None
    """Opaque text: an answer can be continued only by an engine with an equal one."""
    figures: EngineFigures
    slo: SloCounts | None = None
    """Counts of requests that kept the slo; absent without an slo and in role prefill."""
    slo_ttft_seconds: Seconds | None = None
    """Longest time to the first token that keeps the slo; absent where `slo` is, and where the slo
    has no such limit."""
    routers: Count = 0
    """Number of routers that poll the load, identified by `ROUTER_HEADER`."""
    adapters: dict[str, str] = Field(default_factory=dict)
    """Keys of loaded adapters by name; a key is equal where the adapter's files are equal."""
    adapters_failed: dict[str, str] = Field(default_factory=dict)
    """Reasons why adapters could not be loaded, by name."""
    adapters_file: str | None = None
    """`adapters_digest` of the followed file in the version that the engine has applied as far as
    it could."""
    start: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds of the engine's start by phase; see `sluice_contract.wire.start`."""


EngineCondition = Literal["ready", "unready", "draining", "failing"]
"""Whether an engine gets new requests (`ready`), or why not."""


class EngineLoad(ContractModel):
    """One engine as the router sees it."""

    name: str
    """Name of the engine's pod; without a pod the engine's URL."""
    url: str
    condition: EngineCondition
    inflight_requests: int
    """Requests of this router that the engine is serving."""
    report: LoadReport | None = None
    report_age_seconds: float | None = None
    """Seconds since the report arrived, by the router's clock; absent without a report."""


class Ledger(ContractModel):
    """Outcomes of all requests for completions that a router got since its start; each request
    counts in one field. Served at `GET /ledger`."""

    answered: Count = 0
    """Requests whose whole answer was sent by one engine."""
    resumed: Count = 0
    """Requests whose whole answer was sent after another engine had continued or restarted it."""
    refused: Count = 0
    """Requests not served, with a reason for the client: 4xx, or 503 before an answer began."""
    abandoned: Count = 0
    """Requests whose client disconnected or did not read."""
    lost: Count = 0
    """Requests accepted but not answered: 500, 502 or 504, or an answer that broke off and that no
    engine could finish."""
    open: Count = 0
    """Requests that have not ended yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """Trials of one revision by one signal, in closed minutes. `bad` and `keys` are parts of
    `trials`."""

    __pydantic_config__: ClassVar = _PART

    trials: Count = 0
    """Minutes of keys that were not bad before: a key's requests of one minute are one trial."""
    bad: Count = 0
    """Trials in which the key turned bad; a key has one at most."""
    keys: Count = 0
    """Trials of keys that were seen for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCounts:
    """Trials of one revision, by what can be bad."""

    __pydantic_config__: ClassVar = _PART

    errors: TrialCounts = TrialCounts()
    """Bad: a request failed by the engine's fault."""
    late: TrialCounts = TrialCounts()
    """Bad: a first token was late. Requests without a time to the first token are no trials."""


class CanaryCounts(ContractModel):
    """Trials of the two revisions of a canary, as one router counts them: each request on the side
    that its key has, by its first attempt there."""

    model_config = ConfigDict(allow_inf_nan=False)

    epoch: str
    """Differs after every restart of the router, for each pair of revisions, and after each change
    of the percent; counts begin at 0 with it."""
    revision: str
    """New revision, as in the label of the pools' Services; of several labelled pools all of them,
    in the order of `sorted(Role)`, with dots between."""
    former: str
    """Former revision, written like `revision`."""
    percent: Annotated[int, Field(ge=0, le=100)]
    """Percent of the keys that belong to the new revision while these counts are made."""
    minutes: Count = 0
    """Closed minutes since the epoch began."""
    new_counts: SideCounts
    former_counts: SideCounts
    heavy_share: float | None = None
    """Largest share of one key in the new revision's requests of the last closed minute, 0 to 1;
    absent where no key has more than a quarter, or the requests are few."""
    recurs: bool = True
    """Whether any of the keys may recur, so that other routers may count it, too: it is of a
    session or a chat."""
    key_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the keys of both revisions that are counted: all, until they are more than the
    router holds."""


class ServiceLoad(ContractModel):
    """All engines of a service, and the requests that wait in this router."""

    draining: bool
    """Whether the router itself is draining; clients should ask another router."""
    discovered: bool
    """Whether the list of engines was read; an empty list before that means nothing."""
    waiting_requests: int
    """Requests held by this router because no engine is usable."""
    engines: tuple[EngineLoad, ...]
    picks: Mapping[str, int] = Field(default_factory=dict)
    """Requests given to an engine or a pair since this router's start, by the reason of the
    choice."""
    last_pick: str | None = None
    """Text about the latest choice: the request's id, the engines and their loads."""
    canary: CanaryCounts | None = None
    """Trials of both revisions; absent without a canary."""
