"""Builds the native kernels beside their sources: `kernels/build.py [FOLDER] [--cache FOLDER]`.

Compiles with torch's extension builder, for the torch that is installed. One library holds a
variant for each instruction set; the process that loads it picks one. Building needs setuptools and
g++ 12 or clang; using the library needs only the same torch. A library from the same sources, torch
and compiler is kept, or copied from the cache, without loading torch.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sluice_kernels.sources import STAMP, digest

HERE = Path(__file__).parent / "sluice_kernels"
SOURCES = HERE / "csrc"
LIBRARY = "_native.so"
CACHED = 8
"""Libraries kept in the cache, so that switching between branches rebuilds nothing."""

# The widest set comes last. A variant without flags runs on any processor of the architecture.
VARIANTS: dict[str, list[str]] = {"generic": []}
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"]
AVX512 += ["-mprefer-vector-width=512"]
if platform.machine() == "x86_64":
    VARIANTS |= {
        "avx2": ["-mavx2", "-mfma"],
        "avx512": AVX512,
        "avx512_bf16": [*AVX512, "-mavx512bf16"],
        "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    }
# Contraction of products and sums is what the compiler does by default; nothing else is reordered.
FLAGS = ["-O3", "-std=c++20", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-g0"]
# g++ 12 warns of undefined registers in its own intrinsics.
WARNINGS = ["-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]
# Environment variables that setuptools adds to the command lines without being told.
COMPILER_VARIABLES = ("CC", "CXX", "CPPFLAGS", "CFLAGS", "CXXFLAGS", "LDFLAGS", "LDSHARED")


def fingerprint() -> str:
    """Hash of everything the library is made from."""
    made = hashlib.sha256(Path(__file__).read_bytes() + digest(SOURCES).encode())
    made.update(f"{version('torch')} {platform.machine()} {compiler_version()}".encode())
    made.update("\0".join(os.environ.get(name, "") for name in COMPILER_VARIABLES).encode())
    return made.hexdigest()


def compiler_version() -> str:
    command = [os.environ.get("CXX", "c++"), "-dumpfullversion", "-dumpversion"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build(folder: Path) -> Path:
    """Compiles each variant with its own flags, and links them with the operators."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class Build(BuildExtension):  # type: ignore[misc]
        """torch's builder, which also compiles each variant with that variant's flags."""

        def build_extension(self, extension: Any) -> None:
            with ThreadPoolExecutor(os.cpu_count()) as compilers:
                for objects in compilers.map(self.compile_variant, VARIANTS):
                    extension.extra_objects += objects
            super().build_extension(extension)

        def compile_variant(self, name: str) -> list[str]:
            objects: list[str] = self.compiler.compile(
                [str(SOURCES / "variant.cpp")],
                output_dir=str(Path(self.build_temp) / name),
                macros=[("SLUICE_VARIANT", name)],
                extra_postargs=[*FLAGS, *WARNINGS, *VARIANTS[name]],
            )
            return objects

    extension = CppExtension(
        "sluice_kernels._native",
        [str(SOURCES / name) for name in ("bindings.cpp", "choice.cpp", "layers.cpp")],
        # Without -fopenmp torch's parallel_for compiles into a plain loop.
        extra_compile_args=[*FLAGS, "-fvisibility=hidden", "-fopenmp"],
        extra_link_args=["-s", "-fopenmp"],
        py_limited_api=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        distribution = Distribution({"name": "sluice-kernels", "ext_modules": [extension]})
        command = Build(distribution, use_ninja=False)
        command.build_lib = command.build_temp = scratch
        command.ensure_finalized()
        command.run()
        built = Path(command.get_ext_fullpath("sluice_kernels._native"))
        return place(built, folder / LIBRARY)


def place(source: Path, target: Path) -> Path:
    """Copies in one step: a process that starts meanwhile sees the old library or the new one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, temporary)
    return temporary.replace(target)


def obtain(folder: Path, cache: Path | None, wanted: str) -> None:
    """Copies the library from the cache, or compiles it and keeps it there."""
    kept = None if cache is None else cache / f"{wanted[:16]}.so"
    if kept is not None and kept.exists():
        place(kept, folder / LIBRARY)
        return
    print("… building the kernels", file=sys.stderr)
    build(folder)
    if kept is not None:
        place(folder / LIBRARY, kept)
        by_age = sorted(kept.parent.glob("*.so"), key=lambda path: path.stat().st_mtime_ns)
        for old in by_age[:-CACHED]:
            old.unlink(missing_ok=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE)
    parser.add_argument("--cache", type=Path, help="where built libraries are kept")
    arguments = parser.parse_args(words)
    try:
        wanted = fingerprint()
    except FileNotFoundError:
        print("… no C++ compiler: the engine will compute in plain torch", file=sys.stderr)
        return 0
    stamp, library = arguments.folder / STAMP, arguments.folder / LIBRARY
    if library.exists() and stamp.exists() and stamp.read_text().startswith(wanted):
        return 0
    library.unlink(missing_ok=True)  # after a failed build no library may be left
    obtain(arguments.folder, arguments.cache, wanted)
    stamp.write_text(f"{wanted}\n{digest(SOURCES)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
