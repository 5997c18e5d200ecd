"""Cases to run on a GPU, the most telling first: a lease may end at any time.

A case is a command of its own, so that no case can end another one. A case is ended after its
`seconds`. The cases of a list may take longer than a run, so the next run continues where the last
one ended.
"""

from __future__ import annotations

from dataclasses import dataclass


class UnknownCaseError(Exception):
    """There is no case of this name; `str()` is one line with the name and the allowed ones."""


@dataclass(frozen=True)
class Case:
    name: str
    words: tuple[str, ...]
    """Words of the command line after the Python."""
    seconds: int
    heads: tuple[str, ...] = ()
    """Heads of the case's bfloat16 models, as `flashinfer_ahead.Heads.parse` reads them.
    flashinfer's modules for them must have been built ahead."""
    fp8_pages: bool = False
    """Modules for pages of 8 bits are needed as well."""


def _tests(
    name: str, seconds: int, *files: str, chosen: str = "", heads: tuple[str, ...] = (),
    fp8_pages: bool = False,
) -> Case:  # fmt: skip
    words = ["-m", "pytest", "-c", "tests/gpu/pytest.ini", "--rootdir=.", "-v", "--tb=short"]
    words += ["-m", "gpu", *files, *(["-k", chosen] if chosen else [])]
    return Case(name, tuple(words), seconds, heads, fp8_pages)


def _bench(name: str, seconds: int, heads: tuple[str, ...] = ("128",)) -> Case:
    return Case(name, ("-m", f"benchmarks.gpu.{name}"), seconds, heads)


AGREEMENT = "tests/gpu/test_agreement.py"
KERNELS = "tests/gpu/test_kernels.py"
GRAPHS = "tests/runtime/engine/test_graphs.py"
ATTENTION = "tests/runtime/layers/test_attention_flashinfer.py"
OPERATORS = "tests/runtime/layers/test_flashinfer_operators.py"
PLAIN = "not 8_bits and not windows and not sinks"
TESTS = (
    _tests("graphs", 90, GRAPHS, chosen="dim128 and not windows", heads=("128",)),
    _tests("agreement-bfloat16", 150, AGREEMENT, chosen="bfloat16 and dim128", heads=("128",)),
    _tests("agreement-graphs", 150, AGREEMENT, chosen="graphs and group4", heads=("128",)),
    _tests("attention", 90, ATTENTION, chosen=f"dim128 and {PLAIN}", heads=("128",)),
    _tests("sampling", 90, "tests/gpu/test_sampling.py"),
    _tests("kernels", 90, KERNELS, chosen="rotation or sampling or inputs"),
    _tests("packed-weights", 180, KERNELS, chosen="packed or expert or gate"),
    _tests("agreement-packed", 120, AGREEMENT, chosen="mxfp4 or fp8", heads=("64s", "128")),
    _tests("operators", 60, OPERATORS, heads=("128",)),
    _tests("hand-over", 90, "tests/gpu/test_handover.py"),
    _tests("agreement-float32", 150, AGREEMENT, chosen="float32"),
    _tests("memory", 60, "tests/gpu/test_host_blocks.py", "tests/gpu/test_host_cache.py"),
    _tests("weights", 60, "tests/gpu/test_weights.py"),
    _tests("trained-model", 90, "tests/gpu/test_trained_model.py", heads=("64",)),
    _tests("attention-dim64", 90, ATTENTION, chosen=f"dim64 and {PLAIN}", heads=("64",)),
    _tests("graphs-dim64", 90, GRAPHS, chosen=f"dim64 and {PLAIN}", heads=("64",)),
    _tests(
        "fp8-pages",
        120,
        ATTENTION,
        GRAPHS,
        chosen="8_bits or fp8",
        heads=("128",),
        fp8_pages=True,
    ),
    _tests("windows", 90, ATTENTION, GRAPHS, chosen="windows", heads=("128w", "256w")),
    _tests("sinks", 90, ATTENTION, GRAPHS, chosen="sinks", heads=("64s",)),
    _tests("agreement-windows", 120, AGREEMENT, chosen="windows", heads=("256w",)),
    _tests("agreement-sinks", 120, AGREEMENT, chosen="sinks and not mxfp4", heads=("64s",)),
    _tests("agreement-dim64", 120, AGREEMENT, chosen="group2 and not float32", heads=("64",)),
)
BENCHES = (
    _bench("overlap", 120),
    _bench("steps", 200),
    _bench("offline", 120),
    _bench("serving", 120),
    _bench("long_prompt", 120),
    _bench("interference", 150),
    _bench("speculation", 120),
    _bench("http", 120),
    _bench("windows", 150, ("64s",)),
    _bench("copies", 45, ()),
    _bench("kernels", 60, ()),
    _bench("products", 60, ()),
    Case("weights", ("-m", "benchmarks.load_weights", "--device", "cuda", "--runs", "3"), 60),
)
NINE_MINUTES = tuple(
    next(case for case in cases if case.name == name)
    for cases, names in (
        (TESTS, "graphs"),
        (TESTS, "packed-weights agreement-packed"),
        (BENCHES, "steps offline long_prompt http"),
        (TESTS, "fp8-pages sampling"),
        (BENCHES, "kernels products weights"),
        (TESTS, "agreement-graphs"),
        (BENCHES, "serving windows interference"),
    )
    for name in names.split()
)
"""Cases of both lists for a GPU that is lent for nine minutes, then for four."""
LISTS = {"test": TESTS, "bench": BENCHES, "nine-minutes": NINE_MINUTES}
SECONDS = {"test": 480.0, "bench": 480.0, "nine-minutes": 540.0}
"""Seconds of a run of each list."""


def chosen(kind: str, names: list[str]) -> tuple[Case, ...]:
    """The named cases of a list in its order; all of them without names.

    Raises:
        UnknownCaseError: there is none of this name.
    """
    cases = LISTS[kind]
    known = [case.name for case in cases]
    for name in names:
        if name not in known:
            raise UnknownCaseError(f"case {name}: allowed are {', '.join(known)}")
    return tuple(case for case in cases if not names or case.name in names)
