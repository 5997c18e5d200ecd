"""buildah, with a store of its own outside the tree: builds without a daemon, as root.

Every command runs in a mount and a process namespace of its own, which end with it: a build that
is killed leaves neither mounts nor processes. Knows no image of ours.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError, CommandFailedError, tail

# The end of the parent is the end of the namespaces' first process, and so of everything in them.
ISOLATED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
)
# Where the host's uv cache appears during a build.
UV_CACHE = "/var/cache/host-uv"
# buildah's own names for working containers; longer-lived containers of ours have other names.
LEFTOVER = re.compile(r"-working-container(-\d+)?$")
STEP = re.compile(r"^(?:\[\d+/\d+\] )?STEP (?P<which>\d+/\d+): (?P<what>.{0,60})", re.MULTILINE)


@dataclass(frozen=True)
class Downloads:
    """Parts of this machine that a build uses for its downloads; an empty Path stands for none."""

    uv_cache: Path
    ca_bundle: Path | None


@dataclass(frozen=True)
class Script:
    """A command line with its environment; the caller decides how to run it."""

    argv: list[str]
    environment: dict[str, str]


class Buildah:
    """One store of images and build caches below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def argv(self, *words: str | Path) -> list[str]:
        store = ["--root", self._folder / "store", "--runroot", self._folder / "run"]
        return [*ISOLATED, "buildah", *map(str, [*store, *words])]

    def run(self, *words: str | Path) -> str:
        """Standard output of a short command. Raises CommandFailedError."""
        return run(self.argv(*words), env=self._environment())

    def script(self, script: str, *arguments: str | Path) -> Script:
        """A script of several commands in one namespace, in which `$buildah` is this store's."""
        buildah = " ".join(self.argv()[len(ISOLATED) :])
        argv = [*ISOLATED, "sh", "-euc", script, "sh", *map(str, arguments)]
        return Script(argv, {**self._environment(), "buildah": buildah})

    def has(self, image: str) -> bool:
        try:
            self.run("inspect", "--type", "image", image)
        except CommandFailedError:
            return False
        return True

    def remove_leftovers(self) -> None:
        """Removes the working containers of builds that were killed; no build may be running."""
        names = self.run("containers", "--format={{.ContainerName}}").split()
        if left := [name for name in names if LEFTOVER.search(name)]:
            self.run("rm", *left)

    def build(
        self,
        dockerfile: Path,
        context: Path,
        name: str,
        arguments: Mapping[str, str],
        labels: Mapping[str, str],
        downloads: Downloads,
        progress: Callable[[str], None],
    ) -> None:
        """Builds one Dockerfile and names the result. Raises ClusterError with the log's end."""
        log = self._folder / f"{dockerfile.stem}.log"
        words = build_words(dockerfile, context, name, arguments, labels, downloads)
        process = subprocess.Popen(
            self.argv(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(),
        )
        assert process.stdout is not None
        with process, log.open("w") as stream:
            for line in process.stdout:
                stream.write(line)
                if step := STEP.match(line):
                    progress(f"{step['which']} {step['what']}")
        if process.returncode != 0:
            raise ClusterError(f"{dockerfile.name} did not build; the end of {log}:\n{tail(log)}")

    def _environment(self) -> dict[str, str]:
        scratch = self._folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        return {**os.environ, "TMPDIR": str(scratch)}


def build_words(
    dockerfile: Path,
    context: Path,
    name: str,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    downloads: Downloads,
) -> list[str]:
    """The words after `buildah` that build `dockerfile`; secrets and volumes stay out of images."""
    words = [
        "bud",
        "--isolation=chroot",
        "--layers",
        f"--file={dockerfile}",
        f"--tag={name}",
    ]
    words += [f"--volume={downloads.uv_cache}:{UV_CACHE}"]
    words += [f"--build-arg=UV_CACHE_DIR={UV_CACHE}"]
    words += [f"--build-arg={key}={value}" for key, value in arguments.items()]
    words += [f"--label={key}={value}" for key, value in labels.items()]
    if downloads.ca_bundle is not None:
        words += [f"--secret=id=ca-bundle,src={downloads.ca_bundle}"]
    return [*words, str(context)]
