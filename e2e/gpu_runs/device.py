"""CUDA devices of this machine, by the driver's own library, and flashinfer's modules that they
lack.

Needs neither torch nor a toolkit, so a machine without a GPU gets its error at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from sluice_kernels import flashinfer_ahead as ahead

from e2e.gpu_runs.cases import Case

NAME_BYTES = 256
CAPABILITY = (75, 76)
"""`CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`."""


class NoDeviceError(Exception):
    """No device can be used; `str()` is one line that says why."""


@dataclass(frozen=True)
class CudaDevice:
    name: str
    architecture: int
    """Compute capability, 90 for 9.0."""


def cuda_devices(load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> list[CudaDevice]:
    """The devices, in the driver's order.

    Raises:
        NoDeviceError: there is no driver, or it has no device.
    """
    try:
        driver = load("libcuda.so.1")
    except OSError as error:
        raise NoDeviceError(f"no CUDA device: {error}") from None
    if code := driver.cuInit(0):
        raise NoDeviceError(f"no CUDA device: the driver's cuInit says {code}")
    count = ctypes.c_int()
    if (code := driver.cuDeviceGetCount(ctypes.byref(count))) or not count.value:
        raise NoDeviceError(f"no CUDA device: the driver has {count.value} (code {code})")
    return [_device(driver, index) for index in range(count.value)]


def _device(driver: ctypes.CDLL, index: int) -> CudaDevice:
    text, numbers = ctypes.create_string_buffer(NAME_BYTES), [ctypes.c_int(), ctypes.c_int()]
    code = driver.cuDeviceGetName(text, NAME_BYTES, index)
    for number, attribute in zip(numbers, CAPABILITY, strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, index)
    major, minor = numbers
    name = text.value.decode() if not code else f"device {index}"
    return CudaDevice(name, 10 * major.value + minor.value)


def missing_modules(architecture: int, case: Case) -> list[str]:
    """flashinfer's modules that `case` needs and that were not built ahead, each with the reason.
    `architecture`: see `CudaDevice`."""
    shapes = ahead.shapes(["bfloat16"], map(ahead.Heads.parse, case.heads))
    needed = (shape for shape in shapes if case.fp8_pages or not shape.fp8_pages)
    missing = (ahead.missing_modules(shape, architecture) for shape in needed)
    return list(dict.fromkeys(module for modules in missing for module in modules))
