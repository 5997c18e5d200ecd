"""Each entry point starts with what its image installs and nothing else.

The environments are made from the lock file outside the tree and kept; the engine's, whose torch is
large, is checked by its tests inside its image (`python -m e2e.images check engine`).
"""

import hashlib
import os
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
from sluice_contract.version import VERSION

from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.uv import find_uv
from e2e.images.catalog import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

COMPONENTS = {
    "router": "runtime",
    "operator": "operator",
    "fetch": "runtime",
    "simulate": "runtime",
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PACKAGES = {
    "router": "sluice_router",
    "operator": "sluice_operator",
    "fetch": "sluice_fetch",
    "simulate": "sluice_simulator",
}


def extras_of(component: str) -> list[str]:
    """What the component's image installs; one that has no image has its own extra."""
    dockerfile = ROOT / "images" / f"{component}.Dockerfile"
    if not dockerfile.exists():
        return [component]
    (said,) = re.findall(r'/requirements\.sh "?([a-z ]+)', dockerfile.read_text())
    return [name for name in said.split() if name in EXTRAS]


@cache
def environment_of(extra: str) -> Path:
    """A virtual environment with its image's extras only; a change of the lock file makes a new
    one."""
    lock = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()[:12]
    extras = extras_of(extra)
    folder = cache_directory() / f"extra-{'-'.join(extras)}-{lock}"
    words = [find_uv(), "sync", "--frozen", "--no-dev", "--no-install-project", "--quiet"]
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}
    words += [f"--extra={name}" for name in extras]
    subprocess.run(words, cwd=ROOT, env=environment, check=True)
    return folder / "bin" / "python"


def python(extra: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / COMPONENTS[extra])])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(environment_of(extra)), *words]
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("extra", COMPONENTS)
def test_an_entry_point_finds_all_it_imports(extra: str) -> None:
    done = python(extra, "-W", "error", "-c", f"import {PACKAGES[extra]}.__main__")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "module", "said"),
    [
        ("router", "sluice_router", "usage: "),
        ("operator", "sluice_operator.cli.main", "usage: "),
        ("fetch", "sluice_fetch", "usage: "),
        ("simulate", "sluice_simulator", "usage: "),
        # Its settings are its environment, which has none of them here.
        ("operator", "sluice_operator", "SLUICE_ENGINE_IMAGE"),
    ],
)
def test_an_entry_point_answers_on_the_command_line(extra: str, module: str, said: str) -> None:
    done = python(extra, "-m", module, "--help")
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_says_its_version_without_the_metadata_of_a_distribution() -> None:
    done = python("operator", "-m", "sluice_operator.cli.main", "--version")
    assert done.stdout == f"sluice {VERSION}\n"


def test_a_router_s_image_sends_spans_where_it_is_told_to() -> None:
    program = (
        "from sluice_contract.config.tracing import Tracing\n"
        "from sluice_contract.wire.span_export import span_recorder\n"
        "with span_recorder(Tracing(endpoint='http://127.0.0.1:9'), 'router') as record:\n"
        "    assert record is not None"
    )
    done = python("router", "-W", "error", "-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("extra", COMPONENTS)
def test_an_environment_has_no_torch(extra: str) -> None:
    assert "ModuleNotFoundError" in python(extra, "-c", "import torch").stderr
