"""Leaves of an installed Mooncake what its transfer engine loads: `slim_mooncake.py SITE_PACKAGES`.

Most of the package is a key-value store, servers and benchmarks: of 140 MB the transfer engine and
the libraries it is linked to are 18. Two more it would call only to ask a metadata server who its
peers are, and Sluice's engines tell each other: etcd's client, with a Go runtime that would start
in every process, and libcurl, with twenty Debian packages. Stand-ins are put in their place.
"""

import shutil
import sys
from pathlib import Path

from images.stand_ins import SlimmingError, compile_stand_in, dynamic_symbols, needed_sonames

ENGINE = "engine.so"
# soname → how the names of its functions begin.
REPLACED = {"libcurl.so.4": ("curl_",), "libetcd_wrapper.so": ("Etcd", "NewEtcd")}
# The package's own imports the store.
INIT = '"""Mooncake\'s transfer engine alone."""\n'


def linked(library: Path, folders: list[Path]) -> set[Path]:
    """`library` and everything in `folders` that it is linked to, directly or not."""
    found, pending = set[Path](), [library]
    while pending:
        path = pending.pop()
        found.add(path)
        candidates = [folder / name for name in needed_sonames(path) for folder in folders]
        pending += [one for one in candidates if one.exists() and one not in found]
    return found


def slim(site_packages: Path) -> None:
    """Raises SlimmingError where there is no Mooncake."""
    package = site_packages / "mooncake"
    engine = package / ENGINE
    if not engine.exists():
        raise SlimmingError(f"{engine} is not there")
    folders = [package, *site_packages.glob("mooncake_transfer_engine*.libs")]
    kept = {path for path in linked(engine, folders) if path.name not in REPLACED}
    for path in [path for folder in folders for path in folder.iterdir()]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path not in kept:
            path.unlink()
    (package / "__init__.py").write_text(INIT)
    undefined = [symbol for symbol in dynamic_symbols(engine) if symbol.kind == "U"]
    for soname, prefixes in REPLACED.items():
        symbols = [symbol for symbol in undefined if symbol.name.startswith(prefixes)]
        compile_stand_in(soname, symbols, package, {})
        print(f"slim_mooncake: {soname}: {len(symbols)} symbols", flush=True)


if __name__ == "__main__":
    slim(Path(sys.argv[1]))
