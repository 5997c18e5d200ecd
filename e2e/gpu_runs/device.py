"""Which CUDA devices this machine has, asked of the driver's own library.

Needs neither torch nor a toolkit, so a machine without a GPU is told at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

NAME_BYTES = 256


class NoDeviceError(Exception):
    """One line for whoever asked."""


def cuda_devices(load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> list[str]:
    """Names of the devices, in the driver's order.

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
    return [_name(driver, index) for index in range(count.value)]


def _name(driver: ctypes.CDLL, index: int) -> str:
    text = ctypes.create_string_buffer(NAME_BYTES)
    code = driver.cuDeviceGetName(text, NAME_BYTES, index)
    return text.value.decode() if not code else f"device {index}"
