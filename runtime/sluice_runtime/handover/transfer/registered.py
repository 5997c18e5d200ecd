"""Registered ranges of memory, whose bytes are not copied. Knows no backend."""

from __future__ import annotations

import ctypes
import threading

from sluice_runtime.handover.transfer.backend import NotRegisteredError


class RegisteredMemory:
    """Ranges that may be read and written. There are a few large ones, so every look-up goes
    through all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges: tuple[tuple[int, int], ...] = ()
        """(first address, address after the last)."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return self._ranges

    def add(self, address: int, length_bytes: int) -> None:
        check_range(address, length_bytes)
        with self._lock:
            self._ranges = (*self._ranges, (address, address + length_bytes))

    def holds(self, address: int, length_bytes: int) -> bool:
        end = address + length_bytes
        return length_bytes > 0 and any(
            first <= address and end <= last for first, last in self._ranges
        )

    def view(self, address: int, length_bytes: int) -> memoryview:
        """The bytes themselves, not a copy.

        Raises:
            NotRegisteredError: a byte is outside the registered ranges.
        """
        if not self.holds(address, length_bytes):
            raise NotRegisteredError(
                f"{length_bytes} bytes at {address:#x} are outside of registered memory"
            )
        return memory_at(address, length_bytes)


def check_range(address: int, length_bytes: int) -> None:
    """
    Raises:
        NotRegisteredError: no backend can register this range.
    """
    if address <= 0 or length_bytes <= 0:
        raise NotRegisteredError(
            f"register: {length_bytes} bytes at {address:#x}; allowed: at least one byte, "
            "not at address 0"
        )


def memory_at(address: int, length_bytes: int) -> memoryview:
    """A writable view of raw memory. The caller makes sure that the memory exists."""
    return memoryview((ctypes.c_char * length_bytes).from_address(address)).cast("B")
