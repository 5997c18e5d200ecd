"""Advice on a service: which arrangements pay, by simulation, and hints from one table.

Pure. A verdict says whether a step beyond the simplest arrangement pays, and at which rate; rates
are of two engines together. Each hint has its own condition. The reasons are in
docs/explanation/batching.md, docs/how-to/long-prompts.md and
docs/how-to/split-prefill-from-decode.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from sluice_contract.config.accelerators import packs_weights
from sluice_contract.config.sizing import Value
from sluice_contract.wire.explain import Answer, Arrangement, ArrangementName

from sluice_operator.accelerators.node_requirements import unusual_spelling
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.cli.gpu_support import gpu_advice
from sluice_operator.cli.model_fit import ModelSizes, fit_advice
from sluice_operator.service.rollout.planned_rollout import PlannedPool

NOTICEABLE: Final = 1.1
"""Rates within this factor count as equal: they come from a coarse grid."""
STEADY_CHUNK_TOKENS: Final = 1024
"""Chunks up to here keep gaps small; larger ones are for throughput."""
Reason = Literal["Pays", "Costs", "NoDifference"]


@dataclass(frozen=True)
class Verdict:
    """Whether something pays for this model, these requests and this promise."""

    subject: str
    """Subject of the comparison, in a word: `chunking`, say."""
    reason: Reason
    message: str


def verdicts(answer: Answer) -> tuple[Verdict, ...]:
    """The verdicts, one for each comparison; none where nothing was simulated."""
    return tuple(_verdicts({arrangement.name: arrangement for arrangement in answer.arrangements}))


def _verdicts(arrangements: dict[ArrangementName, Arrangement]) -> Iterator[Verdict]:
    if not arrangements:
        return
    yield _verdict(
        "chunking",
        "with chunks",
        arrangements["chunked"],
        "with whole prompts",
        arrangements["whole"],
    )
    yield _verdict(
        "mixing", "with decode rows in the steps of prompts", arrangements["mixed"],
        "with steps of their own", arrangements["chunked"],
    )  # fmt: skip
    yield _verdict(
        "slo.itlMilliseconds", "with chunks chosen for the promise", arrangements["paced"],
        "with chunks of one size", arrangements["mixed"],
    )  # fmt: skip
    best = max(
        arrangements["paced"],
        arrangements["mixed"],
        key=lambda arrangement: arrangement.requests_per_second,
    )
    yield _verdict(
        "disaggregation", "with prefill and decode apart", arrangements["apart"],
        "with two mixed engines at their best", best,
    )  # fmt: skip


def _verdict(subject: str, how: str, new: Arrangement, else_how: str, old: Arrangement) -> Verdict:
    ours, theirs = new.requests_per_second, old.requests_per_second
    if ours == theirs == 0:
        text = f"neither {how} nor {else_how} is the promise kept at any rate that was tried"
        return Verdict(subject, "NoDifference", text)
    if ours > theirs * NOTICEABLE:
        begins = f"from {rate_text(theirs)} requests/s on, where it is no longer kept {else_how}"
        if theirs == 0:
            begins = f"at any load, as it is never kept {else_how}"
        return Verdict(subject, "Pays", f"{begins}; {how} it is kept up to {rate_text(ours)}")
    if ours * NOTICEABLE < theirs:
        kept = f"{how} the promise is kept up to {rate_text(ours)} requests/s"
        text = f"{kept}, {else_how} up to {rate_text(theirs)}"
        return Verdict(subject, "Costs", text)
    return Verdict(
        subject, "NoDifference", f"kept up to {rate_text(max(ours, theirs))} requests/s either way"
    )


def rate_text(rate: float) -> str:
    """Requests a second in three digits or, from a thousand on, to the request."""
    return f"{rate:,.0f}" if rate >= 999.5 else f"{rate:.3g}"


@dataclass(frozen=True)
class Facts:
    """Inputs of a hint."""

    spec: InferenceServiceSpec
    pool: PlannedPool
    sizes: ModelSizes | None
    """The model's sizes; None: unknown."""
    verdicts: Mapping[str, Verdict]
    """Verdicts by subject."""

    def value(self, name: str) -> Value:
        return self.pool.settings[name].value

    def pays(self, subject: str) -> bool:
        return subject in self.verdicts and self.verdicts[subject].reason == "Pays"

    def costs(self, subject: str) -> bool:
        return subject in self.verdicts and self.verdicts[subject].reason == "Costs"

    @property
    def keeps_weights_packed(self) -> bool:
        sizes = self.sizes
        packed = sizes is not None and bool(sizes.facts.packed_parts)
        return packed and packs_weights(self.pool.accelerator.accelerator)

    @property
    def promises_itl(self) -> bool:
        return self.spec.slo is not None and self.spec.slo.itl_milliseconds is not None


