"""`python -m e2e.images build|sizes|check|clean`, from the root of the repository."""

from __future__ import annotations

import argparse
import shutil
import sys

from e2e.cluster.choose import choose_cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.toolchain.cache import cache_directory
from e2e.images.build import COMPONENTS, build_images
from e2e.images.builder import buildah_builder
from e2e.images.catalog import IMAGES
from e2e.images.check import check_engine
from e2e.images.choose import choose_builder

MEGABYTE = 1_000_000


def main() -> int:
    parsed = _parser().parse_args()
    try:
        match parsed.command:
            case "build":
                builder = choose_builder(choose_cluster())
                for name, tag in build_images(parsed.names or COMPONENTS, builder).items():
                    print(f"{name}\t{tag}")
            case "sizes":
                _print_sizes()
            case "check":
                return check_engine(parsed.paths)
            case "clean":
                shutil.rmtree(cache_directory() / "images", ignore_errors=True)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _print_sizes() -> None:
    builder = buildah_builder()
    for name, tag in build_images(COMPONENTS, builder=builder).items():
        print(f"{name}\t{builder.layout.size_bytes(tag) / MEGABYTE:.0f} MB")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build what changed")
    build.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(IMAGES)}")
    commands.add_parser("sizes", help="uncompressed size of each image")
    check = commands.add_parser("check", help="run the engine's tests inside its image")
    check.add_argument("component", choices=["engine"])
    check.add_argument("paths", nargs="*", help="default: tests/runtime")
    commands.add_parser("clean", help="remove every image and build cache of ours")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
