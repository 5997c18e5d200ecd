"""Builds the one binary that is every process of the cluster, and caches it outside the tree.

The cache key is the hash of everything the binary is made from, so an old one is never taken for
a new one. Knows nothing of what the programs do.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.locks import lock
from e2e.cluster.progress import Step, time_on_idle_cores
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.golang import COMPILER_FLAGS, ensure_go

SOURCE = Path(__file__).parent / "node"
SOURCE_FILES = ("go.mod", "go.sum", "main.go", "pause/main.go")
KUBERNETES_VERSION = re.compile(r"^\s*k8s\.io/kubernetes (v1\.(\d+)\.\d+)$", re.MULTILINE)
PROGRAMS = (
    "coredns",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubeadm",
    "kubectl",
    "kubelet",
)


@dataclass(frozen=True)
class Binaries:
    """A folder with the binary, a link per program, and `pause` (PID 1 of every pod's sandbox)."""

    directory: Path

    def program(self, name: str) -> Path:
        assert name in PROGRAMS, f"{name} is not in the binary"
        return self.directory / name

    @property
    def pause(self) -> Path:
        return self.directory / "pause"


def source_hash(source: Path = SOURCE) -> str:
    """16 hex digits over what the binary is made from."""
    digest = hashlib.sha256(COMPILER_FLAGS.encode())
    for name in SOURCE_FILES:
        digest.update(name.encode() + b"\0" + (source / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def linker_flags(go_mod: str) -> str:
    """Linker flags that stamp the version of go.mod's k8s.io/kubernetes: clients cannot parse an
    empty version."""
    found = KUBERNETES_VERSION.search(go_mod)
    if found is None:
        raise ClusterError("go.mod names no version of k8s.io/kubernetes")
    version, minor = found.groups()
    stamps = {
        "k8s.io/component-base/version.gitVersion": version,
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": version,
    }
    return " ".join(["-s", "-w", *(f"-X {key}={value}" for key, value in stamps.items())])


def ensure_binaries(cache: Path | None = None) -> Binaries:
    """The cached build, or a new one (about 6 minutes on 2 cores with an empty Go cache)."""
    cache = cache or cache_directory()
    binaries = Binaries(cache / f"node-{source_hash()}")
    if binaries.directory.exists():
        return binaries
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "node.lock"):
        if not binaries.directory.exists():
            _build(binaries.directory)
    return binaries


def _build(directory: Path) -> None:
    # Built under another name and renamed at the end: a folder of this name is always complete.
    partial = directory.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    stamped = linker_flags((SOURCE / "go.mod").read_text())
    with Step(f"Building Kubernetes (one binary, {time_on_idle_cores(6)})") as step:
        _go_build("./pause", partial / "pause", "-s -w", step)
        _go_build(".", partial / "sluice-node", stamped, step)
    for program in PROGRAMS:
        link = partial / program
        link.unlink(missing_ok=True)
        link.symlink_to("sluice-node")
    partial.rename(directory)


def _go_build(package: str, output: Path, flags: str, step: Step) -> None:
    """Builds a package, and shows how many of all that it imports are compiled. Those in Go's cache
    are not counted as compiled."""
    go, environment = ensure_go(), {**os.environ, "CGO_ENABLED": "0"}
    total = len(run([go, "list", "-deps", package], cwd=SOURCE, env=environment).splitlines())
    argv = ["nice", "-n", "10", str(go), "build", "-v", "-buildvcs=false", COMPILER_FLAGS]
    argv += ["-ldflags", flags, "-o", str(output), package]
    compiled, messages = 0, []
    with subprocess.Popen(
        argv, cwd=SOURCE, env=environment, text=True, stderr=subprocess.PIPE
    ) as build:
        assert build.stderr is not None
        for line in build.stderr:
            if " " in line:  # a package's name has none
                messages.append(line)
            else:
                compiled += 1
                step.reached(compiled, total, "packages")
    if build.returncode != 0:
        raise CommandFailedError(argv, build.returncode, "".join(messages))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a+") as file:
        lock(file.fileno(), "another build of Kubernetes")
        yield
