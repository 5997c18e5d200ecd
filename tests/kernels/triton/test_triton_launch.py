"""Programs are found or compiled once, and handed to the driver as it wants them. Without a GPU:
another library stands in for the driver's, and reads what it is handed from memory."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sluice_kernels.architectures import built_for
from sluice_kernels.packed import Grouping, Kind, PackedMatrix
from sluice_kernels.triton import build, calls, cubins, driver
from sluice_kernels.triton.calls import Call, Program
from sluice_kernels.triton.cubins import Cubin, CubinFolder, file_name, write_folder
from sluice_kernels.triton.driver import CudaDriver, CudaDriverError, Launcher
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.kernels.packed_matrices import packed_matrix
from tests.kernels.triton.shapes import (
    MULTIPLIED,
    OUTPUTS,
    choice_call,
    decode_call,
    gate_call,
    product_call,
    rotary_call,
    sample_call,
    sort_call,
)

STREAM = 0xBEEF


class Library:
    """Functions of the driver's library."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.loaded: list[bytes] = []
        self.launches: list[dict[str, Any]] = []
        self.attributes: list[tuple[int | None, int, int]] = []

    def cuModuleLoadData(self, module: Any, code: bytes) -> int:
        self.loaded.append(code)
        module._obj.value = 0x1000 + len(self.loaded)
        return 218 * (self.fails == "cuModuleLoadData")

    def cuModuleGetFunction(self, function: Any, module: ctypes.c_void_p, name: bytes) -> int:
        assert module.value == 0x1000 + len(self.loaded)
        function._obj.value = 0x2000 + len(self.loaded)
        return 0

    def cuFuncSetAttribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> int:
        self.attributes.append((function.value, attribute, value))
        return 0

    def cuLaunchKernel(self, function: ctypes.c_void_p, *rest: Any) -> int:
        *sizes, shared, stream, parameters, extra = rest
        assert extra is None
        launched = {"function": function.value, "sizes": sizes, "shared": shared}
        self.launches.append(launched | {"stream": stream.value, "parameters": [*parameters]})
        self.read = [ctypes.c_uint64.from_address(address).value for address in parameters]
        return 201 * (self.fails == "cuLaunchKernel")

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = {218: b"invalid image", 201: b"invalid context"}[code]
        return 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Program, int]]:
    """What the compiler was parameters for; its code is the name of the architecture."""
    parameters: list[tuple[Program, int]] = []

    def compile_program(program: Program, architecture: int) -> Cubin:
        parameters.append((program, architecture))
        return Cubin(f"for {architecture}".encode(), shared_bytes=48)

    monkeypatch.setattr(cubins, "compile_program", compile_program)
    monkeypatch.setattr(driver, "compile_program", compile_program)
    return parameters


def launcher(library: Library, architecture: int, folder: Path) -> Launcher:
    return Launcher(CudaDriver(library), architecture, CubinFolder(folder))


