"""Builds flashinfer's kernels ahead: `kernels/build_flashinfer.py [FOLDER] [-a 80 90 100]
[--dtypes bfloat16 float16] [--heads 64 128 128w 256w 64s] [--compared] [--scratch FOLDER]
[--jobs N]`.

FOLDER gets a manifest and one library for each module, with the code of all architectures. By
default it is the folder in `sluice_kernels` where engines look. Needs flashinfer 0.6.13, torch for
CUDA, a C++ compiler, and nvcc from CUDA_HOME or from the packages of the group `flashinfer-build`;
needs no GPU. Hopper with one number type takes 25 minutes of CPU time, then 54 for fa3. An
interrupted run can be repeated: it skips modules in the manifest, and compiled objects stay in the
scratch folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from sluice_kernels.flashinfer_ahead import (
    BUILT,
    CUDA,
    HEADS_FORM,
    SHORT,
    VERSION,
    Heads,
    Manifest,
    Module,
    Shape,
    digest,
    hopper_module,
    library,
    needed_modules,
    shapes,
    sink_arguments,
)

ARCHITECTURES: Final = (80, 90, 100)
"""Compute capabilities: A100 and its generation up to 8.9; H100 and H200; B200."""
HEADS: Final = tuple(map(Heads.parse, ("64", "128", "128w", "256w", "64s")))
"""Heads of most models, then those of Gemma 3 and of gpt-oss."""
TARGETS: Final = "FLASHINFER_CUDA_ARCH_LIST"

Build = Callable[[str, tuple[int, ...]], Path]
"""Function that compiles a module for architectures and returns the library's path."""


def plan(every: list[Shape], architectures: list[int]) -> dict[str, tuple[int, ...]]:
    """Architectures to build each module for. FA3's modules, which take the longest, come last, and
    are built for models without windows."""
    everywhere = {
        name: tuple(sorted(architectures)) for shape in every for name in needed_modules(shape)
    }
    on_hopper = {
        name: (architecture,)
        for shape in every
        for architecture in architectures
        if not shape.heads.windows and (name := hopper_module(shape, architecture))
    }
    return everywhere | on_hopper


COMPARED: Final = ("sampling", "rope", "page")
"""Modules that no engine calls: `benchmarks.gpu.kernels` compares ours with them."""


def build_all(folder: Path, wanted: dict[str, tuple[int, ...]], build: Build) -> None:
    """Builds every module of `wanted`. The manifest is written after each one, so that a repeated
    run skips it."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Manifest.read(folder)
    done = dict(before.modules) if before and before.version == VERSION else {}
    for number, (name, architectures) in enumerate(wanted.items(), 1):
        path, module = library(folder, name), done.get(name)
        if module and path.exists():
            if set(architectures) <= set(module.architectures):
                continue
            architectures = tuple(sorted({*architectures, *module.architectures}))
        began, cpu_began = time.monotonic(), _cpu_seconds()
        print(f"… {number} of {len(wanted)}: {name}", file=sys.stderr, flush=True)
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(build(name, architectures), path)
        done[name] = Module(architectures, digest(path))
        Manifest(VERSION, done).write(folder)
        seconds, cpu = time.monotonic() - began, _cpu_seconds() - cpu_began
        size = path.stat().st_size / 1e6
        print(f"  {seconds:.0f} s, {cpu:.0f} s of CPU time, {size:.1f} MB",
              file=sys.stderr, flush=True)  # fmt: skip


def _cpu_seconds() -> float:
    """CPU time of the compilers that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cuda_home(scratch: Path) -> Path:
    """Folder with nvcc and its files from NVIDIA's installed packages, laid out as flashinfer
    expects. The driver's library in it is a stub: the real one comes with a GPU."""
    found = importlib.util.find_spec("nvidia")
    folders = list(found.submodule_search_locations or ()) if found else []
    packages = next((path for one in folders if (path := Path(one, f"cu{CUDA}")).exists()), None)
    if packages is None or not (packages / "bin" / "nvcc").exists():
        raise FileNotFoundError("no nvcc: install the group flashinfer-build, or set CUDA_HOME")
    home = scratch / "cuda"
    stubs = home / "lib64" / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "include", "nvvm"):
        link(home / name, packages / name)
    link(home / "lib64" / "libcudart.so", packages / "lib" / f"libcudart.so.{CUDA}")
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-shared", "-x", "c++", "/dev/null", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-o", str(stubs / "libcuda.so")], check=True)
    return home


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def flashinfer_builder(
    scratch: Path, every: list[Shape], architectures: list[int], jobs: int
) -> Build:
    """Compiles by flashinfer's own generators."""
    if "CUDA_HOME" not in os.environ:
        os.environ["CUDA_HOME"] = str(cuda_home(scratch))
    # flashinfer finds ninja on the PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ |= {"FLASHINFER_WORKSPACE_BASE": str(scratch), "MAX_JOBS": str(jobs), "PATH": path}
    # On import flashinfer names its folder after these architectures.
    os.environ[TARGETS] = targets(architectures)
    import flashinfer
    from flashinfer.compilation_context import CompilationContext
    from flashinfer.jit import core

    if flashinfer.__version__ != VERSION:
        raise RuntimeError(f"flashinfer {flashinfer.__version__} is installed, not {VERSION}")
    generators = dict(specs(every))

    def build(name: str, architectures: tuple[int, ...]) -> Path:
        os.environ[TARGETS] = targets(architectures)
        context = CompilationContext()  # type: ignore[no-untyped-call]
        core.current_compilation_context.TARGET_CUDA_ARCHS = context.TARGET_CUDA_ARCHS
        spec = generators[name]()
        assert spec.name == name, f"flashinfer calls it {spec.name}"
        spec.build(verbose=False)
        return Path(spec.jit_library_path)

    return build


