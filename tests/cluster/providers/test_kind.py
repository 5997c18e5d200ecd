"""Which image kind's node has, and who builds the others then."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError, CommandFailedError, NoNodeImageError
from e2e.cluster.kind_node import image as node_image
from e2e.cluster.provider import Cluster
from e2e.cluster.providers import kind
from e2e.cluster.providers.bare import BareCluster
from e2e.cluster.providers.kind import KindCluster
from e2e.images import choose
from e2e.images.builder import DockerBuilder

OURS = f"{node_image.NAME}:1"
PULL_FAILED = 'ERROR: failed to create cluster: failed to pull image "kindest/node:v1.34.0"'


class Engine:
    """Docker and kind, as far as commands are concerned: no cluster, no image, no registry."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.registry = False
        self.pull_fails = False
        self.pulled = ""
        self.node = ""
        self.clusters = ""

    def run(self, words: list[str], **_: object) -> str:
        line = " ".join(map(str, words))
        if "container inspect" in line:
            return self._or_fail(self.node, line)
        if "image ls" in line:
            return self.pulled
        if "get clusters" in line:
            return self.clusters
        if "delete cluster" in line:
            self.clusters = ""
        if "create cluster" in line:
            if self.pull_fails and "--image" not in line:
                raise CommandFailedError(["kind"], 1, PULL_FAILED)
            self.created.append(line)
        return ""

    def _or_fail(self, text: str, line: str) -> str:
        if not text:
            raise CommandFailedError([line], 1, "no such container")
        return text


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    made = Engine()
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    monkeypatch.setattr(kind, "run", made.run)
    monkeypatch.setattr(kind, "ensure_kind", lambda: Path("kind"))
    monkeypatch.setattr(kind, "registry_answers", lambda: made.registry)
    monkeypatch.setattr(node_image, "ensure_node_image", lambda engine: OURS)
    monkeypatch.setattr(choose, "running_engine", lambda: "docker")
    monkeypatch.setattr(choose, "buildah_builder", lambda: "buildah")
    return made


def builder_for(cluster: Cluster) -> object:
    """A word stands for buildah."""
    return choose.choose_builder(cluster)


def test_where_a_registry_answers_kind_has_its_own_node_and_docker_builds(engine: Engine) -> None:
    engine.registry = True
    cluster = KindCluster("mine", "docker")
    cluster.up()
    (created,) = engine.created
    assert "--image" not in created
    assert isinstance(builder_for(cluster), DockerBuilder)


def test_what_was_pulled_before_needs_no_registry(engine: Engine) -> None:
    engine.pulled = "4645d8cc5ad4\n"
    assert not KindCluster("mine", "docker").own_node


def test_without_a_registry_the_node_is_ours_and_buildah_builds(engine: Engine) -> None:
    cluster = KindCluster("mine", "docker")
    cluster.up()
    (created,) = engine.created
    assert f"--image={OURS}" in created
    assert builder_for(cluster) == "buildah"


def test_an_engine_that_cannot_pull_gets_our_node(engine: Engine) -> None:
    engine.registry = engine.pull_fails = True
    cluster = KindCluster("mine", "docker")
    cluster.up()
    engine.node = OURS
    assert f"--image={OURS}" in engine.created[0]
    assert builder_for(cluster) == "buildah", "the registry answers us, not Docker"


def test_what_an_interrupted_up_has_begun_is_made_anew(engine: Engine) -> None:
    engine.clusters = "other mine"
    KindCluster("mine", "docker").up()
    assert len(engine.created) == 1


def test_without_any_node_image_the_reason_is_said(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(engine: str) -> str:
        raise ClusterError("needed and not found: buildah")

    monkeypatch.setattr(node_image, "ensure_node_image", refuse)
    with pytest.raises(NoNodeImageError, match=r"no node image .*: needed .* buildah"):
        KindCluster("mine", "docker").up()


def test_a_bare_cluster_has_its_images_from_buildah(engine: Engine, tmp_path: Path) -> None:
    assert builder_for(BareCluster("mine", tmp_path)) == "buildah"
