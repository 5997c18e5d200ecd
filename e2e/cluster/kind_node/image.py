"""A node image for kind, made here where no image registry answers: the bare node's programs and
configuration in a Debian, with the control plane's images inside.

Built by buildah, then loaded into Docker or Podman. Knows nothing of clusters.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from e2e.cluster.bare import containerd
from e2e.cluster.command import run, succeeds
from e2e.cluster.progress import Step
from e2e.cluster.toolchain.binaries import PROGRAMS, Binaries, ensure_binaries
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.containerd import ensure_containerd
from e2e.images.build import locked_store
from e2e.images.builder import BuildahBuilder, buildah_builder
from e2e.images.catalog import ROOT

NAME: Final = "localhost/sluice-kind-node"
# What runs in the node, by its path in the tree.
SCRIPTS: Final = ("e2e/cluster/bare/init.py", "e2e/cluster/kind_node/entrypoint.py")
DOCKERFILE: Final = "kind-node.Dockerfile"
# The first node's part of kind's default pod network, as the controller manager gives it out.
POD_SUBNET: Final = "10.244.0.0/24"
# The pods' gateway, which is the node: it refuses, so that names beyond the cluster fail at once.
# Docker's own 127.0.0.11 would be the pod itself there.
RESOLV_CONF: Final = "nameserver 10.244.0.1\n"
PROGRAM_FOLDER: Final = "/usr/local/bin"


def ensure_node_image(engine: str) -> str:
    """The name of the node image in the engine's store. A missing image is made, which takes a
    minute or two. Raises ClusterError if it cannot be made."""
    builder, binaries, runtime = buildah_builder(), ensure_binaries(), ensure_containerd()
    with locked_store(cache_directory() / "images"):
        base, files = builder.base(), node_files()
        recipe = json.dumps([base, binaries.directory.name, runtime.name, files], sort_keys=True)
        name = f"{NAME}:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
        if not succeeds([engine, "image", "inspect", name]):
            context = cache_directory() / "images" / "kind-node"
            with Step("Making a node image for kind") as step:
                _write_context(context, files, binaries, runtime)
                _build(builder, context, name, base, step)
                step.detail(f"into {engine}")
                _load(engine, context / "node.tar", name)
                shutil.rmtree(context)
    return name


def node_files() -> Mapping[str, str]:
    """All text of the image: path in the build's context → content."""
    return {
        DOCKERFILE: Path(__file__).with_name(DOCKERFILE).read_text(),
        "etc/containerd/config.toml": containerd.render_config(
            "/run/containerd/containerd.sock", PROGRAM_FOLDER, "/etc/cni/net.d"
        ),
        "etc/cni/net.d/10-sluice.conflist": containerd.render_network(POD_SUBNET),
        "kind/resolv.conf": RESOLV_CONF,
        **{f"kind/python/{path}": (ROOT / path).read_text() for path in SCRIPTS},
    }


def _write_context(
    context: Path, files: Mapping[str, str], binaries: Binaries, runtime: Path
) -> None:
    shutil.rmtree(context, ignore_errors=True)
    for path, content in files.items():
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        (context / path).write_text(content)
    for folder in (binaries.directory, runtime):
        shutil.copytree(folder, context / "bin", symlinks=True, dirs_exist_ok=True)
    kubeadm = binaries.program("kubeadm")
    version = run([kubeadm, "version", "--output=short"]).strip()
    (context / "kind" / "version").write_text(version)
    names = run([kubeadm, "config", "images", "list", f"--kubernetes-version={version}"]).split()
    images = context / "kind" / "images"
    images.mkdir()
    _write_control_plane(binaries, names, images / "control-plane.tar")
    containerd.write_static_image(binaries.pause, containerd.PAUSE_IMAGE, images / "pause.tar")


def _write_control_plane(binaries: Binaries, names: list[str], archive: Path) -> None:
    """One image under all the names: kubeadm's manifests say which program to run, but for
    CoreDNS."""
    folder = PROGRAM_FOLDER.removeprefix("/")
    binary = binaries.directory / "sluice-node"
    links = {f"{folder}/{program}": binary.name for program in PROGRAMS}
    layer = containerd.tar_of({f"{folder}/{binary.name}": (binary.read_bytes(), 0o755)}, links)
    config = {"Entrypoint": [f"{PROGRAM_FOLDER}/coredns"], "Env": [f"PATH={PROGRAM_FOLDER}"]}
    containerd.write_image(archive, names, layer, config)


def _build(builder: BuildahBuilder, context: Path, name: str, base: str, step: Step) -> None:
    dockerfile, downloads = context / DOCKERFILE, builder.downloads
    builder.buildah.build(dockerfile, context, name, {"BASE": base}, {}, downloads, step.detail)
    step.detail("into an archive")
    builder.buildah.run("push", "--quiet", name, f"docker-archive:{context / 'node.tar'}:{name}")
    builder.buildah.run("rmi", name)


def _load(engine: str, archive: Path, name: str) -> None:
    """Loads the archive into the engine's store, and removes older node images that no cluster
    uses."""
    run([engine, "load", f"--input={archive}"])
    listed = [engine, "image", "ls", "--format={{.Repository}}:{{.Tag}}", NAME]
    for older in set(run(listed).split()) - {name}:
        succeeds([engine, "image", "rm", older])
