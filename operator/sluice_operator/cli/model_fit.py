"""Whether a model fits into the engines of each pool, and what would make it fit. Pure.

The sizes are those of the resolved model, else of a given config.json, else of the published model
whose name the service has. The operator itself refuses nothing by these: only an engine knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_contract.config.accelerators import (
    MACHINE_GPUS,
    Accelerator,
    least_tokens,
    packs_weights,
)
from sluice_contract.config.engine import EngineSettings
from sluice_contract.config.model_facts import ModelFacts, facts_of
from sluice_contract.config.published_models import is_gated, published_model, refused_format
from sluice_contract.config.sizing import Source, Value, resolve_settings, resolved_values
from sluice_contract.config.supported import QUANTISATIONS

from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.findings import Finding
from sluice_operator.api.model_uri import HUB, scheme_of
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import ModelStatus
from sluice_operator.cli.kv_capacity import (
    KvCapacity,
    MemoryShare,
    engine_kv_capacity,
    memory_limit_bytes,
    memory_share,
)
from sluice_operator.service.rollout.planned_rollout import PlannedPool

GIB: Final = 1 << 30


@dataclass(frozen=True)
class ModelSizes:
    """A model's sizes, and where they come from."""

    name: str
    facts: ModelFacts
    assumed: str = ""
    """What the sizes are assumed from, for a person; empty: nothing is assumed."""
    is_certain: bool = True
    """Whether a model that does not fit by these sizes is an error, not only advice."""
    refused_format: str | None = None
    """Part of the URI that says a format that engines do not read; None: it says none."""


def model_sizes(
    model: ModelSpec, resolved: ModelStatus | None, config_text: str | None = None
) -> ModelSizes | None:
    """The sizes of the spec's model; None: unknown. `config_text`: its config.json, if given."""
    name = model.uri.rstrip("/").rpartition("/")[2]
    if resolved is not None:
        return ModelSizes(name, resolved)
    if config_text is not None:
        return _from_config(name, config_text)
    if (scheme := scheme_of(model.uri)) == "dummy":
        return None
    by_uri = published_model((model.uri,))
    known = by_uri or published_model((model.served_name,))
    if known is None:
        return None
    refused = refused_format(known, model.uri) if by_uri else None  # an alias says nothing of files
    assumed = f"assumed from the published config of {known.repository}"
    is_certain = scheme == HUB and by_uri is not None
    return ModelSizes(known.name, known.facts, assumed, is_certain, refused)


def _from_config(name: str, text: str) -> ModelSizes | None:
    """Sizes from the text of a config.json; None where it is none, which the simulator says."""
    try:
        config = json.loads(text)
    except ValueError:
        return None
    if not isinstance(config, dict):
        return None
    facts = facts_of(config)
    return ModelSizes(name, facts.model_copy(update={"dtype": facts.dtype or "bfloat16"}))


def gated_lines(model: ModelSpec) -> Iterator[str]:
    """A line where the hub gives the model only to accounts that have accepted its terms."""
    if is_gated(model.uri) and model.token_secret_ref is None:
        yield "  This repository is gated: accept its terms at the hub, and name a Secret with a"
        yield "  token in spec.model.tokenSecretRef. Without it the download fails."


def fit_findings(
    spec: InferenceServiceSpec, sizes: ModelSizes | None, pools: tuple[PlannedPool, ...]
) -> tuple[Finding, ...]:
    """A finding for each pool whose engines cannot hold the model or divide it, and one alone where
    they do not read its format; none where sizes or memory are unknown, or sizes are those of a
    name outside the hub."""
    if sizes is None or not sizes.is_certain:
        return ()
    findings = (_finding(_Fit(sizes, pool), spec) for pool in pools)
    return tuple(dict.fromkeys(finding for finding in findings if finding is not None))


def fit_advice(
    spec: InferenceServiceSpec, sizes: ModelSizes | None, pool: PlannedPool
) -> str | None:
    """Advice where an engine's KV pool holds less than one context, or a model that a name alone
    tells of would be refused or not fit; None where it holds one, or that is unknown."""
    if sizes is not None and not sizes.is_certain and (misfit := _finding(_Fit(sizes, pool), spec)):
        return str(misfit)
    capacity = engine_kv_capacity(sizes.facts if sizes else None, pool)
    context = _context_tokens(sizes, pool) if sizes else None
    if sizes is None or context is None or capacity.tokens is None or capacity.tokens >= context:
        return None
    fit = _Fit(sizes, pool)
    count = None if fit.accelerator.is_cpu else fit.least_count(context)
    section = spec.pool(pool.role).accelerator_section
    ways = [f"{section}.accelerator.count {count} holds one"] if count else []
    if not fit.has_fp8_pages:
        ways.append(f"{spec.engine_place(pool.role, 'kvCacheDtype')}.kvCacheDtype fp8_e4m3 doubles")
        ways[-1] += " the pool"
    ways.append(f"{spec.engine_place(pool.role, 'contextLength')}.contextLength sets the limit")
    return (
        f"the KV pool holds {capacity.tokens:,} tokens, less than one context of {context:,}, and "
        f"longer requests are refused: {'; '.join(ways)}"
    )


