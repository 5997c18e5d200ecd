"""The Triton kernels compute what their references say, and fit the GPUs they are compiled for."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import torch
from sluice_kernels.packed import Kind
from sluice_kernels.triton.calls import Call
from sluice_kernels.triton.cubins import compile_program
from sluice_kernels.triton.driver import parameter

from tests.kernels.triton.interpreted import cases
from tests.kernels.triton.shapes import (
    choice_call,
    decode_call,
    gate_call,
    product_call,
    rotary_call,
    sample_call,
    sort_call,
)

# One process runs the interpreter for all cases.
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("triton")]
ROOT: Final = Path(__file__).parents[3]
SHARED_BYTES: Final = {75: 65_536, 80: 101_376, 90: 232_448, 100: 232_448}
"""A block's, by compute capability: CUDA C++ Programming Guide, "Technical Specifications". Code
for 8.0 runs on 8.6 and 8.9, too, which have less than the 166,912 of 8.0."""
ARCHITECTURES: Final = [
    each if each == 90 else pytest.param(each, marks=pytest.mark.full) for each in SHARED_BYTES
]
CALLS: Final = {
    "rotate_and_store": rotary_call(torch.float16, 128, normed=True),
    "sample_rows": sample_call(),
    "decode_inputs": decode_call(),
    "choose_experts": choice_call(),
    "sort_by_expert": sort_call(),
    "clamped_swiglu": gate_call(),
}
NARROW: Final = ("decode_inputs", "choose_experts", "sort_by_expert")
"""Kernels that read and write few numbers."""
MOST_REGISTERS: Final = 64
"""Of a thread: with more of them, fewer threads wait for memory at the same time."""

MOST_REGISTERS_OF_PRODUCTS: Final = 255
"""Of a thread: as many as there are."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.interpreted"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str | None] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("name", [name for name, _ in cases()])
def test_the_interpreter_computes_what_the_reference_does(
    outcomes: dict[str, str | None], name: str
) -> None:
    assert outcomes[name] is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", CALLS)
def test_compiled_for_a_gpu(kernel: str, architecture: int, tmp_path: Path) -> None:
    check(CALLS[kernel], architecture, tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_every_head_dimension_compiled(dim: int, architecture: int, tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for normed in (False, True):
            check(rotary_call(dtype, dim, normed), architecture, tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("vocabulary", [160, 50_257])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_kind_of_logits_compiled(
    dtype: torch.dtype, vocabulary: int, architecture: int
) -> None:
    assert compile_program(sample_call(dtype, vocabulary).program(), architecture).code


PRODUCTS: Final = {
    "fp8": product_call(Kind.FP8, biased=True),
    "fp8-many": product_call(Kind.FP8, 99),
    "int4": product_call(Kind.INT4),
    "int4-narrow": product_call(Kind.INT4, group=32),
    "int4-some": product_call(Kind.INT4, 40),
    "fp8-some": product_call(Kind.FP8, 40, biased=True),
    "mxfp4-some-experts": product_call(Kind.MXFP4, 40, group=32, grouped="reads", biased=True),
    "int4-many": product_call(Kind.INT4, 99, torch.float16, biased=True),
    "mxfp4-experts": product_call(Kind.MXFP4, group=32, grouped="reads", biased=True),
    "mxfp4-many-experts": product_call(Kind.MXFP4, 99, group=32, grouped="writes", biased=True),
    "experts": product_call(Kind.PLAIN, grouped="writes"),
    "many-experts": product_call(Kind.PLAIN, 99, grouped="reads"),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES[1:])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_compiled_for_a_gpu(name: str, architecture: int, tmp_path: Path) -> None:
    """The products run on its matrix units, and all that is copied to shared memory is copied 16
    bytes at a time."""
    code = check(PRODUCTS[name], architecture, tmp_path, MOST_REGISTERS_OF_PRODUCTS)
    assert re.search(r"LDGSTS\.E\S*\.128|UTMALDG|LDG\.E\.128", code)
    assert not re.search(r"LDGSTS\.E(?!\S*\.128)", code)
    assert re.search(r"HMMA|HGMMA|UTCHMMA", code)


def check(
    call: Call, architecture: int, scratch: Path, most_registers: int = MOST_REGISTERS
) -> str:
    """No spills, few registers, shared memory that there is, parameters as they are handed over,
    and what is large read and written 16 bytes at a time; the machine code."""
    cubin = compile_program(call.program(), architecture)
    (scratch / "kernel.cubin").write_bytes(cubin.code)
    elf = dump(scratch / "kernel.cubin", "-elf")
    # Blackwell's tensor memory adds functions of its own.
    assert all(0 < int(count) <= most_registers for count in matches(r"register count: (\d+)", elf))
    assert all(int(size, 16) == 0 for size in matches(r"frame size: (0x\w+)", elf)), "spills"
    assert cubin.shared_bytes <= SHARED_BYTES[architecture]
    assert parameter_places(elf) == placed(call)
    code = dump(scratch / "kernel.cubin", "-sass")
    if call.kernel in NARROW:
        return code
    assert "LDG.E.128" in code or call.kernel == "packed_product"  # copies to shared memory
    assert "STG.E.128" in code or call.kernel == "sample_rows"
    return code


def parameter_places(elf: str) -> list[tuple[int, int]]:
    """Offset and size of each parameter that the machine code reads."""
    ordinals = re.findall(r"Ordinal : (0x\w+)\s+Offset  : (0x\w+)\s+Size    : (0x\w+)", elf)
    by_ordinal = sorted(tuple(int(number, 16) for number in numbers) for numbers in ordinals)
    return [(offset, size) for _, offset, size in by_ordinal]


def placed(call: Call) -> list[tuple[int, int]]:
    """The same for what the driver is handed: each at a multiple of its size."""
    kept = {
        name: torch.empty(0, dtype=value.dtype) if isinstance(value, torch.Tensor) else value
        for name, value in call.arguments.items()
    }
    sizes = [ctypes.sizeof(parameter(value)) for value in kept.values()] + [8, 8]
    places, end = [], 0
    for size in sizes:
        begin = -(-end // size) * size
        places.append((begin, size))
        end = begin + size
    return places


def dump(cubin: Path, what: str) -> str:
    from triton import knobs

    command = [knobs.nvidia.cuobjdump.path, what, str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def matches(pattern: str, text: str) -> list[str]:
    groups = re.findall(pattern, text)
    assert groups, pattern
    return groups