@dataclass(frozen=True)
class Hint:
    """Advice, and when it is given."""

    name: str
    holds: Callable[[Facts], bool]
    text: str
    """Keys of engine settings in braces stand for their fields in the pool's section."""


HINTS: Final = (
    Hint(
        "PromiseItl",
        lambda f: not f.promises_itl and f.pays("slo.itlMilliseconds"),
        "set spec.slo.itlMilliseconds: each step gets the chunk that keeps it, chunkSize at most",
    ),
    Hint(
        "SmallerChunk",
        lambda f: not f.promises_itl and int(f.value("chunk_size")) > STEADY_CHUNK_TOKENS,
        "chunkSize is for throughput; where answers must flow evenly and no promise is set, 256 to "
        "1,024 costs some of it",
    ),
    Hint(
        "MixDecode",
        lambda f: not f.value("mixed_chunk") and f.pays("mixing"),
        "leave out {mixedChunk}: running requests wait for steps that compute prompts",
    ),
    Hint(
        "ChunkPrompts",
        lambda f: f.value("chunk_size") == -1 and f.pays("chunking"),
        "leave out {chunkSize}: whole prompts hold up every running request",
    ),
    Hint(
        "Disaggregate",
        lambda f: not f.spec.is_disaggregated and f.pays("disaggregation"),
        "add `prefill: {{}}`: two pools bear more of these requests with as many GPUs",
    ),
    Hint(
        "StayMixed",
        lambda f: f.spec.is_disaggregated and f.costs("disaggregation"),
        "leave out spec.prefill: one pool bears more of these requests with as many GPUs; "
        "simulated with two equal engines: a pair of unlike GPUs may pay",
    ),
    Hint(
        "PrefixOrder",
        lambda f: bool(f.value("prefix_cache")) and f.value("scheduling_policy") == "fcfs",
        "where prompts share long beginnings (RAG, agents), schedulingPolicy lpm finds more of "
        "them in the cache",
    ),
    Hint(
        "NameTheMemory",
        lambda f: f.pool.accelerator.verified.reason == "ProductUnknown",
        "sizes are guessed: set {section}.chunkSize and memoryPercent, or label the nodes",
    ),
    Hint(
        "TryOnYourGpus",
        lambda f: not f.pool.accelerator.accelerator.is_cpu,
        "this version ran on one H200; no cluster of GPUs, never several GPUs: try this pool "
        "before you rely on it",
    ),
    Hint(
        "PackedWeights",
        lambda f: f.keeps_weights_packed,
        "the kernel that multiplies with packed weights has not run on a GPU: its speed is unknown",
    ),
)  # fmt: skip


def hints(facts: Facts, *, nodes_known: bool) -> Iterator[Hint]:
    """The hints that hold. `nodes_known`: a cluster's nodes were looked at."""
    pool, role = facts.spec.pool(facts.pool.role), facts.pool.role
    if short := fit_advice(facts.spec, facts.sizes, facts.pool):
        yield Hint("ContextBeyondPool", lambda _: True, short)
    for advice in gpu_advice(facts.spec, facts.sizes, facts.pool):
        yield Hint("GpuSupport", lambda _: True, advice)
    if not nodes_known and (warning := unusual_spelling(pool.accelerator)):
        yield Hint("ProductSpelling", lambda _: True, warning)
    keys = ("mixedChunk", "chunkSize")
    fields = {key: f"{facts.spec.engine_place(role, key)}.{key}" for key in keys}
    fields["section"] = f"{pool.accelerator_section}.engine"
    for hint in HINTS:
        if hint.holds(facts):
            yield replace(hint, text=hint.text.format_map(fields))