def _context_tokens(sizes: ModelSizes, pool: PlannedPool) -> int | None:
    """Tokens of one context of the pool's engines."""
    own = resolved_values(pool.settings).get("context_length")
    return int(own) if own else sizes.facts.context_tokens


@dataclass(frozen=True)
class _Fit:
    """One model in the engines of one pool."""

    sizes: ModelSizes
    pool: PlannedPool

    @property
    def accelerator(self) -> Accelerator:
        return self.pool.accelerator.accelerator

    @property
    def share(self) -> MemoryShare | None:
        return self._share(self.accelerator)

    @property
    def has_fp8_pages(self) -> bool:
        return self.pool.settings["kv_cache_dtype"].value != "auto"

    @property
    def least_pool(self) -> int:
        return least_tokens(_context_tokens(self.sizes, self.pool) or 1)

    @property
    def counts(self) -> Sequence[int]:
        """Numbers of GPUs that can share each layer; none where the model's sizes are unknown."""
        if self.is_packed:
            return [part.gpus for part in self.sizes.facts.packed_parts or ()]
        return self.sizes.facts.tensor_parallel_sizes or ()

    @property
    def is_packed(self) -> bool:
        """Whether engines keep the model's quantised weights packed."""
        return bool(self.sizes.facts.packed_parts) and packs_weights(self.accelerator)

    def least_count(self, tokens: int) -> int | None:
        """The least number of one machine's GPUs that leaves a KV pool of `tokens`."""
        for count in self.counts:
            if count > MACHINE_GPUS:
                break
            share = self._share(self.accelerator.model_copy(update={"count": count}))
            if share is not None and share.tokens >= tokens:
                return count
        return None

    def _share(self, accelerator: Accelerator) -> MemoryShare | None:
        settings = self._settings(accelerator)
        share = memory_share(self.sizes.facts, accelerator, settings, memory_limit_bytes(self.pool))
        return None if isinstance(share, KvCapacity) else share

    def _settings(self, accelerator: Accelerator) -> dict[str, Value]:
        """The pool's settings, with memoryPercent as `accelerator` has it unless the spec says
        it."""
        settings = resolved_values(self.pool.settings)
        if self.pool.settings["memory_percent"].source is not Source.USER:
            by_default = resolved_values(resolve_settings(EngineSettings(), accelerator))
            settings["memory_percent"] = by_default["memory_percent"]
        return settings


def _finding(fit: _Fit, spec: InferenceServiceSpec) -> Finding | None:
    if fit.sizes.refused_format:
        return _refused_format(fit.sizes.refused_format)
    name, section = fit.sizes.name, spec.pool(fit.pool.role).accelerator_section
    source = f". Sizes are {fit.sizes.assumed}" if fit.sizes.assumed else ""
    count, field = max(1, fit.accelerator.count), f"{section}.accelerator.count"
    if fit.counts and not fit.accelerator.is_cpu and count not in fit.counts:
        allowed = ", ".join(map(str, fit.counts))
        text = f"{count} GPUs cannot share each layer of {name}"
        if count in (fit.sizes.facts.tensor_parallel_sizes or ()):
            text += " in whole groups of packed weights"
        return Finding(field, f"{text}; allowed: {allowed}{source}")
    share = fit.share
    if share is None or "kv_pool_tokens" in fit.pool.settings or share.tokens >= fit.least_pool:
        return None
    what = "leave" if count > 1 else "leaves"
    text = (
        f"{name} does not fit: its weights take {share.weights / GIB:.1f} GiB, and {share.place} "
        f"{what} {share.bytes / GIB:.1f} GiB to weights and KV pool"
    )
    needed = share.weights + fit.least_pool * share.token_bytes
    if fit.accelerator.is_cpu:
        field = f"{spec.place(fit.pool.role, 'resources')}.limits.memory"
        percent = int(fit.pool.settings["memory_percent"].value)
        least_gib = math.ceil(needed * 100 / percent / GIB)
        return Finding(field, f"{text}; allowed: at least {least_gib}Gi{source}")
    least = fit.least_count(fit.least_pool)
    ways = [f"count {least}"] if least else []
    ways.append(f"GPUs that leave {math.ceil(needed / count / GIB)} GiB each")
    text = f"{text}; allowed: {', '.join(ways)}, or a smaller model"
    return Finding(field, f"{text}{_of_quantised(fit)}{source}")


def _refused_format(name: str) -> Finding:
    how = "which has no weights that engines read"
    if "gguf" not in name.casefold():
        how = "which is refused as UnsupportedQuantization"
    text = f"the name says {name}, {how}; allowed: {', '.join(QUANTISATIONS)}"
    return Finding("spec.model.uri", f"{text}, or weights that are not quantised")


def _of_quantised(fit: _Fit) -> str:
    """What a quantised checkpoint changes, as another sentence; empty: nothing, as the model is
    one."""
    if packs_weights(fit.accelerator):
        if fit.sizes.facts.quantization:
            return ""
        return ". A checkpoint in FP8 or 4 bits stays packed and takes less"
    dtype = str(fit.pool.settings["dtype"].value)
    dtype = dtype if dtype != "auto" else fit.sizes.facts.dtype or "float32"
    return f". A quantised checkpoint takes as much: engines hold its weights in {dtype}"
