"""Turns an installed CUDA build of torch into a CPU one: `slim_torch.py SITE_PACKAGES`.

PyPI carries only the CUDA build of torch for Linux x86-64. Its CPU half works without the NVIDIA
libraries, but is linked to them, so the dynamic loader insists on finding them. This script deletes
torch's own CUDA libraries, puts small generated libraries with the same sonames, symbols and symbol
versions where they and the NVIDIA libraries would be, and strips what is left. A generated function
says its name and aborts, but for the few that answer "there is no device".

It knows ELF only through binutils and compiles with the C compiler it finds; it needs nothing but
the standard library, and the NVIDIA packages need not be installed. A CPU build is left as it is.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
WORD_BYTES = 8

PRELUDE = """\
#include <stdio.h>
#include <stdlib.h>
static void missing(const char *name) {
    fprintf(stderr, "%s was called, but this torch was built into a CPU image\\n", name);
    abort();
}
static void *scratch[1];
static void missing_virtual(void) { missing("a virtual function of CUDA code"); }
/* libstdc++'s own: what makes the type infos below comparable and printable. */
extern char class_type_info[] __asm__("_ZTVN10__cxxabiv117__class_type_infoE");
"""


class SlimmingError(Exception):
    """Torch's libraries hold something for which there is no stand-in."""


@dataclass(frozen=True)
class Symbol:
    """One line of a dynamic symbol table; `kind` is nm's letter, `version` may be empty."""

    name: str
    version: str
    kind: str
    size_bytes: int

    @property
    def is_data(self) -> bool:
        return self.kind in "BDGRSVu"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def dynamic_symbols(library: Path) -> list[Symbol]:
    """Every dynamic symbol of `library`, defined or not."""
    symbols = []
    for line in run("nm", "--dynamic", "--portability", str(library)).splitlines():
        name, kind, *address_and_size = line.split()
        name, _, version = name.replace("@@", "@").partition("@")
        size = int(address_and_size[1], 16) if len(address_and_size) > 1 else 0
        symbols.append(Symbol(name, version, kind, size))
    return symbols


def needed_sonames(library: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", str(library))))


def c_source(symbols: Iterable[Symbol]) -> str:
    """A C file that defines every one of `symbols`."""
    return PRELUDE + "\n".join(_definition(f"s{i}", s) for i, s in enumerate(symbols)) + "\n"


def _definition(label: str, symbol: Symbol) -> str:
    name, words = symbol.name, symbol.size_bytes // WORD_BYTES
    if not symbol.is_data:
        body = f"return {ANSWERS[name]};" if name in ANSWERS else f'missing("{name}"); return 0;'
        return f'long {label}(void) __asm__("{name}");\nlong {label}(void) {{ {body} }}'
    if name.startswith("_ZTI"):  # a C++ type info: pybind11 reads the name in it when imported
        return (
            f'const void *{label}[{words}] __asm__("{name}") = '
            f'{{class_type_info + {2 * WORD_BYTES}, "{name.removeprefix("_ZTI")}"}};'
        )
    if name.startswith("_ZTV"):  # a vtable: offset to top, type info, then virtual functions
        entries = ", ".join(["0", "0", *["(void *)missing_virtual"] * (words - 2)])
        return f'const void *{label}[{words}] __asm__("{name}") = {{{entries}}};'
    raise SlimmingError(f"data symbol {name}: only type infos and vtables have stand-ins")


def version_script(symbols: Iterable[Symbol]) -> str:
    """The linker's version script that gives each symbol the version its users ask for."""
    names: dict[str, list[str]] = {}
    for symbol in symbols:
        names.setdefault(symbol.version, []).append(symbol.name)
    return "".join(
        f"{version} {{ global: {'; '.join(sorted(members))}; }};\n"
        for version, members in sorted(names.items())
        if version
    )


def compile_stub(soname: str, symbols: Iterable[Symbol], folder: Path) -> Path:
    """Builds folder/soname, a shared library that defines `symbols`."""
    ordered = sorted(symbols, key=lambda symbol: symbol.name)
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text(c_source(ordered))
        versions.write_text(version_script(ordered))
        scripts = [f"-Wl,--version-script={versions}"] if versions.stat().st_size else []
        target = folder / soname
        options = ["-shared", "-fPIC", "-Os", "-s", f"-Wl,-soname,{soname}", *scripts]
        run("gcc", *options, "-o", str(target), str(source))
    return target


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
        compile_stub(soname, symbols, folder)
        print(f"slim_torch: {soname}: {len(symbols)} symbols", flush=True)
    return True


def main() -> int:
    site_packages = Path(sys.argv[1])
    if not slim(site_packages):
        print("slim_torch: torch has no CUDA half, nothing to do")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
