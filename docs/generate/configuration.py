"""The page of engine.json: every key, from the types of the contract, and what its names mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel
from sluice_contract.base import ConfigError
from sluice_contract.config.accelerators import (
    CHUNK_TOKEN_MIB,
    FIXED_MIB,
    GENERAL_MEMORY_PERCENT,
    GRAPH_ROW_MIB,
    LARGE_RESERVE_MIB,
    MAX_RUNNING_REQUESTS,
    MIN_RUNNING_REQUESTS,
    PRODUCTS,
    RANK_MIB,
    RUNNING_STEP,
    TIERS,
    TYPICAL_TOKENS,
    UNKNOWN,
    WIDE_FROM,
    Accelerator,
    Sizes,
    memory_percent,
    tier_sizes,
)
from sluice_contract.config.defaults_text import words_when_left_out
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.sizing import check_slo, resolve_settings, resolved_values
from sluice_contract.config.supported import ROLES, allowed_so_far
from sluice_operator.api.base import left_out
from sluice_operator.api.schema import inlined_schema
from sluice_runtime.engine.sizing.plan import SAMPLING_SHARE
from sluice_runtime.model.files import DUMMIES
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.policies import ALIASES, POLICIES
from sluice_runtime.server.reasoning.formats import FORMS
from sluice_runtime.server.tools.formats import FORMATS

from docs.generate.fields import Notes, key_table, sections_of
from docs.generate.markdown import GENERATED, anchor, table
from docs.generate.schema_words import Schema

HEAD: Final = """\
# engine.json

The file that decides how one engine behaves: `python -m sluice_runtime --config engine.json`. On a
cluster the operator writes it into a ConfigMap, from `spec.engine`, `spec.model` and `spec.slo` of
the [InferenceService](inferenceservice.md). Without one, `make serve CONFIG=engine.json` takes it,
or some of its keys, `make serve SETTINGS='{"chunkSize": 2048}'`; so does
`sluice simulate --config engine.json`. Only `model.uri` is required:

```json
{"model": {"uri": "/models/Qwen3-0.6B"}, "schedulingPolicy": "lpm", "server": {"port": 8000}}
```

Types are strict (`"16"` is no integer), and unknown keys are refused. A file that cannot be used
ends the process with exit status 2 and one line on stderr: key, value, what is allowed.

