"""The accelerator of this container: its processors, or the GPUs that engine.json asks for.

Device files show whether there are GPUs. Names and memory sizes come from NVIDIA's management
library, or from the files of AMD's driver. Needs no torch, so that the process that starts the
others can call it. Knows no model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_contract.config.accelerators import Accelerator, same_product
from sluice_contract.config.engine import EngineConfig

from sluice_runtime.errors import AcceleratorMissingError

FindAccelerator = Callable[[EngineConfig], Accelerator]
"""Finds the accelerator that an engine with this configuration computes on; raises
AcceleratorMissingError."""

NVIDIA_FILES: Final = "dev/nvidia[0-9]*"
AMD_FILES: Final = "dev/dri/renderD*"
DEVICE_FILES: Final = (NVIDIA_FILES, "dev/kfd", AMD_FILES)
"""Device files of NVIDIA's driver, and of AMD's."""

logger = logging.getLogger("sluice.engine")


@dataclass(frozen=True)
class GpuDevice:
    """One device, or one part of a device that is divided (MIG)."""

    product: str | None
    memory_mib: int | None


class UnreadableError(Exception):
    """There are GPUs, but their properties cannot be read; `str()` is the end of a sentence."""


def find_accelerator(
    config: EngineConfig,
    root: Path = Path("/"),
    nvidia: Callable[[], Sequence[GpuDevice]] | None = None,
) -> Accelerator:
    """The accelerator of an engine with this configuration. A product other than the requested one
    is only logged: the user can decide. `nvidia`: lists NVIDIA's GPUs.

    Raises:
        AcceleratorMissingError: names the requested accelerator, what was found, and what helps.
    """
    configured = config.accelerator
    if configured is None or configured.is_cpu:
        return Accelerator()
    count = max(1, configured.count)
    try:
        gpus = _gpus(root, nvidia or nvml_gpus)
    except UnreadableError as error:
        raise _missing(config, str(error)) from None
    if len(gpus) < count:
        names = ", ".join(gpu.product or "GPU" for gpu in gpus) or "none"
        raise _missing(config, f"the container has {len(gpus)}: {names}")
    return _described(configured, gpus[:count])


def device_files(root: Path) -> list[str]:
    """The device files of GPUs below `root`, by name."""
    paths = (path for pattern in DEVICE_FILES for path in root.glob(pattern))
    return sorted(f"/{path.relative_to(root)}" for path in paths)


def nvml_gpus() -> list[GpuDevice]:
    """NVIDIA's GPUs in this container; a divided GPU is listed as its parts.

    Raises:
        UnreadableError: the library or the driver is missing.
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        raise UnreadableError(
            "this image has no nvidia-ml-py, so it is one for CPUs: take the one for GPUs"
        ) from None
    try:
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return [_nvml_gpu(pynvml, part) for whole in handles for part in _parts(pynvml, whole)]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise UnreadableError(f"NVIDIA's management library says: {error}") from None


def amd_gpus(root: Path) -> list[GpuDevice]:
    """AMD's GPUs whose device files are in this container."""
    names = [path.name for path in sorted(root.glob(AMD_FILES))]
    return [_amd_gpu(root / "sys/class/drm" / name / "device") for name in names]


def _gpus(root: Path, nvidia: Callable[[], Sequence[GpuDevice]]) -> Sequence[GpuDevice]:
    files = device_files(root)
    if any(root.glob(NVIDIA_FILES)):
        return nvidia()
    if "/dev/kfd" in files:
        return amd_gpus(root)
    raise UnreadableError(f"there is none of {', '.join(f'/{name}' for name in DEVICE_FILES)}")


def _described(wanted: Accelerator, used: Sequence[GpuDevice]) -> Accelerator:
    """The devices that an engine computes on. If some are of another product than requested, theirs
    is the product's name."""
    others = [gpu for gpu in used if not _is_wanted(wanted, gpu)]
    product = (others or used)[0].product
    if others:
        logger.warning("accelerator: %s is asked for, and there is %s", wanted.product, product)
    known = [gpu.memory_mib for gpu in used if gpu.memory_mib is not None]
    return Accelerator(product=product, memory_mib=min(known) if known else None, count=len(used))


def _is_wanted(wanted: Accelerator, gpu: GpuDevice) -> bool:
    if wanted.product is None or gpu.product is None:
        return True
    return same_product(wanted.product, gpu.product)


def _missing(config: EngineConfig, seen: str) -> AcceleratorMissingError:
    return AcceleratorMissingError(
        f"accelerator: {config.accelerator} is asked for, and {seen}; to compute on CPUs, "
        f"leave out accelerator of the InferenceService, or accelerator of engine.json"
    )


def _parts(nvml: Any, whole: Any) -> list[Any]:
    """Handles of a GPU's MIG instances, or the GPU's own."""
    try:
        if nvml.nvmlDeviceGetMigMode(whole)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return [whole]
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(whole)
    except nvml.NVMLError_NotSupported:
        return [whole]
    parts = []
    for index in range(most):
        try:
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index))
        except nvml.NVMLError_NotFound:
            continue
    return parts


def _nvml_gpu(nvml: Any, handle: Any) -> GpuDevice:
    name, memory = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuDevice(name or None, memory.total >> 20)


def _amd_gpu(device: Path) -> GpuDevice:
    product, memory = _text(device / "product_name"), _text(device / "mem_info_vram_total")
    return GpuDevice(product or None, int(memory) >> 20 if memory.isdigit() else None)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
