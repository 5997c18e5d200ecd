"""containerd: its configuration, the pods' network plugin, the pause image, loading images.

The node image for kind uses this too. Knows nothing of the kubelet. Its client `ctr` reaches it
from the host by the socket's path.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.bare.layout import Layout
from e2e.cluster.command import run
from e2e.cluster.loaded_images import are_loaded

PAUSE_IMAGE = "sluice.local/pause:1"
KUBERNETES_NAMESPACE = "k8s.io"
CNI_PLUGINS = "/usr/lib/cni"
# As `uname -m` has it → as images have it.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# `imports`: none, so that nothing of this machine's own containerd is read.
CONFIG = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
imports = []
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.opt",
  "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{socket}"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"

  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE no score can be lowered, and sandboxes fail that try.
  restrict_oom_score_adj = true
  # A profile would stay in the kernel after `down`.
  disable_apparmor = true

  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      # Another release's may be on the PATH, which would be taken first.
      runtime_path = "{shim}"

      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_plugins}"]
    conf_dir = "{cni}"
"""


def render_config(socket: str, programs: str, cni: str) -> str:
    """The text of containerd's configuration. `socket`: path of the socket; `programs` and `cni`:
    folders of its programs and network configurations; all of them in the node."""
    return CONFIG.format(
        socket=socket,
        pause=PAUSE_IMAGE,
        shim=f"{programs}/containerd-shim-runc-v2",
        cni_plugins=CNI_PLUGINS,
        cni=cni,
    )


def render_network(pod_subnet: str) -> str:
    """Point-to-point links, no bridge: pods reach each other through the node's routing, where
    kube-proxy's rules see both directions of a Service's connections."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": pod_subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": addresses},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "sluice", "plugins": plugins}, indent=2)


def write_static_image(program: Path, image: str, archive: Path) -> None:
    """An image archive that holds one static program and runs it."""
    layer = tar_of({program.name: (program.read_bytes(), 0o755)})
    config = {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"}
    write_image(archive, [image], layer, config)


def write_image(archive: Path, names: Sequence[str], layer: bytes, config: object) -> None:
    """An image archive (the `docker save` format) of one layer; `config` is what an image says
    about its containers."""
    described = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": (layer, 0o644),
        "config.json": (json.dumps(described).encode(), 0o644),
        "manifest.json": (json.dumps(manifest).encode(), 0o644),
    }
    archive.write_bytes(tar_of(files))


def ctr_argv(layout: Layout, *words: str | Path) -> list[str | Path]:
    """A command of containerd's client in the namespace that the kubelet uses."""
    argv: list[str | Path] = [layout.programs / "ctr", "--address", layout.containerd_socket]
    return [*argv, "--namespace", KUBERNETES_NAMESPACE, *words]


def import_image(layout: Layout, archive: Path) -> None:
    """Loads an image archive (docker-archive or OCI) under the names it carries, unless its
    images are there already."""
    if not are_loaded(ctr_argv(layout), archive):
        run(ctr_argv(layout, "images", "import", archive))


def tar_of(files: Mapping[str, tuple[bytes, int]], links: Mapping[str, str] | None = None) -> bytes:
    """A tar of files (content, mode) and symbolic links; equal inputs give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = mode
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()
