"""Questions about a pool to the simulator: a separate program over pipes, because the operator does
not import the runtime."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Literal

from pydantic import ValidationError
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.wire.explain import Answer, Promise, Question, Requests

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.service.report.accelerator_verified import sized_for
from sluice_operator.service.rollout.planned_rollout import PlannedPool

SIMULATOR: Final = "sluice_simulator"
PROGRAM: Final = "sluice_simulator.explain"
TIMEOUT_SECONDS: Final = 300
TTFT_SECONDS: Final = 1.0
ITL_SECONDS: Final = 0.05
SHARE: Final = 0.95
"""Share of requests that must keep the promise, simulated where the service promises nothing."""


@dataclass(frozen=True)
class Load:
    """Requests to simulate, and the model they are for."""

    requests: Requests
    model_config: str | None = None
    """Text of the model's config.json."""


def question(spec: InferenceServiceSpec, pool: PlannedPool, load: Load) -> Question:
    """The simulator's question about the engines of a pool."""
    values = {name: entry.value for name, entry in pool.settings.items()}
    requests = values.get("max_running_requests")
    return Question(
        model_names=(spec.model.uri, spec.model.served_name),
        model_config_text=load.model_config,
        accelerator=sized_for(pool.config_map) or Accelerator(),
        chunk_size=int(values["chunk_size"]),
        page_size=int(values["page_size"]),
        max_prefill_tokens=int(values["max_prefill_tokens"]),
        cuda_graph_max_batch=int(values["cuda_graph_max_batch"]),
        max_running_requests=None if requests is None else int(requests),
        memory_percent=int(values["memory_percent"]),
        has_fp8_pages=values["kv_cache_dtype"] != "auto",
        requests=load.requests,
        promise=promise_of(spec),
    )


def promise_of(spec: InferenceServiceSpec) -> Promise:
    """The promise of the service; an assumed one where it has none."""
    slo = spec.slo
    ttft = slo.ttft_milliseconds / 1000 if slo and slo.ttft_milliseconds else TTFT_SECONDS
    itl = slo.itl_milliseconds / 1000 if slo and slo.itl_milliseconds else ITL_SECONDS
    share = float(slo.percentile) / 100 if slo else SHARE
    assumed = list[Literal["ttft", "itl"]]()
    if slo is None or slo.ttft_milliseconds is None:
        assumed.append("ttft")
    if slo is None or slo.itl_milliseconds is None:
        assumed.append("itl")
    return Promise(ttft_seconds=ttft, itl_seconds=itl, share=share, assumed=tuple(assumed))


def ask(about: Question) -> Answer:
    """The simulator's answer; where there is none, `missing` says why."""
    if about.accelerator.is_cpu:
        return _missing(
            "no figures for CPUs, which differ too much: sluice simulate --cost FILE, with a cost "
            "model fitted to yours"
        )
    if find_spec(SIMULATOR) is None:
        return _missing(
            "the simulator is not installed; it comes with the extra `simulate`: "
            "in a checkout, scripts/setup or: pip install '.[operator,simulate]'"
        )
    command, text = [sys.executable, "-m", PROGRAM], about.model_dump_json(by_alias=True)
    try:
        done = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _missing(f"the simulation took more than {TIMEOUT_SECONDS} s")
    try:
        return Answer.model_validate_json(done.stdout)
    except ValidationError:
        return _missing(f"{PROGRAM} ended with {done.returncode}, see above")


def _missing(why: str) -> Answer:
    return Answer(cost_source="", kv_pool_tokens=0, missing=why)
