"""What is built, and what is put into archives, by a builder that only takes notes."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from e2e.images.build import build_images
from e2e.images.catalog import Image


class NotingBuilder:
    def __init__(self) -> None:
        self.built: list[tuple[str, Mapping[str, str]]] = []
        self.archived: list[tuple[str, frozenset[str]]] = []
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
        self.archived.append((target.name, frozenset(present)))
        return {f"blobs of {target.stem}"}


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
    engine = build_images(["engine"], builder=builder)["engine"].tag
    assert builder.built == [("engine", {"BASE": "base:1"}), ("engine-sample", {"ENGINE": engine})]
    assert list(built) == ["engine-sample"]


def test_only_what_the_cluster_lacks_is_archived(builder: NotingBuilder) -> None:
    router = build_images(["router"], builder=builder)["router"].tag
    images = build_images(["router", "operator"], present=[router, "sha256:1"], builder=builder)
    assert images["router"].archive_path is None
    assert images["operator"].archive_path is not None
    assert builder.archived == [("operator.tar", frozenset([router, "sha256:1"]))]


def test_an_archive_leaves_out_what_the_one_before_brings(builder: NotingBuilder) -> None:
    build_images(["router", "operator"], present=[], builder=builder)
    assert builder.archived == [
        ("router.tar", frozenset()),
        ("operator.tar", frozenset(["blobs of router"])),
    ]
