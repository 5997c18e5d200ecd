"""What an image for NVIDIA's GPUs must have, as far as a machine without one can tell.

A part of `check_engine.py`. A GPU's driver comes with the node, so Mooncake cannot be loaded here:
its native library must lack the driver's and nothing else.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib import util
from pathlib import Path

DRIVER = "libcuda.so.1"


def problems() -> Iterator[str]:
    """One line each."""
    import torch
    from sluice_kernels.flashinfer_ahead import CUDA

    if (torch.version.cuda or "").partition(".")[0] != CUDA:
        yield f"torch is built for CUDA {torch.version.cuda}, not {CUDA}"
    yield from _unlinked()
    yield from _kernels()


def _unlinked() -> Iterator[str]:
    found = util.find_spec("mooncake")
    if found is None or found.origin is None:
        yield "Mooncake is not there"
        return
    engine = Path(found.origin).with_name("engine.so")
    missing = missing_libraries(engine, engine.parents[1] / "nvidia" / "cu13" / "lib")
    if missing != {DRIVER}:
        yield f"Mooncake lacks {', '.join(sorted(missing))}; allowed: {DRIVER}, which nodes bring"


def missing_libraries(library: Path, cuda: Path) -> set[str]:
    """What the dynamic loader does not find; `cuda`: what torch has loaded by then."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(cuda)}
    done = subprocess.run(
        ["ldd", str(library)], capture_output=True, text=True, check=True, env=environment
    )
    lines = (line.split() for line in done.stdout.splitlines())
    return {words[0] for words in lines if words[1:4] == ["=>", "not", "found"]}


def _kernels() -> Iterator[str]:
    from sluice_kernels import flashinfer_ahead as ahead
    from sluice_kernels.triton.cubins import BUILT as CUBINS

    ahead.use_built()
    wanted = os.environ
    architectures = [int(one) for one in wanted["ARCHITECTURES"].split()]
    heads = [ahead.Heads.parse(one) for one in wanted["HEADS"].split()]
    for architecture in architectures:
        for shape in ahead.shapes(wanted["DTYPES"].split(), heads):
            yield from ahead.missing_modules(shape, architecture)
            missing = ahead.missing_hopper_module(shape, architecture)
            if missing and not shape.heads.windows:
                yield missing
    if not any(CUBINS.glob("*")):
        yield f"{CUBINS} has no kernels"
