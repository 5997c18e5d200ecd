"""Which builder makes the images for a cluster."""

from __future__ import annotations

from e2e.cluster.provider import Cluster
from e2e.cluster.providers.kind import KindCluster, running_engine
from e2e.images.builder import Builder, DockerBuilder, buildah_builder


def choose_builder(cluster: Cluster) -> Builder:
    """Docker or Podman where they run and can pull a base image, else buildah as root."""
    engine = running_engine()
    nothing_pulled = isinstance(cluster, KindCluster) and cluster.own_node
    if cluster.kind != "bare" and engine is not None and not nothing_pulled:
        return DockerBuilder(engine)
    return buildah_builder()
