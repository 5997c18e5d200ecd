"""What a run would do on a machine with a Hopper GPU and no package index: the cases in order, what
is carried there, and what is missing here. Needs git, no GPU."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel_archive import ARCHIVE, FOLDERS

from e2e.gpu_runs.cases import Case
from e2e.gpu_runs.device import missing_modules
from e2e.gpu_runs.environment import ROOT

HOPPER: Final = 90
CARRIED_MIB: Final = 64
"""Most MiB that are carried, sources included."""
WHEELS: Final = Path("gpu-wheels")


def dry_run(
    cases: Sequence[Case], seconds: float, wheels: Path | None = None, root: Path = ROOT
) -> int:
    """Prints what a run of `cases` within `seconds` needs. `wheels`: a folder, WHEELS if None.
    Returns 1 if something is missing, or if too much would be carried; otherwise 0."""
    print(f"at most {seconds:.0f} s; a repeated run goes on with the cases that are left:")
    for case in cases:
        print(f"  {case.seconds:4} s  {case.name}")
    wheels = WHEELS if wheels is None else wheels
    kernels = (ARCHIVE,) if (root / ARCHIVE).exists() else FOLDERS
    files = {str(path): {root / path, *(root / path).rglob("*")} for path in (wheels, *kernels)}
    sources = set(_sources(root)).difference(*files.values())
    sizes = {name: _mib(paths) for name, paths in {"sources": sources, **files}.items()}
    print("carried:", *(f"  {mib:5.1f} MiB  {name}" for name, mib in sizes.items()), sep="\n")
    total = sum(sizes.values())
    print(f"  {total:5.1f} MiB of at most {CARRIED_MIB}")
    missing = [*_missing_files(root, wheels), *_missing_modules(cases)]
    print("missing:", *(missing or ["nothing"]), sep="\n  ")
    return int(bool(missing) or total > CARRIED_MIB)


def _sources(root: Path) -> list[Path]:
    """Files that git knows, or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [root / name for name in listed.split("\0") if name]


def _mib(paths: Iterable[Path]) -> float:
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def _missing_files(root: Path, wheels: Path) -> Iterator[str]:
    if not any((root / wheels).glob("*.whl")):
        yield f"{wheels}/*.whl: scripts/gpu-wheels {wheels} downloads them"
    if not any((root / FOLDERS[-1]).glob("*.cubin")):
        yield f"{FOLDERS[-1]}/*.cubin: scripts/gpu-kernels compiles them"


def _missing_modules(cases: Sequence[Case]) -> list[str]:
    needing = defaultdict[str, list[str]](list)
    for case in cases:
        for module in missing_modules(HOPPER, case):
            needing[module].append(case.name)
    return [f"{module}, for {', '.join(names)}" for module, names in needing.items()]