**Default** is what holds when a key is left out; where there is none, nothing does. **So far only**
and **not yet** mark what is valid and refused none the less, as this version does not have it.
"""
MORE: Final = """\
More of each in [scheduling](scheduling.md#policies), figures in
[policies compared](../explanation/policies.md)."""
BY_ACCELERATOR: Final = """\
By product, else by the memory of one GPU; on CPUs 512, 0 and 85. Of two numbers the second
holds from {wide} GPUs on. A MIG instance or a shared GPU is sized by its own memory.
`sluice simulate` and `sluice explain` use the table too.

`memoryPercent` leaves room for {token} MiB for each token of the chunk, {row} MiB for each row of
the CUDA graphs, {rank} MiB for each GPU and {fixed} MiB. Of a GPU with more than 60 GiB it leaves
at least {large} GiB. Where a node's labels give the memory, it is computed from that.

Chunks, graphs and what is left free are those of SGLang 0.5 (`server_args.py`, by memory), which
are meant for throughput. The memory of products is in their makers' data sheets, not all of them
looked up again.

`maxRunningRequests` is {least} on CPUs. On GPUs it depends on the model, so each engine chooses it
at its start and logs why. It takes one request for each {typical:,} tokens of the KV pool, rounded
to multiples of {tile}. It assumes that a request has so many tokens on average, prompt and answer
together. The number is at least {least} (vLLM's, 0.11, `arg_utils.py`) and `cudaGraphMaxBatch`, and
at most {most:,}. Above the least,
sampling all of them may take {share:.0%} of a GPU's memory. The pool is what weights leave of
`memoryPercent`, or `kvPoolTokens`. In bfloat16 Qwen3-0.6B gets about 590 on an H100 and 1,130 on
an H200, Llama-3-8B 400 and 880, Qwen3-32B on two GPUs 270 and 770. All of them get 256 on L4s."""

CONTRADICTIONS: Final[tuple[Mapping[str, Any], ...]] = (
    {"chunkSize": 8},
    {"chunkSize": 512, "minPrefillTokens": 1024},
    {"maxPrefillTokens": 512, "minPrefillTokens": 1024},
    {"maxPrefillTokens": 8},
    {"kvPoolTokens": 1000},
    {"schedulingPolicy": "lpm", "prefixCache": False},
    {"slo": {"itlMilliseconds": 50}, "chunkSize": -1},
    {"slo": {"itlMilliseconds": 50}, "mixedChunk": False},
)


BY_GPU: Final = ("chunkSize", "cudaGraphMaxBatch", "memoryPercent")
VALUES: Final = ("schedulingPolicy", "prefixEvictionPolicy", "toolCallFormat", "reasoningFormat")


def configuration_page() -> str:
    """docs/reference/configuration.md."""
    lines = [GENERATED, HEAD, *_keys(), *_contradictions()]
    lines += _values("schedulingPolicy", _said(POLICIES) | _aliases())
    lines += [MORE, ""]
    lines += _values("prefixEvictionPolicy", _said(EVICTIONS))
    lines += _values("toolCallFormat", _families())
    forms: dict[str, str] = {form.name: form.families for form in FORMS}
    lines += _values("reasoningFormat", {**forms, "none": "reasoning stays in the answer's text"})
    lines += _values("dummy://", {f"dummy://{name}": _architecture(name) for name in DUMMIES})
    lines += _by_accelerator()
    return "\n".join(lines).rstrip("\n") + "\n"


def _keys() -> Iterator[str]:
    so_far = allowed_so_far() | {"role": f"`{', '.join(ROLES)}`"}
    notes = Notes(so_far, {name: f"#{anchor(name)}" for name in VALUES})
    for section in sections_of(_schema(), "", ("model", "slo", "server", "kvTransfer"), notes, {}):
        yield from key_table(section, section.path or "Keys")


def _schema() -> Schema:
    """The schema of EngineConfig, the keys without which there is no engine first."""
    schema = inlined_schema(EngineConfig)
    properties: Schema = schema["properties"]
    for name, words in words_when_left_out().items():
        properties[to_camel(name)] |= left_out(words)
    first = {name: properties[name] for name in ("model", "role", "server", "slo")}
    return schema | {"properties": first | properties}


def _contradictions() -> Iterator[str]:
    yield from ("## Values that contradict each other", "")
    yield "Both of a pair are valid, and together they are refused, whether given or left out."
    yield ""
    rows = ((f"`{json.dumps(one)[1:-1]}`", _refusal(one)) for one in CONTRADICTIONS)
    yield from table(("for example", "is refused with"), rows)
    yield ""


def _refusal(settings: Mapping[str, Any]) -> str:
    config = EngineConfig.model_validate({"model": {"uri": "dummy://qwen3-tiny"}, **settings})
    try:
        check_slo(config.slo, resolved_values(resolve_settings(config, Accelerator())))
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{settings} contradict each other no longer")


def _values(key: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield from (f"## {key}", "")
    yield from table(("value", "meaning"), ((f"`{name}`", text) for name, text in rows.items()))
    yield ""


def _said(registry: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """What each function of a registry says of itself."""
    return {name: " ".join((one.__doc__ or "").split()) for name, one in registry.items()}


def _aliases() -> dict[str, str]:
    return {alias: f"Another name of `{name}`." for alias, name in ALIASES.items()}


def _families() -> dict[str, str]:
    said = dict[str, str]()
    for form in FORMATS:
        before = f"{said[form.name]}; " if form.name in said else ""
        said[form.name] = before + form.families
    return said


def _architecture(name: str) -> str:
    return f"random weights of {DUMMIES[name]['architectures'][0]}, a byte-level vocabulary"


def _by_accelerator() -> Iterator[str]:
    yield from ("## Defaults by accelerator", "")
    words = BY_ACCELERATOR.format(
        wide=WIDE_FROM,
        token=CHUNK_TOKEN_MIB,
        row=GRAPH_ROW_MIB,
        rank=RANK_MIB,
        fixed=FIXED_MIB,
        large=LARGE_RESERVE_MIB >> 10,
        typical=TYPICAL_TOKENS,
        tile=RUNNING_STEP,
        least=MIN_RUNNING_REQUESTS,
        most=MAX_RUNNING_REQUESTS,
        share=SAMPLING_SHARE,
    )
    yield from (words, "")
    header = ("GPU", "memory", *(f"`{key}`" for key in BY_GPU))
    products = [
        _sized(
            row.name,
            row.memory_gib,
            *(tier_sizes(row.memory_gib, wide=wide) for wide in (False, True)),
        )
        for row in PRODUCTS
    ]
    memory = [
        _sized(f"below {tier.below_gib:g} GiB", None, tier.sizes, tier.wide) for tier in TIERS[:-1]
    ]
    above = _sized(f"from {TIERS[-2].below_gib:g} GiB", None, TIERS[-1].sizes, TIERS[-1].wide)
    unknown = _sized("unknown", None, UNKNOWN, UNKNOWN)[:-1]
    yield from table(header, [*products, *memory, above, (*unknown, str(GENERAL_MEMORY_PERCENT))])


def _sized(name: str, memory_gib: float | None, *sizes: Sizes) -> tuple[str, ...]:
    """A row of the table; `sizes`: of one GPU, and of four."""
    each = [(one.chunk_size, one.cuda_graph_max_batch) for one in sizes]
    columns = [_or(*map(str, column)) for column in zip(*each, strict=True)]
    if memory_gib is None:
        return (name, "", *columns, "by its memory")
    mib = int(memory_gib * 1024)
    ranks = zip(sizes, (1, WIDE_FROM), strict=True)
    fractions = _or(*(str(memory_percent(mib, one, count)) for one, count in ranks))
    return (name, f"{memory_gib:g} GiB", *columns, fractions)


def _or(one: str, four: str) -> str:
    return one if one == four else f"{one}, {four}"
