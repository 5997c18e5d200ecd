"""Loads cubins and launches them through the CUDA driver, whose interface is stable.

Triton's own launcher is C code that it compiles where it runs; this one needs `libcuda.so.1` alone,
which every machine with a GPU has. Parameters are handed over as Triton's ahead-of-time tool does:
the arguments that are not compiled in, in order, and two addresses of scratch memory (none here).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torch import Tensor

from sluice_kernels.triton.calls import Call, Program, Value
from sluice_kernels.triton.cubins import (
    WARP_THREADS,
    Cubin,
    CubinFolder,
    compile_program,
)

LIBRARY: Final = "libcuda.so.1"
SHARED_BYTES_UNASKED: Final = 48 << 10
"""Most dynamic shared memory of a launch whose function was not allowed more."""
MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8
"""Attribute of a function, by the driver's number: `CUfunction_attribute` in cuda.h."""


class CudaDriverError(RuntimeError):
    """The driver refused to load or launch a kernel."""


class CudaDriver:
    """Calls of the CUDA driver. The calling thread must have a CUDA context, which it gets by
    making a tensor."""

    def __init__(self, library: Any = None) -> None:
        """`library` stands in for the real one in tests."""
        self._library = library if library is not None else ctypes.CDLL(LIBRARY)

    def load(self, cubin: Cubin, kernel: str) -> ctypes.c_void_p:
        """Loads a cubin; the returned function stays launchable until the process ends."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin.code)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        if cubin.shared_bytes > SHARED_BYTES_UNASKED:
            attribute = MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", function, attribute, cubin.shared_bytes)
        return function

    def launch(self, function: ctypes.c_void_p, call: Call, shared_bytes: int, stream: int) -> None:
        """Queues the kernel and returns at once. stream: the address of a CUDA stream."""
        parameters = [*_parameters(call), *(ctypes.c_void_p(),) * 2]
        addresses = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
        self._call(
            "cuLaunchKernel",
            function,
            *(*call.grid, 1),
            *(call.warps * WARP_THREADS, 1, 1),
            shared_bytes,
            ctypes.c_void_p(stream),
            addresses,
            None,
        )

    def _call(self, name: str, *arguments: object) -> None:
        if (code := getattr(self._library, name)(*arguments)) != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            reason = (text.value or b"unknown").decode()
            raise CudaDriverError(f"{name} failed with {code}: {reason}")


def parameter(value: Tensor | Value) -> ctypes._SimpleCData[Any]:
    """Argument of a launch as the kernel reads it; types as in `calls.Call.program`."""
    if isinstance(value, Tensor):
        assert value.is_contiguous(), f"strides {value.stride()}: not contiguous"
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int32(value)


def _parameters(call: Call) -> Iterator[ctypes._SimpleCData[Any]]:
    for name, value in call.arguments.items():
        made = parameter(value)
        if name in call.multiples:
            assert (made.value or 0) % 16 == 0, f"{name} = {made.value}: no multiple of 16"
        yield made


class Launcher:
    """Launches calls on GPUs of one architecture, each program loaded when it is first needed.

    Launch each program once before a graph is captured: loading cannot be captured.
    """

    def __init__(self, driver: CudaDriver, architecture: int, folder: CubinFolder) -> None:
        """architecture: compute capability, 90 for 9.0."""
        self._driver = driver
        self._architecture = architecture
        self._folder = folder
        self._loaded: dict[Program, tuple[ctypes.c_void_p, int]] = {}

    def launch(self, call: Call, stream: int) -> None:
        """Launches a call on a CUDA stream, without waiting for its end."""
        program = call.program()
        if (found := self._loaded.get(program)) is None:
            found = self._loaded[program] = self._load(program)
        function, shared_bytes = found
        self._driver.launch(function, call, shared_bytes, stream)

    def missing(self, programs: Iterable[Program]) -> list[Program]:
        """Programs that the folder lacks; compiling one at start takes about a second."""
        return [one for one in programs if self._folder.find(one, self._architecture) is None]

    def _load(self, program: Program) -> tuple[ctypes.c_void_p, int]:
        cubin = self._folder.find(program, self._architecture)
        if cubin is None:
            cubin = compile_program(program, self._architecture)
        return self._driver.load(cubin, program.kernel), cubin.shared_bytes
