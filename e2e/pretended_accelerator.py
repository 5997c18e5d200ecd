"""An engine that says it has the GPUs its configuration asks for, and computes on CPUs.

The entry point of the image `engine-pretended`, for tests alone: no other image has this file.
PRETENDED_PRODUCT and PRETENDED_MEMORY_MIB describe the GPUs; without a product, the engine pretends
nothing. The processes read a copy of the configuration without settings that only GPUs have.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice_contract.base import ConfigError
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import EngineConfig, read_engine_config, render_engine_config
from sluice_runtime.process import launch

OF_GPUS = ("accelerator", "cuda_graph_max_batch", "tensor_parallel_size")


def pretended(wanted: Accelerator) -> Accelerator:
    """As many GPUs as are asked for, of the product in the environment."""
    memory = os.environ.get("PRETENDED_MEMORY_MIB")
    return Accelerator(
        product=os.environ["PRETENDED_PRODUCT"],
        memory_mib=int(memory) if memory else None,
        count=wanted.count,
    )


def main(arguments: list[str]) -> int:
    """`--config FILE`, as the engine's own entry point."""
    config = configured(arguments)
    wanted = config.accelerator if config else None
    if config is None or wanted is None or wanted.is_cpu or "PRETENDED_PRODUCT" not in os.environ:
        return launch.main(arguments)
    with TemporaryDirectory() as folder:
        path = Path(folder, "engine.json")
        path.write_text(render_engine_config(config.model_copy(update=dict.fromkeys(OF_GPUS))))
        return launch.main(["--config", str(path)], find=lambda _: pretended(wanted))


def configured(arguments: list[str]) -> EngineConfig | None:
    """The engine's configuration; None if it is invalid, which the engine itself will report."""
    try:
        return read_engine_config(Path(arguments[arguments.index("--config") + 1]))
    except (ConfigError, ValueError, IndexError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
