"""The scenes: every trace of a folder, in its forms, and ramps with one pool and with two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.command import POOLS
from sluice_simulator.autoscale.constants import AZURE, MOONCAKE, Constants
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.shapes import FORMS, RAMPS, formed, ramp, ramp_constants
from sluice_simulator.traces.read import READERS, read_trace
from sluice_simulator.traces.request import Trace

CONV: Final = "azure2023/AzureLLMInferenceTrace_conv.csv"
CODE: Final = "azure2023/AzureLLMInferenceTrace_code.csv"
MOON: Final = "mooncake/conversation_trace.jsonl"
SYNTHETIC: Final = "mooncake/synthetic_trace.jsonl"
GPU_BUDGET: Final = 48
"""GPUs of two pools together."""
SHIFT: Final = "shift"
"""Name of a scene that runs only on demand."""
SPLIT_BUDGET: Final = 8
"""GPUs of two pools whose split has to follow the load: no fixed split is enough for all of it."""
SHORT_CHUNK: Final = 512
"""Tokens of a chunk: with the usual 2,048, a prompt's chunk breaks the promise of short answers."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of traces, and the constants of its promise."""

    path: str
    constants: Constants
    forms: Sequence[str | None]


SOURCES: Final[Mapping[str, Source]] = {
    "azure-conv": Source(CONV, AZURE, (None, *FORMS)),
    "azure-code": Source(CODE, AZURE, (None,)),
    "azure-code-512": Source(CODE, replace(AZURE, chunk_tokens=SHORT_CHUNK), (None,)),
    "mooncake": Source(MOON, MOONCAKE, (None, *FORMS)),
    "mooncake-synthetic": Source(SYNTHETIC, MOONCAKE, (None,)),
}
FLEETS: Final = {".csv": AZURE, ".jsonl": MOONCAKE}
"""Constants for other files, by their suffix."""


def scenes(traces: Path, only: str) -> Iterator[tuple[str, Scene]]:
    """Scenes with `only` in their names, for traces that are there."""
    for name, source in {**SOURCES, **_others(traces)}.items():
        if (traces / source.path).exists():
            trace = _without_blocks(read_trace(traces / source.path))
            for form in source.forms:
                if only in _named(name, form):
                    yield _named(name, form), _scene(trace, source.constants, form)
    if only == SHIFT:
        shifted = replace(ramp_constants(SHIFT, AZURE), gpu_budget=SPLIT_BUDGET)
        shifted = replace(shifted, max_replicas=SPLIT_BUDGET - 1)
        yield SHIFT, Scene(ramp(SHIFT), shifted, POOLS["two"])
    for name in (name for name in RAMPS if name != SHIFT):
        constants = ramp_constants(name, AZURE)
        if only in name:
            yield name, Scene(ramp(name), constants, POOLS["mixed"])
        if only in f"{name}-two-pools":
            budgeted = replace(constants, gpu_budget=GPU_BUDGET)
            yield f"{name}-two-pools", Scene(ramp(name), budgeted, POOLS["two"])


def _others(traces: Path) -> dict[str, Source]:
    """Sources for files of the folder that are not in `SOURCES`."""
    known = {source.path for source in SOURCES.values()}
    files = sorted(path for path in traces.rglob("*") if path.suffix in READERS)
    return {
        path.stem: Source(str(path.relative_to(traces)), FLEETS[path.suffix], (None,))
        for path in files
        if str(path.relative_to(traces)) not in known
    }


def _named(name: str, form: str | None) -> str:
    return f"{name}-{form}" if form else name


def _without_blocks(trace: Trace) -> Trace:
    """A trace without ids of cached blocks: light engines have no prefix cache, and scenes are sent
    to other processes."""
    return Trace(trace.name, tuple(replace(each, block_ids=()) for each in trace.requests))


def _scene(trace: Trace, constants: Constants, form: str | None) -> Scene:
    return Scene(formed(trace, form) if form else trace, constants, (Role.MIXED,))
