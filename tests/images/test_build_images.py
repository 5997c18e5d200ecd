"""What is built, and what is put into archives, by a builder that only takes notes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from e2e.images.build import build_images, load_images, push_images
from e2e.images.catalog import ROOT, Image


class NotingBuilder:
    def __init__(self) -> None:
        self.built: list[tuple[str, Mapping[str, str]]] = []
        self.archived: list[tuple[str, frozenset[str]]] = []
        self.pushed: list[tuple[str, str]] = []
        self.tags: set[str] = set()

    def base(self) -> str:
        return "base:1"

    def has(self, tag: str) -> bool:
        return tag in self.tags

    def build(
        self,
        image: Image,
        context: Path,
        tag: str,
        arguments: Mapping[str, str],
        progress: Callable[[str], None],
    ) -> None:
        assert (context / image.dockerfile).exists()
        self.tags.add(tag)
        self.built.append((image.name, arguments))

    def archive(self, tag: str, target: Path, present: Collection[str]) -> set[str]:
        assert not target.exists()
        target.write_text(tag)
        self.archived.append((target.name, frozenset(present)))
        return {f"blobs of {target.stem}"}

    def push(self, tag: str, target: str) -> None:
        self.pushed.append((tag, target))


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotingBuilder:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    return NotingBuilder()


def test_what_is_built_is_not_built_again(builder: NotingBuilder) -> None:
    first = build_images(["router", "operator"], builder=builder)
    again = build_images(["router", "operator"], builder=builder)
    assert [name for name, _ in builder.built] == ["router", "operator"]
    assert again == first
    assert builder.archived == []


def test_the_base_and_the_foundation_are_given_to_the_dockerfiles(builder: NotingBuilder) -> None:
    built = build_images(["engine-sample"], builder=builder)
    engine = build_images(["engine"], builder=builder)["engine"]
    assert builder.built == [("engine", {"BASE": "base:1"}), ("engine-sample", {"ENGINE": engine})]
    assert list(built) == ["engine-sample"]


def test_a_variant_is_built_from_the_same_dockerfile_with_arguments(
    builder: NotingBuilder,
) -> None:
    tags = build_images(["engine", "engine-cuda"], builder=builder)
    assert tags["engine"] != tags["engine-cuda"]
    assert builder.built[1] == ("engine-cuda", {"BASE": "base:1", "ACCELERATOR": "cuda"})


def test_only_what_the_cluster_lacks_is_loaded(builder: NotingBuilder) -> None:
    loaded: dict[str, str] = {}

    def load(name: str, archive: Path) -> None:
        loaded[name] = archive.read_text()

    router = build_images(["router"], builder=builder)["router"]
    tags = load_images(["router", "operator"], lambda: [router, "sha256:1"], load, builder)
    assert tags["router"] == router
    assert loaded == {"operator": tags["operator"]}
    assert builder.archived == [("operator.tar", frozenset([router, "sha256:1"]))]


def test_an_archive_leaves_out_what_the_one_before_brings(builder: NotingBuilder) -> None:
    load_images(["router", "operator"], list, lambda name, archive: None, builder)
    assert builder.archived == [
        ("router.tar", frozenset()),
        ("operator.tar", frozenset(["blobs of router"])),
    ]


def test_archives_are_gone_once_they_are_loaded_or_failed(
    builder: NotingBuilder, tmp_path: Path
) -> None:
    def fail(name: str, archive: Path) -> None:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError, match="router"):
        load_images(["router", "operator"], list, fail, builder)
    # What a run that was killed leaves is overwritten, never read.
    (tmp_path / "images" / "archives" / "router.tar").write_text("half an archive")
    load_images(["router", "operator"], list, lambda name, archive: None, builder)
    assert list((tmp_path / "images" / "archives").iterdir()) == []


def test_images_are_pushed_under_the_names_that_pods_pull(builder: NotingBuilder) -> None:
    pushed = push_images(["router", "operator"], "registry.example:5000/team", builder)
    tags = build_images(["router", "operator"], builder)
    assert pushed == {
        name: tag.replace("localhost/", "registry.example:5000/team/") for name, tag in tags.items()
    }
    assert builder.pushed == [(tags[name], pushed[name]) for name in ("router", "operator")]
    assert builder.archived == []


# A cluster's loading process: says when it is at it, and looks into the archive when told to.
LOADER = """
import sys
from tests.images.test_build_images import NotingBuilder
from e2e.images.build import load_images

class Builder(NotingBuilder):
    def archive(self, tag, target, present):
        digests = super().archive(tag, target, present)
        target.write_text(sys.argv[1])
        return digests

def load(name, archive):
    print("loading", flush=True)
    sys.stdin.readline()
    print(archive.read_text(), flush=True)

load_images(["router"], list, load, Builder())
"""


def start_loader(cluster: str, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOADER, cluster],
        env={**os.environ, "SLUICE_CACHE": str(cache)},
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_until_blocked(pid: int) -> None:
    """Until the process waits for a file lock, as the kernel has it."""
    deadline = time.monotonic() + 30
    while not any(
        line.split()[1] == "->" and line.split()[5] == str(pid)
        for line in Path("/proc/locks").read_text().splitlines()
    ):
        assert time.monotonic() < deadline, "it does not wait for the lock"
        time.sleep(0.01)


@pytest.mark.process
def test_two_clusters_that_start_together_load_their_own_archives(tmp_path: Path) -> None:
    """An archive lacks what its own cluster holds, so another's would leave an image in pieces."""
    with start_loader("first", tmp_path) as first:
        assert first.stdout is not None
        assert "Building" in first.stdout.readline()
        assert "Building" in first.stdout.readline()
        assert first.stdout.readline() == "loading\n"
        with start_loader("second", tmp_path) as second:
            assert second.stdout is not None
            assert "Waiting for another" in second.stdout.readline()
            wait_until_blocked(second.pid)
            assert first.communicate("go\n")[0] == "first\n"
            assert second.communicate("go\n")[0].endswith("loading\nsecond\n")
