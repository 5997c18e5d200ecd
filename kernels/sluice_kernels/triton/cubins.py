"""Triton programs as machine code (cubins): compiles them without a GPU, and stores and finds them
in a folder.

The folder's `manifest.json` names each cubin and the shared memory that it takes. The name includes
a hash of the sources, so that a cubin of older sources is not found. Knows no driver.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_kernels.architectures import built_for
from sluice_kernels.triton.calls import Program

SOURCES: Final = tuple(
    Path(__file__).with_name(name) for name in ("kernels.py", "products.py", "experts.py")
)
BUILT: Final = Path(__file__).with_name("built")
"""Folder of the precompiled cubins in an image."""
MANIFEST: Final = "manifest.json"
WARP_THREADS: Final = 32


@dataclass(frozen=True)
class Cubin:
    """Machine code of one program for one architecture."""

    code: bytes
    shared_bytes: int
    """Shared memory that a launch asks for."""


def compile_program(program: Program, architecture: int) -> Cubin:
    """Compiles for compute capability `architecture` (90 is 9.0), in about a second. Needs
    Triton."""
    from triton import compile as compile_source
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = function_of(program.kernel)
    types = dict(program.types)
    source = ASTSource(
        fn=function,
        signature={name: types.get(name, "constexpr") for name in function.arg_names},
        constexprs=dict(program.constants),
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(function.arg_names)
            if name in program.multiples
        },
    )
    target = GPUTarget("cuda", architecture, WARP_THREADS)
    compiled = compile_source(source, target=target, options={"num_warps": program.warps})
    scratch = compiled.metadata.global_scratch_size + compiled.metadata.profile_scratch_size
    assert scratch == 0, f"{program.kernel}: launches bring no scratch memory"
    return Cubin(compiled.asm["cubin"], compiled.metadata.shared)


def function_of(kernel: str) -> Any:
    """The Triton function of that name. Needs Triton."""
    from sluice_kernels.triton import experts, kernels, products

    modules = (kernels, products, experts)
    return next(getattr(module, kernel) for module in modules if hasattr(module, kernel))


def file_name(program: Program, architecture: int) -> str:
    """File name of a compiled program, with a hash of the kernels' sources."""
    made_of = b"".join(path.read_bytes() for path in SOURCES) + repr(program).encode()
    return f"{program.kernel}-{hashlib.sha256(made_of).hexdigest()[:16]}-sm{architecture}.cubin"


class CubinFolder:
    """Cubins of a folder; if it does not exist, there are none."""

    def __init__(self, folder: Path = BUILT) -> None:
        self._folder = folder
        manifest = folder / MANIFEST
        content = json.loads(manifest.read_text()) if manifest.exists() else {}
        self.architectures: tuple[int, ...] = tuple(content.get("architectures", ()))
        self._shared_bytes: dict[str, int] = content.get("cubins", {})

    def find(self, program: Program, architecture: int) -> Cubin | None:
        """The program's cubin for this architecture, or for another architecture whose code also
        runs on this one; None: there is none."""
        if (built := built_for(architecture, self.architectures)) is None:
            return None
        name = file_name(program, built)
        if (shared_bytes := self._shared_bytes.get(name)) is None:
            return None
        return Cubin((self._folder / name).read_bytes(), shared_bytes)


def write_folder(folder: Path, programs: Iterable[Program], architectures: Iterable[int]) -> int:
    """Compiles all programs for all architectures that can run them, then writes the manifest;
    returns the number of cubins."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted, kept = sorted(set(architectures)), {}
    every = [*dict.fromkeys(programs)]
    for architecture in wanted:
        for program in every:
            if architecture < program.min_capability:
                continue
            cubin = compile_program(program, architecture)
            name = file_name(program, architecture)
            (folder / name).write_bytes(cubin.code)
            kept[name] = cubin.shared_bytes
    manifest = {"architectures": wanted, "cubins": kept}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return len(kept)
