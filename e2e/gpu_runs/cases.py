"""What is run on a GPU, the most telling first: a lease may end at any time.

A case is a command of its own, so that none can take another one down. `seconds` is when it is
given up; together those of a list may be more than a run has, which then goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass


class UnknownCaseError(Exception):
    """One line that names it and what is allowed."""


@dataclass(frozen=True)
class Case:
    name: str
    words: tuple[str, ...]
    """Of the command line, after the Python."""
    seconds: int


def _tests(name: str, file: str, seconds: int, chosen: str = "") -> Case:
    words = [
        "-m",
        "pytest",
        "-c",
        "tests/gpu/pytest.ini",
        "--rootdir=.",
        "-q",
        "-x",
        "-m",
        "gpu",
        file,
    ]
    return Case(name, (*words, *(["-k", chosen] if chosen else [])), seconds)


def _bench(name: str, seconds: int, *words: str) -> Case:
    return Case(name, ("-m", f"benchmarks.gpu.{name.split('@')[0]}", *words), seconds)


AGREEMENT = "tests/gpu/test_agreement.py"
TESTS = (
    _tests("agreement", AGREEMENT, 150, "float32"),
    _tests("agreement-bfloat16", AGREEMENT, 150, "bfloat16"),
    _tests("trained-model", "tests/gpu/test_trained_model.py", 90),
    _tests("graphs", AGREEMENT, 120, "graphs"),
    _tests("hand-over", "tests/gpu/test_handover.py", 90),
    _tests("sampling", "tests/gpu/test_sampling.py", 60),
    _tests("memory", "tests/gpu/test_host_blocks.py", 60),
    _tests("weights", "tests/gpu/test_weights.py", 60),
    _tests("kernels", "tests/gpu/test_kernels.py", 90),
    _tests("attention", "tests/runtime/layers/test_attention_flashinfer.py", 90),
)
BENCHES = (
    _bench("offline", 150),
    _bench("serving", 120),
    _bench("steps", 90),
    _bench("long_prompt", 120),
    _bench("overlap", 150),
    _bench("interference", 150),
    _bench("copies", 45),
    _bench("kernels", 60),
    Case("weights", ("-m", "benchmarks.load_weights", "--device", "cuda", "--runs", "3"), 60),
)
LISTS = {"test": TESTS, "bench": BENCHES}


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
