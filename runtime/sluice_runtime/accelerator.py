"""What this container computes on: its processors, or the GPUs that engine.json asks for.

Looks at device files alone, so it needs neither a driver's library nor torch. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from sluice_contract.accelerators import Accelerator
from sluice_contract.config import EngineConfig

from sluice_runtime.errors import AcceleratorMissingError

FindAccelerator = Callable[[EngineConfig], Accelerator]
"""From a configuration to what the engine computes on; raises AcceleratorMissingError."""

DEVICE_FILES: Final = ("dev/nvidia[0-9]*", "dev/kfd", "dev/dri/renderD*")
"""Of NVIDIA's driver, and of AMD's."""


def find_accelerator(config: EngineConfig, root: Path = Path("/")) -> Accelerator:
    """The accelerator of an engine with this configuration; in this version, always its CPUs.

    Raises:
        AcceleratorMissingError: names what is asked for, what was found, and what helps.
    """
    wanted = config.accelerator
    if wanted is None or wanted.is_cpu:
        return Accelerator()
    found = device_files(root)
    there = ", ".join(found[:8])
    seen = f"found are {there}, which this version cannot use" if found else _none_of_them()
    raise AcceleratorMissingError(
        f"accelerator: {wanted} is asked for, and {seen}: this version of the engine computes on "
        f"CPUs only; leave out spec.pools.{config.role}.accelerator"
    )


def device_files(root: Path) -> list[str]:
    """The device files of GPUs below `root`, by name."""
    found = (path for pattern in DEVICE_FILES for path in root.glob(pattern))
    return sorted(f"/{path.relative_to(root)}" for path in found)


def _none_of_them() -> str:
    return f"there is none of {', '.join(f'/{pattern}' for pattern in DEVICE_FILES)}"
