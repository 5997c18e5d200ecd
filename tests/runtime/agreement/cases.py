"""How an engine may be set up without its answers changing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sluice_contract.config.engine import AttentionBackend, KvCacheDtype, WeightDType
from sluice_kernels import native
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.scheduler.pacing import LayerSplit
from sluice_runtime.wire.messages import Generate

from tests.runtime.agreement.oracle import TOLERANCE, Oracle, assert_agrees
from tests.runtime.harness import Run, engine_config, generate, run_engine

KV_HEADS = 2
"""Of every model here: threads that divide them compute a shard each."""
OPERATOR_BY_OPERATOR = (
    "qwen2",
    "qwen3_moe",
    "mixtral",
    "glm4",
    "olmo2",
    "gemma3_text",
    "gpt_oss",
)
"""Beginnings of kinds with parts that the kernel of all layers does not know."""
CLEAR_TOKENS = 100
"""A run in which fewer tokens had a clear margin would show little."""


@dataclass(frozen=True)
class Case:
    """One way to run requests. `pool_tokens` None: as many as they can use."""

    kind: str = "qwen3"
    page_size: int = 16
    chunk_size: int = 64
    mixed: bool = True
    pool_tokens: int | None = None
    chunk_sizes: tuple[int, ...] = ()
    """Budgets that the steps have in turn, instead of `chunk_size`."""
    prefix_cache: bool = True
    overlap: bool = False
    backend: AttentionBackend = "auto"
    """auto: the compiled kernels, where they were built."""
    threads: int = 1
    policy: str = "fcfs"
    max_running_requests: int = 32
    drafts: int = 0
    """At most, of a row and step."""
    split: tuple[int, int] | None = None
    """Tokens of a chunk, and layers of a group in which it is computed."""
    host_memory: str = ""
    """Of a host cache; empty: there is none."""
    weights: WeightDType = "auto"
    pages: KvCacheDtype = "auto"

    def __str__(self) -> str:
        pool = f"pool{self.pool_tokens}" if self.pool_tokens else "roomy"
        mixing = "mixed" if self.mixed else "apart"
        chunk = "+".join(map(str, self.chunk_sizes or (self.chunk_size,)))
        more = "" if self.prefix_cache else "-uncached"
        more += "-overlap" if self.overlap else ""
        more += f"-{self.backend}" if self.backend else ""
        more += f"-threads{self.threads}" if self.threads > 1 else ""
        more += f"-{self.policy}" if self.policy != "fcfs" else ""
        more += f"-drafts{self.drafts}" if self.drafts else ""
        more += "-split{}in{}".format(*self.split) if self.split else ""
        more += f"-host{self.host_memory}" if self.host_memory else ""
        more += f"-{self.weights}" if self.weights != "auto" else ""
        more += f"-{self.pages}" if self.pages != "auto" else ""
        return f"{self.kind}-page{self.page_size}-chunk{chunk}-{mixing}-{pool}{more}"


def random_requests(count: int, longest: int, answer: int, seed: int = 11) -> list[Generate]:
    """Prompts of 1 to `longest` bytes, answers of 1 to `answer` tokens."""
    draw = random.Random(seed)
    return [
        generate(
            f"r{index}",
            [draw.randrange(256) for _ in range(draw.randint(1, longest))],
            draw.randint(1, answer),
        )
        for index in range(count)
    ]


def repeating_requests(count: int, longest: int, answer: int) -> list[Generate]:
    """Prompts that repeat their first tokens, so that there is something to draft."""
    return [
        msgspec.structs.replace(
            request, prompt_ids=(request.prompt_ids[:9] * longest)[: len(request.prompt_ids)]
        )
        for request in random_requests(count, longest, answer)
    ]


def check(
    case: Case,
    folder: Path,
    oracle: Oracle,
    requests: Sequence[Generate],
    share: float = TOLERANCE,
) -> Run:
    """Compares every token, and sees to it that what the case is about really happened."""
    run = compare(case, folder, oracle, requests, share)
    assert (run.cuts > 0) == (case.chunk_size > 0), "no prompt was cut, or one that must not be"
    mixed = run.modes["MIXED"] + run.modes["SPLIT_PREFILL"]
    assert (mixed > 0) == case.mixed, "no forward was mixed, or one that must not be"
    assert (run.retractions > 0) == (case.pool_tokens is not None)
    assert (run.drafted_tokens > run.accepted_tokens > 0) == (case.drafts > 0)
    return run


def compare(
    case: Case,
    folder: Path,
    oracle: Oracle,
    requests: Sequence[Generate],
    share: float = TOLERANCE,
) -> Run:
    """Runs the case, and compares every token."""
    run = run_case(case, folder, requests)
    assert assert_agrees(oracle, requests, run, share) > CLEAR_TOKENS
    return run


def run_case(case: Case, folder: Path, requests: Sequence[Generate]) -> Run:
    """With a shuffled allocator and poisoned pages."""
    pool = case.pool_tokens or roomy(requests, case.page_size)
    config = engine_config(
        str(folder),
        dtype="float32",
        page_size=case.page_size,
        chunk_size=case.chunk_size,
        mixed_chunk=case.mixed,
        kv_pool_tokens=pool,
        prefix_cache=case.prefix_cache,
        reserve_percent=10 if case.pool_tokens else 100,
        threads=case.threads,
        scheduling_policy=case.policy,
        max_running_requests=case.max_running_requests,
        attention_backend=case.backend,
        speculation={"method": "NGram", "tokens": case.drafts} if case.drafts else None,
        weight_dtype=case.weights,
        kv_cache_dtype=case.pages,
        host_cache={"memory": case.host_memory} if case.host_memory else None,
    )
    pages = pool // case.page_size
    order = random.Random(3).sample(range(pages), pages)
    # With a host cache pages are copied out after they are free, and before others write to them.
    hooks = EngineHooks(order, poison_freed_pages=not case.host_memory)
    run = run_engine(
        config,
        requests,
        hooks=hooks,
        chunk_sizes=case.chunk_sizes,
        overlap=case.overlap,
        split=LayerSplit(*case.split) if case.split else None,
    )
    assert (run.modes["SPLIT_PREFILL"] > 0) == (case.split is not None)
    assert (run.launched_ahead > 0) == case.overlap
    compiled = case.backend == "auto" and native.load() is None
    known = not case.kind.startswith(OPERATOR_BY_OPERATOR) and case.pages == "auto"
    dealt_out = compiled and KV_HEADS % case.threads == 0 and known
    assert run.layers == ("ShardedStack" if dealt_out else "PlainStack")
    return run


def roomy(requests: Sequence[Generate], page_size: int) -> int:
    """Tokens of a pool that holds all of them at once."""
    tokens = [len(one.prompt_ids) + one.max_tokens + page_size for one in requests]
    return sum(tokens) // page_size * page_size
