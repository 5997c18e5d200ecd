"""An engine that says it has the GPUs its configuration asks for, and computes on CPUs.

The entry point of the image `engine-pretended`, for tests alone: no other image has this file. What
the GPUs are called comes from PRETENDED_PRODUCT and PRETENDED_MEMORY_MIB; without a product it
finds what any engine finds.
"""

from __future__ import annotations

import os
import sys

from sluice_contract.accelerators import Accelerator
from sluice_contract.config import EngineConfig
from sluice_runtime import launch
from sluice_runtime.accelerator import find_accelerator


def pretended(config: EngineConfig) -> Accelerator:
    """As many GPUs as are asked for, of the product in the environment."""
    product, wanted = os.environ.get("PRETENDED_PRODUCT"), config.accelerator
    if not product or wanted is None or wanted.is_cpu:
        return find_accelerator(config)
    memory = os.environ.get("PRETENDED_MEMORY_MIB")
    return Accelerator(
        product=product, memory_mib=int(memory) if memory else None, count=wanted.count
    )


if __name__ == "__main__":
    sys.exit(launch.main(find=pretended))
