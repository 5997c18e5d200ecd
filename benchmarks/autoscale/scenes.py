"""The scenes: every trace of a folder, in its forms, made-up streams, and ramps with one pool and
with two.

Constants of the rule are chosen on half of the scenes, `CHOOSING`, and judged on the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from sluice_simulator.autoscale.command import POOLS
from sluice_simulator.autoscale.constants import AZURE, MOONCAKE, Constants
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.shapes import RAMPS, formed, ramp, ramp_constants
from sluice_simulator.traces.read import READERS, read_trace
from sluice_simulator.traces.request import Trace

from benchmarks.autoscale.streams import STREAMS, stream_trace

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
CHOOSING: Final = frozenset({
    "azure-conv", "azure-code-512", "mooncake-diurnal", "mooncake-burst",
    "poisson", "gamma-4", "weibull-2-diurnal", "poisson-steps",
    "ramp-balanced", "ramp-prefill-two-pools", "ramp-decode",
})  # fmt: skip
"""Scenes for choosing constants; all others judge them."""
HALVES: Final = ("choosing", "judging")
FORMS: Final = ("diurnal", "burst")
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


def half_of(name: str) -> str:
    """The one of `HALVES` that a scene belongs to."""
    return HALVES[name not in CHOOSING]


def scenes(traces: Path, only: str, half: str | None = None) -> Iterator[tuple[str, Scene]]:
    """Scenes of a half, or of both, with `only` in their names, for traces that are there."""
    for name, scene in (*_traced(traces), *_made_up()):
        wanted = name == SHIFT if only == SHIFT else only in name and name != SHIFT
        if wanted and half in (None, half_of(name)):
            yield name, scene()


def _traced(traces: Path) -> Iterator[tuple[str, Callable[[], Scene]]]:
    for name, source in {**SOURCES, **_others(traces)}.items():
        path = traces / source.path
        for form in source.forms if path.exists() else ():
            named = f"{name}-{form}" if form else name
            yield named, partial(_scene_of, path, source.constants, form)


def _made_up() -> Iterator[tuple[str, Callable[[], Scene]]]:
    for name in STREAMS:
        yield name, partial(_stream_scene, name)
    for name in RAMPS:
        constants = ramp_constants(name, AZURE)
        if name == SHIFT:
            split = replace(constants, gpu_budget=SPLIT_BUDGET, max_replicas=SPLIT_BUDGET - 1)
            yield SHIFT, partial(_ramp_scene, name, split, "two")
            continue
        yield name, partial(_ramp_scene, name, constants, "mixed")
        budgeted = replace(constants, gpu_budget=GPU_BUDGET)
        yield f"{name}-two-pools", partial(_ramp_scene, name, budgeted, "two")


def _stream_scene(name: str) -> Scene:
    return Scene(stream_trace(name), AZURE, POOLS["mixed"])


def _ramp_scene(name: str, constants: Constants, pools: str) -> Scene:
    return Scene(ramp(name), constants, POOLS[pools])


def _scene_of(path: Path, constants: Constants, form: str | None) -> Scene:
    trace = _without_blocks(read_trace(path))
    return Scene(formed(trace, form) if form else trace, constants, POOLS["mixed"])


def _others(traces: Path) -> dict[str, Source]:
    """Sources for files of the folder that are not in `SOURCES`."""
    known = {source.path for source in SOURCES.values()}
    files = sorted(path for path in traces.rglob("*") if path.suffix in READERS)
    return {
        path.stem: Source(str(path.relative_to(traces)), FLEETS[path.suffix], (None,))
        for path in files
        if str(path.relative_to(traces)) not in known
    }


def _without_blocks(trace: Trace) -> Trace:
    """A trace without ids of cached blocks: light engines have no prefix cache, and scenes are sent
    to other processes."""
    return Trace(trace.name, tuple(replace(each, block_ids=()) for each in trace.requests))
