"""Turns an installed CUDA build of torch into a CPU one: `slim_torch.py SITE_PACKAGES`.

PyPI carries only the CUDA build of torch for Linux x86-64. Its CPU half works without the NVIDIA
libraries, but is linked to them, so the dynamic loader insists on finding them. This script deletes
torch's own CUDA libraries, puts small generated libraries with the same sonames, symbols and symbol
versions where they and the NVIDIA libraries would be, and strips what is left. A generated function
says its name and aborts, but for the few that answer "there is no device".

It needs nothing but the standard library and what `stand_ins` does, and the NVIDIA packages need
not be installed. A CPU build is left as it is.
"""

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from images.stand_ins import Symbol, compile_stand_in, dynamic_symbols, needed_sonames, run

# What only a CUDA process runs. The others are reached through the first, whose place is filled.
REPLACED = "libtorch_cuda.so"
DELETED = (REPLACED, "libtorch_cuda_linalg.so", "libtorch_nvshmem.so", "libcaffe2_nvrtc.so")
# Compilers' inputs and tools of torch itself, relative to torch/.
UNUSED = ("include", "share", "test", "bin/ptxas", "bin/protoc", "bin/protoc-3.13.0.0")
NVIDIA_SONAME = re.compile(r"lib(cu|nv|nccl)[A-Za-z]*\.so\.\d+$")

# Functions that a CPU process does call, and what each returns: 100 is cudaErrorNoDevice.
# get_gil_checker() hands out a reference to a pointer, which torch sets when it is imported.
ANSWERS = {
    "cudaGetDeviceCount": "100",
    "cudaGetLastError": "0",
    "_ZN4c10d15get_gil_checkerEv": "(long)scratch",
}


def missing_symbols(
    libraries: Mapping[Path, list[Symbol]], provided: Mapping[str, Symbol]
) -> dict[str, set[Symbol]]:
    """soname → what `libraries` want of it, for torch's CUDA library and each of NVIDIA's.

    A versioned symbol names its library; an unversioned one is known by its prefix
    (libcufile.so.0: cuFileRead). `provided` is what torch's deleted libraries defined, by name.
    """
    wanted: dict[str, set[Symbol]] = {}
    for library, symbols in libraries.items():
        undefined = [symbol for symbol in symbols if symbol.kind == "U"]
        for soname in sorted(needed_sonames(library)):
            if soname == REPLACED:
                found = {provided[s.name] for s in undefined if s.name in provided}
            elif NVIDIA_SONAME.match(soname):
                found = {symbol for symbol in undefined if _belongs(symbol, soname)}
            else:
                continue
            wanted.setdefault(soname, set()).update(found)
    return wanted


def _belongs(symbol: Symbol, soname: str) -> bool:
    stem = soname.removeprefix("lib").partition(".so")[0]
    return symbol.version == soname or (
        not symbol.version and symbol.name.lower().startswith(stem.lower())
    )


def slim(site_packages: Path) -> bool:
    """Makes the torch in `site_packages` a CPU one; False if it already was."""
    torch = site_packages / "torch"
    folder = torch / "lib"
    if not (folder / REPLACED).exists():
        return False
    deleted = [path for name in DELETED if (path := folder / name).exists()]
    provided = {s.name: s for path in deleted for s in dynamic_symbols(path) if s.kind not in "Uwv"}
    for path in deleted:
        path.unlink()
    for name in UNUSED:
        path = torch / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    kept = {path: dynamic_symbols(path) for path in sorted(folder.glob("*.so"))}
    for path in kept:
        run("strip", "--strip-unneeded", str(path))
    for soname, symbols in sorted(missing_symbols(kept, provided).items()):
        compile_stand_in(soname, symbols, folder, ANSWERS)
        print(f"slim_torch: {soname}: {len(symbols)} symbols", flush=True)
    return True


def main() -> int:
    site_packages = Path(sys.argv[1])
    if not slim(site_packages):
        print("slim_torch: torch has no CUDA half, nothing to do")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