def test_a_launch_hands_over_grid_stream_and_parameters(
    tmp_path: Path, compiled: list[tuple[Program, int]]
) -> None:
    library, call = Library(), sample_call(device="cpu")
    launcher(library, 90, tmp_path).launch(call, STREAM)
    (launched,) = library.launches
    assert launched["sizes"] == [*call.grid, 1, call.warps * 32, 1, 1]
    assert (launched["shared"], launched["stream"]) == (48, STREAM)
    names = ("logits", "rows", "positions", "reals", "wholes", "tokens")
    tensors = [call.arguments[name] for name in names]
    addresses = [tensor.data_ptr() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    assert library.read[:6] == addresses
    assert library.read[6] & 0xFFFFFFFF == call.arguments["vocabulary"]
    assert library.read[8:] == [0, 0], "scratch memory"


@pytest.mark.parametrize(("shared_bytes", "asks"), [(48 << 10, False), ((48 << 10) + 8, True)])
def test_more_shared_memory_than_every_launch_may_have_is_asked_for(
    shared_bytes: int, asks: bool
) -> None:
    """A launch may have 48 KiB without asking: CUDA C++ Programming Guide."""
    library = Library()
    function = CudaDriver(library).load(Cubin(b"code", shared_bytes), "kernel")
    assert library.attributes == ([(function.value, 8, shared_bytes)] if asks else [])


def test_a_program_is_compiled_and_loaded_once_and_another_one_for_another_type(
    tmp_path: Path, compiled: list[tuple[Program, int]]
) -> None:
    library = Library()
    ours = launcher(library, 90, tmp_path)
    call = rotary_call(torch.float16, 64, normed=True, device="cpu")
    other = dict(call.arguments) | {"layer": 1, "eps": 1e-5}
    for same in (call, dataclasses.replace(call, arguments=other, grid=(1, 1))):
        ours.launch(same, STREAM)
    assert len(compiled) == len(library.loaded) == 1
    for changed in (
        rotary_call(torch.bfloat16, 64, normed=True, device="cpu"),
        rotary_call(torch.float16, 64, normed=False, device="cpu"),
        rotary_call(torch.float16, 64, normed=True, device="cpu", ids=torch.int32),
    ):
        ours.launch(changed, STREAM)
    assert len(library.loaded) == 4
    assert library.launches[-1]["function"] == 0x2004


def test_what_was_compiled_ahead_is_not_compiled_again(
    tmp_path: Path, compiled: list[tuple[Program, int]]
) -> None:
    call = rotary_call(torch.float16, 128, normed=True, device="cpu")
    assert write_folder(tmp_path, [call.program()], [80, 90, 80]) == 2
    for architecture, code in ((80, b"for 80"), (86, b"for 80"), (90, b"for 90")):
        library = Library()
        ours = launcher(library, architecture, tmp_path)
        ours.launch(call, STREAM)
        assert (library.loaded, library.launches[0]["shared"]) == ([code], 48)
        assert ours.missing([call.program()]) == []
    assert len(compiled) == 2
    newer = launcher(Library(), 100, tmp_path)
    assert newer.missing([call.program()]) == [call.program()]
    newer.launch(call, STREAM)
    assert compiled[2:] == [(call.program(), 100)]


def test_an_image_brings_what_common_models_launch(
    tmp_path: Path, compiled: list[tuple[Program, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main([str(tmp_path), "-a", "80", "90"]) == 0
    assert capsys.readouterr().out == f"{len(compiled)} GPU kernels in {tmp_path}\n"
    sizes = 151_936, 50_257
    types = torch.float32, torch.bfloat16, torch.float16
    launched = [decode_call("cpu"), sort_call("cpu")]
    for dtype in (torch.bfloat16, torch.float16):
        launched += [choice_call(dtype, "cpu"), gate_call(dtype, "cpu")]
    launched += [sample_call(dtype, size) for dtype in types for size in sizes]
    launched += [
        rotary_call(dtype, dim, normed, "cpu", ids)
        for dtype in (torch.float16, torch.bfloat16)
        for dim in (64, 128)
        for normed in (True, False)
        for ids in (torch.int32, torch.int64)
    ]
    launched += [  # of Gemma 3
        rotary_call(torch.bfloat16, dim, True, "cpu", ids, torch.float32)
        for dim in (128, 256)
        for ids in (torch.int32, torch.int64)
    ]
    for rows, dtype in itertools.product((1, 40, 99), (torch.float16, torch.bfloat16)):
        launched += products_of_checkpoints(rows, dtype)
    for architecture in (80, 89, 90):
        ours = launcher(Library(), architecture, tmp_path)
        assert ours.missing(call.program() for call in launched) == []


def products_of_checkpoints(rows: int, dtype: torch.dtype) -> Iterator[Call]:
    """FP8 by output and in blocks, AWQ and GPTQ, experts of these, of gpt-oss and of plain ones."""
    single, half = torch.float32, torch.float16
    for biased in (True, False):
        for group in (128, 256):  # 256: all inputs
            yield product_call(Kind.FP8, rows, dtype, group=group, biased=biased)
        for group, scales in itertools.product((32, 64, 128), (single, half)):
            if scales is half or dtype is torch.bfloat16:
                yield product_call(
                    Kind.INT4, rows, dtype, group=group, biased=biased, scales=scales
                )
    for way in ("reads", "writes"):
        yield product_call(Kind.MXFP4, rows, dtype, group=32, grouped=way, biased=True)
        yield product_call(Kind.FP8, rows, dtype, grouped=way)
        for group in (32, 64, 128):
            yield product_call(Kind.INT4, rows, dtype, group=group, grouped=way)
        for biased in (True, False):
            yield product_call(Kind.PLAIN, rows, dtype, grouped=way, biased=biased)


def test_products_that_are_tested_on_a_gpu_are_those_built_ahead() -> None:
    """Dense matrices are multiplied in FP8 and INT4 only."""
    built, outs = set(build.products()), OUTPUTS
    for (kind, group, width), rows in itertools.product(MULTIPLIED, (1, 40, 150)):
        sizes: dict[str, Any] = {"group": group, "width": width, "outs": outs}
        for way in ("reads", "writes"):
            call = product_call(kind, rows, grouped=way, biased=kind is Kind.MXFP4, **sizes)
            assert call.program() in built
        for dtype in (torch.bfloat16, torch.float16) if kind in (Kind.FP8, Kind.INT4) else ():
            assert product_call(kind, rows, dtype, biased=True, **sizes).program() in built


def test_a_program_is_built_only_for_gpus_that_can_run_it(
    tmp_path: Path, compiled: list[tuple[Program, int]]
) -> None:
    product, other = product_call(Kind.FP8).program(), decode_call().program()
    assert write_folder(tmp_path, [product, other], [75, 80]) == 3
    assert compiled == [(other, 75), (product, 80), (other, 80)]


def test_one_program_serves_products_of_all_sizes() -> None:
    several = [
        calls.packed_product(x, matrix, None, torch.zeros(rows, outs))
        for rows, outs, width in ((1, 64, 256), (7, 128, 512))
        for x in [torch.zeros(rows, width)]
        for matrix in [packed_matrix(Kind.FP8, outs, width, group=128)]
    ]
    assert several[0].program() == several[1].program()


@pytest.mark.parametrize("rows", [1, 40, 99])
def test_a_tile_fits_the_shared_memory_of_every_gpu(rows: int) -> None:
    """Three stages of 16-bit numbers: GPUs of 8.6, 8.9 and 12.0 have 99 KiB for a block."""
    tile = calls.tile_for(rows)
    stage = (tile.rows + tile.outputs) * tile.inputs * 2
    assert 3 * stage <= 99 << 10


def test_blocks_of_rows_suffice_for_every_choice_of_experts() -> None:
    matrix = packed_matrix(Kind.PLAIN, 4, 16, 32)
    tile = calls.Tile(16, 16, 32, 4)
    for counts, most in (([1, 0, 0, 0], 1), ([1, 1, 1, 0], 3), ([33, 1, 1, 30], 8)):
        rows, grouping = sum(counts), Grouping(torch.tensor(counts, dtype=torch.int32))
        x, out = torch.zeros(rows, 32), torch.zeros(rows, 16)
        (blocks, _) = calls.packed_product(x, matrix, None, out, grouping, tile).grid
        assert sum(-(-count // 16) for count in counts) <= blocks <= most


def test_cubins_of_other_sources_are_not_found(
    tmp_path: Path, compiled: list[tuple[Program, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = sample_call().program()
    write_folder(tmp_path, [program], [90])
    assert CubinFolder(tmp_path).find(program, 90) is not None
    changed = tmp_path / "kernels.py"
    changed.write_text("other sources")
    monkeypatch.setattr(cubins, "SOURCES", (changed,))
    assert CubinFolder(tmp_path).find(program, 90) is None


@pytest.mark.parametrize(
    ("architecture", "built", "found"),
    [
        (89, (75, 80, 90), 80),
        (86, (80, 86, 89), 86),
        (80, (86, 89), None),
        (75, (80, 90), None),
        (90, (80, 89), None),
        (103, (100,), None),
        (120, (100, 120), 120),
    ],
)
def test_machine_code_runs_on_its_architecture_and_before_hopper_on_later_ones_of_its_generation(
    architecture: int, built: tuple[int, ...], found: int | None
) -> None:
    assert built_for(architecture, built) == found


def test_a_name_tells_everything_that_is_compiled_in() -> None:
    program = sample_call().program()
    changed = [
        dataclasses.replace(program, warps=1),
        dataclasses.replace(program, multiples=()),
        sample_call(torch.float16).program(),
    ]
    names = {file_name(one, 90) for one in (program, *changed)} | {file_name(program, 80)}
    assert len(names) == 5
    # What a launch alone decides is not compiled in.
    assert program == sample_call(vocabulary=320, device="cpu").program()


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("cuModuleLoadData", "cuModuleLoadData failed with 218: invalid image"),
        ("cuLaunchKernel", "cuLaunchKernel failed with 201: invalid context"),
    ],
)
def test_the_driver_s_refusal_is_told(
    fails: str, message: str, tmp_path: Path, compiled: list[tuple[Program, int]]
) -> None:
    with pytest.raises(CudaDriverError, match=message):
        launcher(Library(fails), 90, tmp_path).launch(sample_call(device="cpu"), STREAM)


def test_a_tensor_that_a_program_would_misread_is_refused(
    tmp_path: Path, compiled: list[tuple[Program, int]]
) -> None:
    ours, call = launcher(Library(), 90, tmp_path), sample_call(device="cpu")
    one_off = torch.zeros(9).double()[1:]
    ours.launch(replaced(call, reals=one_off), STREAM)
    with pytest.raises(AssertionError, match=r"logits = \d+: no multiple of 16"):
        ours.launch(replaced(call, logits=torch.zeros(9)[1:]), STREAM)
    with pytest.raises(AssertionError, match="vocabulary = 9: no multiple of 16"):
        ours.launch(replaced(call, vocabulary=9), STREAM)
    with pytest.raises(AssertionError, match="not contiguous"):
        ours.launch(replaced(call, reals=torch.zeros(8, 8).double()[:, 0]), STREAM)


def replaced(call: Call, **arguments: torch.Tensor | int) -> Call:
    return dataclasses.replace(call, arguments=dict(call.arguments) | arguments)


# PyTorch imports its compiler for them: seconds.
@pytest.mark.process
def test_operators_pass_through_fake_tensors() -> None:
    from sluice_kernels.triton import operators

    with FakeTensorMode():
        on: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        qkv, pool = torch.empty(5, 12, 64, **on), torch.empty(7, 3, 2, 16, 2, 64, **on)
        angles, place = torch.empty(5, 32, device="cuda"), torch.zeros(5, device="cuda").long()
        queries = operators.rotate_and_store(qkv, None, 0.0, angles, angles, pool, 1, place, place)
        assert (queries.shape, queries.dtype, queries.device) == ((5, 8, 64), qkv.dtype, qkv.device)
        number = torch.empty(5, device="cuda").int()
        reals, wholes = torch.empty(3, 9, device="cuda"), torch.empty(2, 9, device="cuda")
        tokens = operators.sample_rows(
            torch.empty(5, 259, **on), number, number, reals.double(), wholes.long()
        )
        assert (tokens.shape, tokens.dtype, tokens.device) == ((5,), torch.int64, qkv.device)
        x, order = torch.empty(5, 64, **on), torch.empty(20, device="cuda").int()
        matrix = PackedMatrix(Kind.PLAIN, torch.empty(3, 24, 64, **on))
        grouping = Grouping(order[:3], reads=order, top=4)
        assert operators.packed_product(x, matrix[0]).shape == (5, 24)
        assert operators.packed_product(x, matrix, None, grouping).shape == (20, 24)
        best, shares = operators.choose_experts(x, 4, True)
        assert (best.shape, best.dtype, shares.shape) == ((5, 4), torch.int32, (5, 4))
        assert [each.shape for each in operators.sort_by_expert(best, 64)] == [(20,), (64,)]
        assert operators.clamped_swiglu(x, 1.7, 7.0).shape == (5, 32)
