"""Builds the native kernels beside their sources: `python kernels/build.py [FOLDER]`.

Through torch's extension builder, ahead of time, for the torch that runs this. One library holds
every instruction set; the process that loads it picks. Needs g++ 12 or clang and setuptools here,
and nothing where the library is used but that torch. What was built from the same sources with the
same torch and compiler is left alone, without loading torch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "sluice_kernels"
SOURCES = HERE / "csrc"
LIBRARY = "_native.so"
STAMP = "_native.stamp"

# The widest last. A variant without flags runs on any processor of the architecture.
VARIANTS: dict[str, list[str]] = {"generic": []}
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"]
AVX512 += ["-mprefer-vector-width=512"]
if platform.machine() == "x86_64":
    VARIANTS |= {
        "avx2": ["-mavx2", "-mfma"],
        "avx512": AVX512,
        "avx512_bf16": [*AVX512, "-mavx512bf16"],
        "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
    }
# Contraction of products and sums is what the compiler does by default; nothing else is reordered.
FLAGS = ["-O3", "-std=c++20", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-g0"]
# g++ 12 takes its own intrinsics' undefined registers for a mistake.
WARNINGS = ["-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]


def fingerprint() -> str:
    """Of everything the library is made from."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(f"{version('torch')} {platform.machine()} {compiler_version()}".encode())
    return digest.hexdigest()


def compiler_version() -> str:
    command = [os.environ.get("CXX", "c++"), "-dumpfullversion", "-dumpversion"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build(folder: Path) -> Path:
    """Compiles each variant with its own flags, and links them with the operators."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class Build(BuildExtension):  # type: ignore[misc]
        """torch's builder, with objects whose flags are their own."""

        def build_extension(self, extension: Any) -> None:
            for name, flags in VARIANTS.items():
                extension.extra_objects += self.compiler.compile(
                    [str(SOURCES / "variant.cpp")],
                    output_dir=str(Path(self.build_temp) / name),
                    macros=[("SLUICE_VARIANT", name)],
                    extra_postargs=[*FLAGS, *WARNINGS, *flags],
                )
            super().build_extension(extension)

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
        return place(built, folder)


def place(built: Path, folder: Path) -> Path:
    """In one step: a process that starts meanwhile sees the old library or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{LIBRARY}.{os.getpid()}"
    shutil.copyfile(built, temporary)
    return temporary.replace(folder / LIBRARY)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    try:
        wanted = fingerprint()
    except FileNotFoundError:
        print("… no C++ compiler: the engine will compute in plain torch", file=sys.stderr)
        return 0
    stamp = folder / STAMP
    if (folder / LIBRARY).exists() and stamp.exists() and stamp.read_text() == wanted:
        return 0
    print("… building the kernels", file=sys.stderr)
    build(folder)
    stamp.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
