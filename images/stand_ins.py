"""Shared libraries that stand in for ones which are left out of an image.

A process that is linked to a library but never calls it still needs it to start. A stand-in has its
soname and the symbols and versions that the dynamic loader asks for; a function says its name and
aborts, but for those with an answer. Knows ELF through binutils and compiles with gcc; knows no
library by name.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

WORD_BYTES = 8

PRELUDE = """\
#include <stdio.h>
#include <stdlib.h>
static void missing(const char *name) {
    fprintf(stderr, "%s was called, but this image was built without it\\n", name);
    abort();
}
static void *scratch[1];
static void missing_virtual(void) { missing("a virtual function of code left out"); }
/* libstdc++'s own: what makes the type infos below comparable and printable. */
extern char class_type_info[] __asm__("_ZTVN10__cxxabiv117__class_type_infoE");
"""


class SlimmingError(Exception):
    """A library holds something for which there is no stand-in."""


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


def c_source(symbols: Iterable[Symbol], answers: Mapping[str, str]) -> str:
    """A C file that defines every one of `symbols`. `answers`: function → what it returns, in C;
    `scratch` is an array of one pointer to hand out."""
    definitions = (_definition(f"s{i}", symbol, answers) for i, symbol in enumerate(symbols))
    return PRELUDE + "\n".join(definitions) + "\n"


def _definition(label: str, symbol: Symbol, answers: Mapping[str, str]) -> str:
    name, words = symbol.name, symbol.size_bytes // WORD_BYTES
    if not symbol.is_data:
        body = f"return {answers[name]};" if name in answers else f'missing("{name}"); return 0;'
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


def compile_stand_in(
    soname: str, symbols: Iterable[Symbol], folder: Path, answers: Mapping[str, str]
) -> None:
    """Builds folder/soname, a shared library that defines `symbols`."""
    ordered = sorted(symbols, key=lambda symbol: symbol.name)
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text(c_source(ordered, answers))
        versions.write_text(version_script(ordered))
        scripts = [f"-Wl,--version-script={versions}"] if versions.stat().st_size else []
        target = folder / soname
        options = ["-shared", "-fPIC", "-Os", "-s", f"-Wl,-soname,{soname}", *scripts]
        run("gcc", *options, "-o", str(target), str(source))
