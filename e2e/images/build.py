"""Builds the images that changed, and loads them into a cluster or pushes them to a registry.

A tag is a hash of everything that the image is made from, so an image with this tag is current.
Only one process at a time builds or loads, because builds share a store, and archives share a file
name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.locks import lock
from e2e.cluster.progress import Step
from e2e.cluster.toolchain.cache import cache_directory
from e2e.images.builder import Builder, buildah_builder
from e2e.images.catalog import LOCAL, tag, take_context, with_foundations

COMPONENTS = ("engine", "router", "operator", "fetch")
Load = Callable[[str, Path], None]


def build_images(
    names: Sequence[str] = COMPONENTS, builder: Builder | None = None
) -> dict[str, str]:
    """Name → tag, for each of `names`; builds missing images. Raises ClusterError with the end of
    the build's log."""
    builder = builder or buildah_builder()
    folder = cache_directory() / "images"
    with locked_store(folder):
        return _build(names, builder, folder / "context")


def load_images(
    names: Sequence[str], present: Callable[[], Collection[str]], load: Load, builder: Builder
) -> dict[str, str]:
    """Builds images as `build_images` does, and calls `load(name, archive)` for each image that a
    cluster lacks.

    `present` returns what the cluster has: tags, and digests of blobs. It is called under the lock,
    since another process may have loaded images before. An archive leaves out these blobs and those
    of earlier archives, so it fits this cluster alone. It exists only while it is being loaded, and
    other processes wait until all images are loaded.
    """
    folder = cache_directory() / "images"
    with locked_store(folder):
        tags = _build(names, builder, folder / "context")
        held = set(present())
        for name, image_tag in tags.items():
            if image_tag not in held:
                with _archive(folder, name) as target:
                    held |= builder.archive(image_tag, target, frozenset(held))
                    load(name, target)
    return tags


def push_images(names: Sequence[str], registry: str, builder: Builder) -> dict[str, str]:
    """Builds images as `build_images` does, and pushes each to `registry` (HOST[:PORT][/PATH]).

    Returns name → the image that pods pull. Layers that the registry has are not sent again.
    """
    folder = cache_directory() / "images"
    with locked_store(folder):
        tags = _build(names, builder, folder / "context")
        pushed = {name: f"{registry}/{tag.removeprefix(LOCAL)}" for name, tag in tags.items()}
        for number, (name, target) in enumerate(pushed.items()):
            with Step(f"Pushing {target}") as step:
                step.reached(number, len(pushed), "images")
                builder.push(tags[name], target)
    return pushed


def _build(names: Sequence[str], builder: Builder, context: Path) -> dict[str, str]:
    base = builder.base()
    images = with_foundations(names)
    take_context(images, context)
    tags = {image.name: tag(image, base, context) for image in images}
    for number, image in enumerate(images):
        if not builder.has(tags[image.name]):
            from_image = {"ENGINE": tags[image.on]} if image.on in tags else {"BASE": base}
            arguments = from_image | dict(image.arguments)
            with Step(f"Building the image {image.name}") as step:
                step.reached(number, len(images), "images")
                builder.build(image, context, tags[image.name], arguments, step.detail)
    return {name: tags[name] for name in names}


@contextmanager
def _archive(folder: Path, name: str) -> Iterator[Path]:
    """The path for an archive. The file is deleted at the end, and so are the remains of a killed
    run."""
    target = folder / "archives" / f"{name}.tar"
    target.parent.mkdir(exist_ok=True)
    # A new file: a loader that outlived its killed run may still be reading the old one.
    target.unlink(missing_ok=True)
    try:
        yield target
    finally:
        target.unlink(missing_ok=True)


@contextmanager
def locked_store(folder: Path) -> Iterator[None]:
    """Takes the lock of the store in `folder` for the length of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        lock(file.fileno(), "another build or load of images")
        yield
