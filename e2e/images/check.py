"""Runs the engine's tests inside the engine's image: as its user, with its packages and its code.

The test tools come from the lock file into a folder of the cache, without packages that the image
has.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.progress import Step, say
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.uv import find_uv
from e2e.images.build import build_images
from e2e.images.builder import buildah_builder
from e2e.images.catalog import ROOT

# $1: image, $2: the tree, $3: test tools; the rest goes to pytest.
RUN_TESTS = """
image=$1 tree=$2 tools=$3; shift 3
container=$($buildah from --name "sluice-check-$(date +%s)" "$image")
trap '$buildah rm "$container" >/dev/null' EXIT
# On the path of every Python of it, whatever PYTHONPATH a test gives to the processes it starts.
$buildah run --isolation chroot --user 0 "$container" -- \\
    sh -c 'printf "/app\\n/tools\\n" > "$(echo /opt/venv/lib/python3*/site-packages)/check.pth"'
$buildah run --isolation chroot --user 65532 --workingdir /src \
    --env OMP_NUM_THREADS=1 --env HF_HUB_OFFLINE=1 \
    --env HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis \
    --volume "$tree:/src:ro" --volume "$tools:/tools:ro" \
    "$container" -- python -m pytest -p no:cacheprovider "$@"
"""
EXTRAS = ("engine", "handover-cpu", "tracing")
NOT_IN_AN_IMAGE = "not cluster and not apiserver and not full and not gpu"


def check_engine(paths: Sequence[str]) -> int:
    """Exit status of pytest, whose output is shown."""
    builder = buildah_builder()
    image = build_images(["engine"], builder=builder)["engine"]
    tools = test_tools(cache_directory() / "images")
    say(f"tests in {image}")
    tests = paths or ["tests/runtime"]
    command = builder.buildah.script(RUN_TESTS, image, ROOT, tools, "-m", NOT_IN_AN_IMAGE, *tests)
    return subprocess.run(command.argv, env=command.environment, check=False).returncode


def test_tools(cache: Path) -> Path:
    """A folder with the packages of the `dev` group that the engine's image does not have."""
    locked = [find_uv(), "export", "--frozen", "--no-emit-project", "--no-header", "--no-annotate"]
    engine = run([*locked, "--no-dev", "--no-hashes", *map("--extra={}".format, EXTRAS)], cwd=ROOT)
    names = [line.partition("==")[0] for line in engine.splitlines()]
    skipped = [f"--no-emit-package={name}" for name in names]
    wanted = run([*locked, "--only-group=dev", *skipped], cwd=ROOT)
    folder = cache / f"tools-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if not folder.exists():
        with Step("Installing the test tools for the image"):
            partial = folder.with_suffix(".partial")
            requirements = folder.with_suffix(".txt")
            requirements.write_text(wanted)
            install = [find_uv(), "pip", "install", "--no-deps", "--require-hashes"]
            into = [f"--target={partial}", f"--requirement={requirements}", "--python-version=3.11"]
            run([*install, *into])
            partial.rename(folder)
    return folder
