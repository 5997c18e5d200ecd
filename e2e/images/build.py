"""Builds the images that changed, and brings into a cluster what it does not hold yet.

A tag is a hash of what the image is made from, so that "is it there?" is the whole question.
"""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cache import cache_directory
from e2e.cluster.progress import Step
from e2e.images.builder import Builder, buildah_builder
from e2e.images.catalog import tag, take_context, with_foundations

COMPONENTS = ("engine", "router", "operator")


@dataclass(frozen=True)
class ImageRef:
    """A built image. `archive_path` is None where it need not be loaded; else it is an archive
    without the layers that the cluster holds by the time it is loaded."""

    tag: str
    archive_path: Path | None


def build_images(
    names: Sequence[str] = COMPONENTS,
    present: Collection[str] | None = None,
    builder: Builder | None = None,
) -> dict[str, ImageRef]:
    """Name → image, for each of `names`; builds what is not built yet.

    `present` is what the cluster holds: tags, and digests of blobs; None is "no cluster, no
    archives". An archive leaves out what those before it bring: load them in this order, and before
    the next call, which overwrites them. Raises ClusterError with the end of the build's log.
    """
    builder = builder or buildah_builder()
    folder = cache_directory() / "images"
    with _locked(folder):
        base, context = builder.base(), folder / "context"
        images = with_foundations(names)
        take_context(images, context)
        tags = {image.name: tag(image, base, context) for image in images}
        for image in images:
            if not builder.has(tags[image.name]):
                arguments = {"ENGINE": tags[image.on]} if image.on else {"BASE": base}
                with Step(f"Building the image {image.name}") as step:
                    builder.build(image, context, tags[image.name], arguments, step.detail)
        built = {name: tags[name] for name in names}
        if present is None:
            return {name: ImageRef(built_tag, None) for name, built_tag in built.items()}
        return _archived(builder, folder / "archives", built, present)


def _archived(
    builder: Builder, folder: Path, tags: Mapping[str, str], present: Collection[str]
) -> dict[str, ImageRef]:
    folder.mkdir(exist_ok=True)
    held, images = set(present), {}
    for name, image_tag in tags.items():
        target = None
        if image_tag not in held:
            target = folder / f"{name}.tar"
            held |= builder.archive(image_tag, target, frozenset(held))
        images[name] = ImageRef(image_tag, target)
    return images


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with Step("Waiting for another build of images"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
