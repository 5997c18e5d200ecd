"""flashinfer's kernels, built ahead: which ones a model needs, which ones a folder holds.

flashinfer's wheel holds sources that it compiles when they are first called, for minutes and with
nvcc, which a pod does not have. `kernels/build_flashinfer.py` fills a folder instead, a library a
module, and its manifest says for what. Names are those of flashinfer 0.6.13. Nothing but
`use_built` needs it installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Final

from sluice_kernels.architectures import HOPPER, built_for

VERSION: Final = "0.6.13"
BUILT: Final = Path(__file__).with_name("flashinfer_built")
"""Where an image keeps them."""
MANIFEST: Final = "manifest.json"
SHARED: Final = ("norm", "silu_and_mul")
"""Modules that are the same for every model."""
SHORT: Final = {"bfloat16": "bf16", "float16": "f16"}
"""flashinfer's names of number types."""


@dataclass(frozen=True)
class Shape:
    """Attention shape of a model, as far as kernels are compiled for it."""

    dtype: str
    """A key of SHORT."""
    head_dim: int
    fp8_pages: bool = False
    """Keys and values are stored as e4m3; FA3 does not read them."""

    def decode_module(self) -> str:
        """Name of the module for one token a row, without tensor cores."""
        return f"batch_decode_with_kv_cache_{self._types()}"

    def prefill_module(self, kernels: str) -> str:
        """Name of the module for any number of tokens a row; kernels: fa2 or fa3."""
        suffix = "_sm90" if kernels == "fa3" else ""
        return f"batch_prefill_with_kv_cache_{self._types()}_f16qk_False{suffix}"

    def _types(self) -> str:
        name, dim = SHORT[self.dtype], self.head_dim
        pages = "e4m3" if self.fp8_pages else name
        return (
            f"dtype_q_{name}_dtype_kv_{pages}_dtype_o_{name}_dtype_idx_i32_head_dim_qk_{dim}"
            f"_head_dim_vo_{dim}_posenc_0_use_swa_False_use_logits_cap_False"
        )


def needed_modules(shape: Shape) -> tuple[str, ...]:
    """Modules that every engine calls."""
    return (shape.decode_module(), shape.prefill_module("fa2"), *SHARED)


def hopper_module(shape: Shape, architecture: int) -> str | None:
    """Module that an engine on Hopper calls for long prompts; without it FA2 computes them. None:
    the GPU is not Hopper, or there is no such module. architecture: compute capability, 90 for
    9.0."""
    if architecture != HOPPER or shape.fp8_pages:
        return None
    return shape.prefill_module("fa3")


@dataclass(frozen=True)
class Module:
    """One library of a folder."""

    architectures: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Content of a folder; `modules` by name."""

    version: str
    modules: Mapping[str, Module]

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """None: nothing was built there."""
        if not (path := folder / MANIFEST).exists():
            return None
        content = json.loads(path.read_text())
        modules = {
            name: Module(tuple(module["architectures"]), module["sha256"])
            for name, module in content["modules"].items()
        }
        return cls(content["version"], modules)

    def write(self, folder: Path) -> None:
        """Writes the manifest in one step."""
        content = {
            "version": self.version,
            "modules": {name: asdict(module) for name, module in sorted(self.modules.items())},
        }
        temporary = folder / f".{MANIFEST}"
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(folder / MANIFEST)


def library(folder: Path, module: str) -> Path:
    """Where flashinfer looks for what was compiled ahead."""
    return folder / module / f"{module}.so"


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def missing_modules(shape: Shape, architecture: int, folder: Path = BUILT) -> list[str]:
    """Modules that an engine needs and `folder` lacks for its GPU, each with the reason."""
    return _missing(needed_modules(shape), architecture, folder)


def missing_hopper_module(shape: Shape, architecture: int, folder: Path = BUILT) -> str | None:
    """Why FA3 does not compute long prompts on Hopper; None: it does, or the GPU is another one."""
    name = hopper_module(shape, architecture)
    missing = _missing((name,) if name else (), architecture, folder)
    return missing[0] if missing else None


def _missing(names: Iterable[str], architecture: int, folder: Path) -> list[str]:
    manifest = Manifest.read(folder)
    modules = manifest.modules if manifest else {}
    if manifest and manifest.version != VERSION:
        return [f"{folder} was built from flashinfer {manifest.version}, not {VERSION}"]
    obstacles = ((name, _obstacle(name, modules.get(name), architecture, folder)) for name in names)
    return [f"{name} ({obstacle})" for name, obstacle in obstacles if obstacle]


def _obstacle(name: str, module: Module | None, architecture: int, folder: Path) -> str | None:
    if module is None:
        return "not built ahead"
    if built_for(architecture, module.architectures) is None:
        built = ", ".join(f"sm_{one}" for one in module.architectures)
        return f"built for {built}, not sm_{architecture}"
    path = library(folder, name)
    if not path.exists() or digest(path) != module.sha256:
        return "not the file that was built"
    return None


def unusable(shape: Shape, architecture: int, folder: Path = BUILT) -> str | None:
    """Why flashinfer cannot compute a model here; None: its kernels were built ahead, or there is
    nvcc to compile them with when they are first called."""
    missing = missing_modules(shape, architecture, folder)
    if not missing or find_compiler() is not None:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"flashinfer lacks {missing[0]}{more}, and there is no nvcc to compile it"


def find_compiler() -> str | None:
    """Path of nvcc where flashinfer would find it."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    homes.append("/usr/local/cuda")
    return shutil.which("nvcc", path=os.pathsep.join(f"{home}/bin" for home in homes if home)) or (
        shutil.which("nvcc")
    )


def use_built(folder: Path = BUILT) -> None:
    """Imports flashinfer and lets it find `folder`; where there is no compiler, a module that is
    missing is an error at once. It writes sources to a folder of its own, so that is a temporary
    one unless FLASHINFER_WORKSPACE_BASE names another."""
    # Else flashinfer prefers norms that the CuTe DSL compiles at the first call, if it is there.
    os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    scratch = Path(tempfile.gettempdir()) / "flashinfer"
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(scratch))
    if find_compiler() is None:
        os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
    from flashinfer.jit import env

    if Manifest.read(folder) is not None:
        env.FLASHINFER_AOT_DIR = folder


def shapes(dtypes: Iterable[str], head_dims: Iterable[int]) -> list[Shape]:
    """All combinations, with pages of both kinds."""
    every = product(dtypes, head_dims, (False, True))
    return [Shape(dtype, dim, fp8_pages) for dtype, dim, fp8_pages in every]
