"""What a newcomer types: the commands of the first pages, as they stand there, one after another.

Last by its name, since `make up` gives the cluster another engine image.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from e2e.cluster.provider import Cluster
from e2e.install import ROOT
from e2e.stories.conftest import STORIES_CLUSTER
from e2e.stories.service import Service

PAGES: Final = ROOT / "docs" / "how-to"
WALKED: Final = (
    ("your-first-service.md", None),
    ("upgrade-a-model.md", "Try it"),
    ("split-prefill-from-decode.md", "Do it"),
    ("autoscale.md", None),
    ("autoscale.md", "Watch it work"),
)
"""Page and section of each walk; None: what comes before the first section."""
BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)


def commands(page: Path, section: str | None) -> list[str]:
    """Commands of the page: of the part before the first heading of level 2, or of that section.
    Each of its blocks has one."""
    parts = re.split(r"^## (.*)\n", page.read_text(), flags=re.MULTILINE)
    sections = {None: parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    blocks = [COMMAND.findall(block) for block in BLOCK.findall(sections[section])]
    assert all(blocks), f"{page.name}: a block in {section or 'the beginning'} has no line `$ …`"
    assert blocks, f"{page.name} has no commands there"
    return [command for block in blocks for command in block]


def walk(page: str, section: str | None = None, *, seconds: float = 240) -> None:
    """Runs the commands in one shell, which ends at the first that fails."""
    assert (page, section) in WALKED
    found = commands(PAGES / page, section)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "SLUICE_CLUSTER": STORIES_CLUSTER, "PATH": path}
    script = "set -euxo pipefail\n" + "\n".join(found)
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, f"{page}:\n{output}"


@pytest.fixture(scope="module")
def up(cluster: Cluster, chat: Service) -> None:
    """`make up` on the stories' cluster, after the stories' own service of that name."""
    chat.delete()
    chat.wait_until_children_are_gone()
    environment = {**os.environ, "SLUICE_CLUSTER": STORIES_CLUSTER}
    done = subprocess.run(
        ["make", "up"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = done.stdout.partition("answer")[2]
    assert "Kubernetes" in answer, done.stdout


@pytest.mark.usefixtures("up")
class TestAfterMakeUp:
    def test_the_first_service(self) -> None:
        walk("your-first-service.md")

    def test_another_model_and_back(self) -> None:
        walk("upgrade-a-model.md", "Try it")

    def test_two_pools(self) -> None:
        walk("split-prefill-from-decode.md", "Do it")

    @pytest.mark.full
    def test_a_service_that_scales(self) -> None:
        walk("autoscale.md", seconds=900)
        walk("autoscale.md", "Watch it work", seconds=900)
