"""The page of engine.json: every key, from the types of the contract, and what its names mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel
from sluice_contract.accelerators import MEMORY, PRODUCTS, UNKNOWN, WIDE_FROM, Accelerator, Sizes
from sluice_contract.base import ConfigError
from sluice_contract.config import EngineConfig
from sluice_contract.left_out import words_when_left_out
from sluice_contract.sizing import check_slo, resolve_settings, resolved_values
from sluice_contract.supported import ROLES, ROWS
from sluice_operator.api.base import left_out
from sluice_operator.api.schema import inlined_schema
from sluice_runtime.model_files import DUMMIES
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.policies import POLICIES
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
By product, else by the memory of one GPU. Engines run on CPUs only in this version (512 and 0); the
table is used by `sluice simulate`, whose cost models name an accelerator."""

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


VALUES: Final = ("schedulingPolicy", "prefixEvictionPolicy", "toolCallFormat")


def configuration_page() -> str:
    """docs/reference/configuration.md."""
    lines = [GENERATED, HEAD, *_keys(), *_contradictions()]
    lines += _values("schedulingPolicy", _said(POLICIES))
    lines += [MORE, ""]
    lines += _values("prefixEvictionPolicy", _said(EVICTIONS))
    lines += _values("toolCallFormat", _families())
    lines += _values("dummy://", {f"dummy://{name}": _architecture(name) for name in DUMMIES})
    lines += _by_accelerator()
    return "\n".join(lines).rstrip("\n") + "\n"


def _keys() -> Iterator[str]:
    so_far = {row.key: row.allowed for row in ROWS} | {"role": f"`{', '.join(ROLES)}`"}
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
    yield from (BY_ACCELERATOR, "")
    header = (
        "GPU",
        "`chunkSize`",
        "`cudaGraphMaxBatch`",
        f"`cudaGraphMaxBatch`, from {WIDE_FROM} GPUs on",
    )
    products = [(row.name, row.sizes, row.wide) for row in PRODUCTS]
    memory = [(f"below {row.below_gib:g} GiB", row.sizes, row.wide) for row in MEMORY[:-1]]
    above = [(f"from {MEMORY[-2].below_gib:g} GiB", MEMORY[-1].sizes, MEMORY[-1].wide)]
    rows = [*products, *memory, *above, ("unknown", UNKNOWN, UNKNOWN)]
    yield from table(header, (_sizes(*row) for row in rows))


def _sizes(name: str, sizes: Sizes, wide: Sizes) -> tuple[str, ...]:
    assert sizes.chunk_size == wide.chunk_size, "the table has one column of chunks"
    return (
        name,
        str(sizes.chunk_size),
        str(sizes.cuda_graph_max_batch),
        str(wide.cuda_graph_max_batch),
    )
