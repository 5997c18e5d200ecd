"""Which builder makes the images for a kind of cluster."""

from __future__ import annotations

from e2e.cluster.providers.kind import running_engine
from e2e.images.builder import Builder, DockerBuilder, buildah_builder


def choose_builder(cluster_kind: str) -> Builder:
    """Docker or Podman for kind; elsewhere they too where they run, else buildah as root."""
    engine = running_engine()
    if cluster_kind != "bare" and engine is not None:
        return DockerBuilder(engine)
    return buildah_builder()
