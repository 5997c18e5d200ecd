"""What a way to build images offers, and the two there are: buildah, and Docker or Podman."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from e2e.cluster.command import run, succeeds
from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.prerequisites import IMAGE_PACKAGES, ensure_packages
from e2e.cluster.toolchain.uv import find_uv
from e2e.images.base import PUBLIC_BASE, base_image
from e2e.images.buildah import Buildah, Downloads
from e2e.images.catalog import Image, labels
from e2e.images.layout import ImageLayout

CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


# $1: the image, $2: the layout. Unlike a push, a commit writes layers uncompressed, and none twice.
EXPORT = """
container=$($buildah from "$1")
$buildah commit --quiet --disable-compression --rm "$container" "oci:$2:$1"
"""


class Builder(Protocol):
    """Builds an image under a tag, once, and writes it into an archive."""

    def base(self) -> str:
        """The base image's name: a part of every tag. It may have to be made first."""
        ...

    def has(self, tag: str) -> bool: ...

    def build(
        self,
        image: Image,
        context: Path,
        tag: str,
        arguments: Mapping[str, str],
        progress: Callable[[str], None],
    ) -> None: ...

    def archive(self, tag: str, target: Path, present: Collection[str]) -> set[str]:
        """Writes the image, without blobs in `present` where that is possible. Returns the digests
        of blobs that a cluster has once the image is loaded, as far as they are known."""
        ...

    def push(self, tag: str, target: str) -> None:
        """Pushes the image to a registry as `target`. Raises ClusterError."""
        ...


class BuildahBuilder:
    """Everything it makes lies in one folder of the cache."""

    def __init__(self, folder: Path, downloads: Downloads) -> None:
        self._folder = folder
        self.downloads = downloads
        self.buildah = Buildah(folder)
        self.layout = ImageLayout(folder / "layout")

    def base(self) -> str:
        return base_image(self.buildah, self._folder / "base")

    def has(self, tag: str) -> bool:
        return self.layout.has(tag) and self.buildah.has(tag)

    def build(
        self,
        image: Image,
        context: Path,
        tag: str,
        arguments: Mapping[str, str],
        progress: Callable[[str], None],
    ) -> None:
        self.buildah.remove_leftovers()
        dockerfile = context / image.dockerfile
        self.buildah.build(
            dockerfile, context, tag, arguments, labels(image), self.downloads, progress
        )
        progress("into the image layout")
        command = self.buildah.script(EXPORT, tag, self.layout.folder)
        run(command.argv, env=command.environment)
        self.layout.drop_older(tag)

    def archive(self, tag: str, target: Path, present: Collection[str]) -> set[str]:
        self.layout.write_archive(tag, target, present)
        return set(self.layout.blobs(tag))

    def push(self, tag: str, target: str) -> None:
        # As Docker does: a registry on this machine needs no certificate.
        verify = f"--tls-verify={'false' if is_loopback(target) else 'true'}"
        try:
            self.buildah.run("push", "--quiet", verify, tag, f"docker://{target}")
        except CommandFailedError as error:
            raise _not_pushed("buildah", target, error) from error


class DockerBuilder:
    """Docker, or Podman under its name; layers and caches are its own."""

    def __init__(self, command: str) -> None:
        self._command = command

    def base(self) -> str:
        return os.environ.get("SLUICE_BASE_IMAGE") or PUBLIC_BASE

    def has(self, tag: str) -> bool:
        return succeeds([self._command, "image", "inspect", tag])

    def build(
        self,
        image: Image,
        context: Path,
        tag: str,
        arguments: Mapping[str, str],
        progress: Callable[[str], None],
    ) -> None:
        words = ["build", f"--file={image.dockerfile}", f"--tag={tag}"]
        words += [f"--build-arg={key}={value}" for key, value in arguments.items()]
        words += [f"--label={key}={value}" for key, value in labels(image).items()]
        if (bundle := ca_bundle()) is not None:
            words += [f"--secret=id=ca-bundle,src={bundle}"]
        progress(f"{self._command} build")
        run([self._command, *words, "."], cwd=context)

    def archive(self, tag: str, target: Path, present: Collection[str]) -> set[str]:
        run([self._command, "save", f"--output={target}", tag])
        return set()

    def push(self, tag: str, target: str) -> None:
        try:
            run([self._command, "tag", tag, target])
            run([self._command, "push", "--quiet", target])
        except CommandFailedError as error:
            raise _not_pushed(self._command, target, error) from error


def buildah_builder() -> BuildahBuilder:
    """The builder for machines without Docker; installs what it needs where it can."""
    ensure_packages(IMAGE_PACKAGES)
    folder = cache_directory() / "images"
    downloads = Downloads(uv_cache=uv_cache(folder), ca_bundle=ca_bundle())
    downloads.uv_cache.mkdir(parents=True, exist_ok=True)
    return BuildahBuilder(folder, downloads)


def is_loopback(target: str) -> bool:
    """Whether an image name begins with a registry of this machine."""
    host = target.partition("/")[0].partition(":")[0]
    return host == "localhost" or host.startswith("127.")


def _not_pushed(command: str, target: str, error: CommandFailedError) -> ClusterError:
    registry = target.partition("/")[0]
    return ClusterError(
        f"{target} could not be pushed (does it need `{command} login {registry}`?):\n"
        f"{error.output.strip()}"
    )


def uv_cache(folder: Path) -> Path:
    """This machine's cache of uv, so that nothing is downloaded twice; else one of our own."""
    try:
        uv = find_uv()
    except ClusterError:
        return folder / "uv"
    done = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def ca_bundle(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The certificates this machine trusts: SSL_CERT_FILE, else where systems keep them."""
    candidates = [environment.get("SSL_CERT_FILE", ""), *CA_BUNDLES]
    return next((Path(path) for path in candidates if path and Path(path).is_file()), None)
