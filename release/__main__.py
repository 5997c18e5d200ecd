"""`python -m release chart|files|version|check-tag …`, from the root; see --help.

Environment: HELM and KUBECTL, the programs to use; else those of e2e/cluster/toolchain, built once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from sluice_contract.base import ConfigError

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.toolchain.binaries import ensure_binaries
from e2e.cluster.toolchain.helm import ensure_helm
from release.chart import NAME, write_chart
from release.install_yaml import crds_yaml, install_yaml
from release.manifests import ROOT, image_variables
from release.released import Released
from release.versions import check_tag, write_version


def main(words: list[str]) -> int:
    options = parser().parse_args(words)
    try:
        match options.command:
            case "version":
                write_version(ROOT, options.version)
            case "check-tag":
                check_tag(options.tag)
            case "chart":
                write_chart(options.folder / NAME, _released(options))
            case _:
                _write_files(options.folder, _released(options))
    except (ConfigError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _write_files(folder: Path, released: Released) -> None:
    """Chart, install.yaml and crds.yaml, and the checksums of all files to publish."""
    folder.mkdir(parents=True, exist_ok=True)
    chart = folder / NAME
    write_chart(chart, released)
    helm = _program("HELM", ensure_helm)
    run([helm, "lint", "--strict", chart])
    run([helm, "package", chart, "--destination", folder])
    kubectl = _program("KUBECTL", lambda: ensure_binaries().program("kubectl"))
    (folder / "install.yaml").write_text(install_yaml(kubectl, released))
    (folder / "crds.yaml").write_text(crds_yaml())
    write_checksums(folder)
    print(*sorted(path for path in folder.iterdir() if path.is_file()), sep="\n")


def write_checksums(folder: Path) -> None:
    """Writes SHA256SUMS of the files to publish, GPU kernels included if `folder` has them."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".tgz", ".xz"))
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text("".join(sums))


def _program(variable: str, ensure: Callable[[], Path]) -> Path:
    return Path(os.environ[variable]) if os.environ.get(variable) else ensure()


def _released(options: argparse.Namespace) -> Released:
    repositories = sorted(image_variables(ROOT).values())
    return Released.read(options.registry, options.digests, repositories, options.source)


def parser() -> argparse.ArgumentParser:
    """The commands."""
    top = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for name, text in (
        ("chart", "write the chart, complete, into FOLDER"),
        ("files", "write the packaged chart, install.yaml, crds.yaml and SHA256SUMS into FOLDER"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=Path)
        command.add_argument("--registry", default="", help="where the images are")
        command.add_argument("--source", default="", help="URL of the repository")
        text = "file with a JSON object: sluice/engine and so on → sha256:…"
        command.add_argument("--digests", type=Path, help=text)
    commands.add_parser("version", help="write the version everywhere").add_argument("version")
    commands.add_parser("check-tag", help="refuse another version's tag").add_argument("tag")
    return top


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
