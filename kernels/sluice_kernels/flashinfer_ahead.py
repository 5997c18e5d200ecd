"""Prebuilt kernels of flashinfer: which ones a model needs, and which ones a folder holds.

flashinfer's wheel holds sources that it compiles at their first call: that takes minutes, and nvcc,
which a pod does not have. `kernels/build_flashinfer.py` fills a folder with one library for each
module, and a manifest that lists them. Module names are those of flashinfer 0.6.13. Only
`use_built` needs flashinfer installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluice_kernels.architectures import HOPPER, built_for

VERSION: Final = "0.6.13"
CUDA: Final = "13"
"""Major version of CUDA, whose runtime the libraries are linked to."""
BUILT: Final = Path(__file__).with_name("flashinfer_built")
"""Folder of the prebuilt libraries in an image."""
MANIFEST: Final = "manifest.json"
ACTIVATIONS: Final = ("silu_and_mul", "gelu_tanh_and_mul")
"""Modules of activations, of which a model calls one at most."""
SHORT: Final = {"bfloat16": "bf16", "float16": "f16"}
"""flashinfer's names of number types."""
HEADS_FORM: Final = (
    "a head dimension, followed by w if layers have sliding windows, or s if they have sinks"
)


class Heads(NamedTuple):
    """Head dimension of a model, and kinds of its layers."""

    dim: int
    windows: bool = False
    """Some layers have a sliding window; FA2 computes these."""
    sinks: bool = False
    """Layers have attention sinks; FA2 computes these, with a window or without."""

    @classmethod
    def parse(cls, text: str) -> Heads:
        """Heads that a word of a command line names: see `HEADS_FORM`.

        Raises:
            argparse.ArgumentTypeError: the word has another form.
        """
        parts = re.fullmatch(r"([1-9][0-9]*)([ws]?)", text)
        if parts is None:
            raise ArgumentTypeError(f"{text} is not allowed; allowed: {HEADS_FORM}")
        dim, layers = parts.groups()
        return cls(int(dim), windows=layers == "w", sinks=layers == "s")


@dataclass(frozen=True)
class Shape:
    """Properties of a model's attention that its kernels are compiled for."""

    dtype: str
    """A key of SHORT."""
    heads: Heads
    fp8_pages: bool = False
    """Keys and values are stored as e4m3; FA3 does not read them."""

    def decode_module(self) -> str:
        """Name of the module for one token a row, without tensor cores or windows."""
        return f"batch_decode_with_kv_cache_{self._types()}_use_swa_False_use_logits_cap_False"

    def prefill_module(self, kernels: str, *, windowed: bool = False) -> str:
        """Name of the module for any number of tokens a row; kernels: fa2 or fa3."""
        suffix = "_sm90" if kernels == "fa3" else ""
        features = f"use_swa_{windowed}_use_logits_cap_False_f16qk_False"
        return f"batch_prefill_with_kv_cache_{self._types()}_{features}{suffix}"

    def sink_module(self) -> str:
        """Name of our own for FA2's module with sinks, for layers with a window and without.
        flashinfer's name for it has no head dimension, so a folder could hold modules for one
        only."""
        return f"batch_prefill_attention_sink_{self._types()}_fa2"

    def _types(self) -> str:
        name, dim = SHORT[self.dtype], self.heads.dim
        pages = "e4m3" if self.fp8_pages else name
        return (
            f"dtype_q_{name}_dtype_kv_{pages}_dtype_o_{name}_dtype_idx_i32_head_dim_qk_{dim}"
            f"_head_dim_vo_{dim}_posenc_0"
        )


def needed_modules(shape: Shape, activations: Sequence[str] = ACTIVATIONS) -> tuple[str, ...]:
    """Modules that every engine of a model calls. activations: the model's own; by default those
    of any model with this shape."""
    shared = ("norm", *activations)
    if shape.heads.sinks:
        return (shape.sink_module(), *shared)
    kinds = (False, True) if shape.heads.windows else (False,)
    prefill = (shape.prefill_module("fa2", windowed=windowed) for windowed in kinds)
    return (shape.decode_module(), *prefill, *shared)


def sink_arguments(shape: Shape) -> list[Any]:
    """Arguments of flashinfer's `gen_customize_batch_prefill_module` after the backend, fa2, for
    layers with sinks. Wrappers take them as `jit_args`."""
    import torch
    from flashinfer.jit.attention.variants import attention_sink_decl

    dtype, dim = getattr(torch, shape.dtype), shape.heads.dim
    pages = torch.float8_e4m3fn if shape.fp8_pages else dtype
    tensors, scalars = (["sink"], ["float"]), (["sm_scale"], ["double"])
    variant = ("AttentionSink", attention_sink_decl["fa2"])
    types = (dtype, pages, dtype, torch.int32, dim, dim)
    return [shape.sink_module(), *types, *tensors, *scalars, *variant]


def hopper_module(shape: Shape, architecture: int) -> str | None:
    """Module that an engine on Hopper calls for long prompts; without the module FA2 computes them.
    None: the GPU is not Hopper, or flashinfer has no module for this shape. architecture: compute
    capability, 90 for 9.0."""
    if architecture != HOPPER or shape.fp8_pages or shape.heads.sinks:
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
        """The folder's manifest; None: nothing was built there."""
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
    """Path where flashinfer looks for a module's prebuilt library."""
    return folder / module / f"{module}.so"


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def missing_modules(
    shape: Shape,
    architecture: int,
    folder: Path = BUILT,
    activations: Sequence[str] = ACTIVATIONS,
) -> list[str]:
    """Modules that an engine needs and `folder` lacks for its GPU, each with the reason.
    activations: see `needed_modules`."""
    return _missing(needed_modules(shape, activations), architecture, folder)


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


def unusable(missing: Sequence[str]) -> str | None:
    """Why flashinfer cannot compute a model here; None: its kernels were built ahead, or there is
    nvcc to compile them with when they are first called. missing: see `missing_modules`."""
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
    """Imports flashinfer and makes it load libraries from `folder`. Without a compiler, calling a
    missing module is an error at once. flashinfer writes sources to FLASHINFER_WORKSPACE_BASE; by
    default that is set to a temporary folder."""
    # By default flashinfer prefers norms that the CuTe DSL, if installed, compiles at the first
    # call.
    os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    scratch = Path(tempfile.gettempdir()) / "flashinfer"
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(scratch))
    if find_compiler() is None:
        os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
    from flashinfer.jit import env

    if Manifest.read(folder) is not None:
        env.FLASHINFER_AOT_DIR = folder


def shapes(dtypes: Iterable[str], heads: Iterable[Heads]) -> list[Shape]:
    """Shapes for all combinations, each with 16-bit and with 8-bit pages."""
    every = product(dtypes, heads, (False, True))
    return [Shape(*properties) for properties in every]
