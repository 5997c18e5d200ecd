"""The engine on a GPU agrees with transformers in float64, however a step is cut, mixed, captured,
launched ahead or retracted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from sluice_contract.config.engine import AttentionBackend
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.scheduler.pacing import LayerSplit

from tests.gpu.device import accelerator, write_model
from tests.runtime.agreement.cases import random_requests, repeating_requests, roomy
from tests.runtime.agreement.oracle import Oracle, assert_agrees
from tests.runtime.harness import engine_config, run_engine
from tests.runtime.layers.test_attention_flashinfer import fa3_missing
from tests.runtime.model.quantised_checkpoints import write_mxfp4, write_quantised

pytestmark = pytest.mark.gpu

SHARE = {"float32": 2e-5, "bfloat16": 3e-2}
"""Of the spread of an answer's logits. bfloat16 has 8 bits: each operator rounds to 0.4 %, and
three layers have some twenty one after the other."""
CLEAR_TOKENS = {"float32": 100, "bfloat16": 10}


@dataclass(frozen=True)
class Case:
    dtype: str
    heads: str = "group4-dim128"
    page_size: int = 16
    chunk_size: int = 64
    mixed: bool = True
    pool_tokens: int | None = None
    overlap: bool = True
    graphs: int = 0
    backend: AttentionBackend = "auto"
    drafts: int = 0
    split: LayerSplit | None = None

    def __str__(self) -> str:
        kind = "graphs" if self.graphs else self.dtype
        kind += "-fa3" if self.backend == "flashinfer-fa3" else ""
        kind += f"-drafts{self.drafts}" if self.drafts else ""
        parts = [kind, self.heads, f"page{self.page_size}", f"chunk{self.chunk_size}"]
        parts += ["split"] if self.split else []
        parts += ["mixed" if self.mixed else "apart", "ahead" if self.overlap else "one-by-one"]
        return "-".join([*parts, f"pool{self.pool_tokens or 0}"])


def cases(dtype: str) -> list[Case]:
    """The plain one first."""
    return [
        Case(dtype, overlap=False),
        Case(dtype),
        Case(dtype, "group2-dim64"),
        Case(dtype, "windows-dim256"),
        Case(dtype, "sinks-dim64"),
        Case(dtype, chunk_size=-1, mixed=False),
        Case(dtype, page_size=1, chunk_size=16),
        Case(dtype, chunk_size=32, pool_tokens=256),
    ]


FA3 = [
    Case("bfloat16", backend="flashinfer-fa3"),
    Case("bfloat16", chunk_size=-1, mixed=False, backend="flashinfer-fa3"),
]
"""These prompts are too short for the rule to take it."""
GRAPHS = [
    Case("bfloat16", graphs=16),
    Case("bfloat16", "group2-dim64", graphs=16),
    Case("bfloat16", "windows-dim256", graphs=16),
    Case("bfloat16", "sinks-dim64", graphs=16),
    Case("bfloat16", "sinks-dim64-mxfp4", graphs=16),
    Case("bfloat16", "experts-dim128-fp8", graphs=16),
    Case("bfloat16", page_size=1, graphs=4),
    Case("bfloat16", chunk_size=32, pool_tokens=256, graphs=16),
    Case("bfloat16", drafts=4, graphs=16),
    Case("bfloat16", page_size=1, chunk_size=16, drafts=4, graphs=16),
    Case("bfloat16", chunk_size=16, split=LayerSplit(32, 1), graphs=16),
]


@cache
def model(heads: str, dtype: str) -> tuple[Path, Oracle]:
    """Weights are saved in the type in which the engine computes: rounding them is no error."""
    folder = write_model(Path(mkdtemp()), heads, getattr(torch, dtype))
    *_, last = heads.split("-")
    if last not in ("mxfp4", "fp8"):
        return folder, Oracle(folder)
    quantised, meant = Path(mkdtemp()), Path(mkdtemp())
    if last == "mxfp4":
        write_mxfp4(folder, quantised, meant)
    else:
        write_quantised(folder, "fp8-large-blocks", quantised, meant)
    return quantised, Oracle(meant)


@pytest.mark.parametrize("case", [*cases("float32"), *cases("bfloat16"), *FA3, *GRAPHS], ids=str)
def test_answers_are_those_of_transformers(case: Case) -> None:
    if case.backend == "flashinfer-fa3" and (missing := fa3_missing(128)):
        pytest.skip(missing)
    folder, oracle = model(case.heads, case.dtype)
    long = case.pool_tokens is None
    make = repeating_requests if case.drafts else random_requests
    requests = make(16, 120 if long else 60, 60 if case.drafts else 24 if long else 120)
    config = engine_config(
        str(folder),
        accelerator=accelerator(),
        dtype=case.dtype,
        page_size=case.page_size,
        chunk_size=case.chunk_size,
        mixed_chunk=case.mixed,
        kv_pool_tokens=case.pool_tokens or roomy(requests, case.page_size),
        reserve_percent=100 if long else 10,
        cuda_graph_max_batch=case.graphs,
        attention_backend=case.backend,
        speculation={"method": "NGram", "tokens": case.drafts} if case.drafts else None,
    )
    hooks = EngineHooks(poison_freed_pages=True)
    run = run_engine(config, requests, hooks=hooks, overlap=case.overlap, split=case.split)
    clear = assert_agrees(oracle, requests, run, SHARE[case.dtype])
    assert clear > CLEAR_TOKENS[case.dtype], f"only {clear} tokens had a clear margin"
    assert (run.retractions > 0) == (not long)
    assert (run.accepted_tokens > 0) == (case.drafts > 0)
    assert (run.modes["SPLIT_PREFILL"] > 0) == (case.split is not None)
    assert (run.graph_steps > 0) == bool(case.graphs), "captured and replayed, or neither"