def targets(architectures: Iterable[int]) -> str:
    """Architectures as flashinfer's variable lists them; it adds the letters of newer ones
    itself."""
    return " ".join(f"{one // 10}.{one % 10}" for one in architectures)


def specs(every: list[Shape]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Pairs of a module's name and flashinfer's generator for it."""
    import torch
    from flashinfer.jit.activation import gen_act_and_mul_module
    from flashinfer.jit.attention import gen_batch_decode_module, gen_batch_prefill_module
    from flashinfer.jit.attention import gen_customize_batch_prefill_module as gen_sinks
    from flashinfer.jit.norm import gen_norm_module
    from flashinfer.jit.page import gen_page_module
    from flashinfer.jit.rope import gen_rope_module
    from flashinfer.jit.sampling import gen_sampling_module

    yield "norm", gen_norm_module
    yield "sampling", gen_sampling_module
    yield "rope", gen_rope_module
    yield "page", gen_page_module
    for activation in ("silu", "gelu_tanh"):
        yield f"{activation}_and_mul", partial(gen_act_and_mul_module, activation)
    for shape in every:
        dtype, (dim, windows, sinks) = getattr(torch, shape.dtype), shape.heads
        if sinks:
            yield shape.sink_module(), partial(gen_sinks, "fa2", *sink_arguments(shape))
            continue
        # No built-in rotation, no logit cap; prompts are summed in float32.
        pages = torch.float8_e4m3fn if shape.fp8_pages else dtype
        types = (dtype, pages, dtype, torch.int32, dim, dim, 0)
        yield shape.decode_module(), partial(gen_batch_decode_module, *types, False, False)
        kinds = [("fa2", False), ("fa2", True) if windows else ("fa3", False)]
        for kernels, windowed in kinds[:1] if shape.fp8_pages and not windows else kinds:
            made = partial(gen_batch_prefill_module, kernels, *types, windowed, False, False)
            yield shape.prefill_module(kernels, windowed=windowed), made


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=BUILT)
    parser.add_argument("-a", "--architectures", type=int, nargs="+", default=ARCHITECTURES)
    parser.add_argument("--dtypes", nargs="+", choices=SHORT, default=list(SHORT))
    parser.add_argument("--heads", type=Heads.parse, nargs="+", default=HEADS, help=HEADS_FORM)
    parser.add_argument("--compared", action="store_true", help=f"{', '.join(COMPARED)} as well")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "flashinfer")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(words)
    every = shapes(arguments.dtypes, arguments.heads)
    wanted = plan(every, arguments.architectures)
    if arguments.compared:
        wanted |= dict.fromkeys(COMPARED, tuple(sorted(arguments.architectures)))
    scratch = arguments.scratch.resolve()
    build = flashinfer_builder(scratch, every, sorted(arguments.architectures), arguments.jobs)
    build_all(arguments.folder, wanted, build)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
