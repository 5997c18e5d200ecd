"""The fleet's replay compiled to machine code, if mypyc and a C compiler are there: replays take
half the time.

The compiled copy lies in the user's cache, by a hash of its sources; without it the sources run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import sluice_simulator.autoscale as package

MODULES: Final = ("fleet.py", "replica.py", "step_times.py", "work.py")
IMPORTED: Final = ("autoscaler", "contract", "simulator", "runtime/scheduler/policies")
"""Folders, after `sluice_`, of the sources that MODULES import, whose constants are compiled in."""
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice"
SETUP: Final = """
from mypyc.build import mypycify
from setuptools import setup
options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
setup(name="fleet", packages=[], ext_modules=mypycify([*options, *{files}], opt_level="3"))
"""


def use_compiled_fleet() -> bool:
    """Makes later imports of the fleet use a compiled version; False if it cannot be compiled. To
    be called before any of its modules is imported."""
    sources = Path(package.__path__[0])
    digest = hashlib.sha256(sys.version.encode())
    for folder in IMPORTED:
        for path in sorted((sources.parents[1] / f"sluice_{folder}").rglob("*.py")):
            digest.update(path.read_bytes())
    copy = CACHE / f"autoscale-{digest.hexdigest()[:16]}"
    if not copy.exists() and not _compiled(sources, copy):
        return False
    sys.path.insert(0, str(copy))
    package.__path__.insert(0, str(copy / "sluice_simulator" / "autoscale"))
    return True


def _compiled(sources: Path, folder: Path) -> bool:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        script, built = Path(work, "setup.py"), Path(work, "built")
        script.write_text(SETUP.format(files=[str(sources / name) for name in MODULES]))
        words = [sys.executable, str(script), "-q", "build_ext", "--build-lib", str(built)]
        roots = {"MYPYPATH": str(sources.parents[1])}
        done = subprocess.run(words, cwd=work, env=os.environ | roots, capture_output=True)
        if done.returncode == 0:
            built.rename(folder)
        return done.returncode == 0
