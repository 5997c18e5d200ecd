"""Questions of `sluice explain` to the simulator, and the answers: the two are separate programs.

Holds types only. The simulator decides what load an arrangement can bear; the command words the
report.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice_contract.base import ContractModel
from sluice_contract.config.accelerators import Accelerator

ArrangementName = Literal["whole", "chunked", "mixed", "paced", "apart"]
"""`whole`: whole prompts; `chunked`: chunks; `mixed`: chunks in the steps of running requests;
`paced`: chunks sized to keep the time between tokens; `apart`: prefill and decode on separate
GPUs."""


class Requests(ContractModel):
    """Requests that clients send, on average."""

    prompt_tokens: int = Field(ge=1, le=1_048_576)
    answer_tokens: int = Field(ge=1, le=1_048_576)


class Promise(ContractModel):
    """Latencies that an arrangement must keep for `share` of the requests (TTFT) and of the gaps
    between tokens (ITL)."""

    ttft_seconds: float = Field(gt=0)
    itl_seconds: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)
    assumed: tuple[Literal["ttft", "itl"], ...] = ()
    """Latencies that the service does not promise. The simulator raises them where a request that
    is alone exceeds them."""


class Question(ContractModel):
    """One engine's accelerator and sizes, its model, and the load to simulate."""

    model_names: tuple[str, ...]
    """Names of the model: its URI, its served name."""
    model_config_text: str | None = None
    """Text of its config.json, where there is one."""
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
    """Performance of two engines, arranged in one way."""

    name: ArrangementName
    requests_per_second: float
    """Highest rate, of both engines together, that keeps the promise; 0: no tried rate does."""
    ttft_seconds: float
    """TTFT at that rate that the promised share of requests stays within."""
    itl_seconds: float


class Answer(ContractModel):
    """Results of a simulation, and what they are based on."""

    cost_source: str
    """Where the times of a step come from, for a person."""
    kv_pool_tokens: int
    max_running_requests: int | None = None
    """Requests that run at once: as in the question, else as an engine would choose; None where
    nothing could be simulated."""
    promise: Promise | None = None
    """The promise that was simulated; None where nothing could be simulated."""
    arrangements: tuple[Arrangement, ...] = ()
    missing: str | None = None
    """Why nothing could be simulated, for a person."""
