"""What `sluice explain` asks the simulator, and what it hears: the two are programs of their own.

Types alone; the simulator decides what an arrangement can bear, the command what to say of it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice_contract.base import ContractModel
from sluice_contract.config.accelerators import Accelerator

ArrangementName = Literal["whole", "chunked", "mixed", "paced", "apart"]
"""Whole prompts; chunks; chunks in the steps of running requests; chunks chosen to keep the time
between tokens; prefill and decode on GPUs of their own."""


class Requests(ContractModel):
    """What clients send, on average."""

    prompt_tokens: int = Field(ge=1, le=1_048_576)
    answer_tokens: int = Field(ge=1, le=1_048_576)


class Promise(ContractModel):
    """What an arrangement must keep, for a share of the requests and of the gaps."""

    ttft_seconds: float = Field(gt=0)
    itl_seconds: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)


class Question(ContractModel):
    """One engine's accelerator and sizes, its model, and the load to simulate."""

    model_names: tuple[str, ...]
    """Under which the model may be known: its URI, its served name."""
    model_config_text: str | None = None
    """Its config.json, where there is one."""
    accelerator: Accelerator
    chunk_size: int
    page_size: int
    max_prefill_tokens: int
    cuda_graph_max_batch: int
    max_running_requests: int | None = None
    """None: an engine chooses it at its start, from its KV pool."""
    memory_percent: int
    has_fp8_pages: bool = False
    """Keys and values have 8 bits (`kvCacheDtype`)."""
    requests: Requests
    promise: Promise


class Arrangement(ContractModel):
    """What two engines bear, arranged in one way."""

    name: ArrangementName
    requests_per_second: float
    """Up to which the promise is kept, of both together; 0: at no rate that was tried."""
    ttft_seconds: float
    """At that rate, of the promised share, as is the next."""
    itl_seconds: float


class Answer(ContractModel):
    """What was simulated, and how it went."""

    cost_source: str
    """Where the times of a step come from, for a person."""
    kv_pool_tokens: int
    max_running_requests: int | None = None
    """The question's, else what an engine would choose; None where nothing could be simulated."""
    arrangements: tuple[Arrangement, ...] = ()
    missing: str | None = None
    """Why nothing could be simulated, for a person."""
