"""A tag changes with what the image is made from, and with nothing else."""

from pathlib import Path

import pytest
from sluice_contract.version import VERSION

from e2e.cluster.errors import ClusterError
from e2e.images.catalog import IMAGES, copied_files, labels, tag, take_context, with_foundations

DOCKERFILE = """\
ARG BASE
FROM ${BASE} AS code
COPY images/*.sh /opt/
COPY runtime/pkg /app/pkg
FROM ${BASE}
COPY --from=code /app /app
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in {
        ".dockerignore": "*\n",
        "images/router.Dockerfile": DOCKERFILE,
        "images/step.sh": "true\n",
        "runtime/pkg/__init__.py": "",
        "runtime/pkg/deep/module.py": "x = 1\n",
        "runtime/other.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def router_tag(tree: Path, base: str = "base:1") -> str:
    return tag(IMAGES["router"], base, tree)


@pytest.mark.parametrize(
    "changed", ["images/router.Dockerfile", "images/step.sh", "runtime/pkg/deep/module.py"]
)
def test_a_change_of_what_is_copied_changes_the_tag(tree: Path, changed: str) -> None:
    before = router_tag(tree)
    with (tree / changed).open("a") as file:
        file.write("# changed\n")
    assert router_tag(tree) != before


def test_new_names_modes_and_bases_change_the_tag(tree: Path) -> None:
    seen = {router_tag(tree), router_tag(tree, "base:2")}
    (tree / "images/step.sh").chmod(0o755)
    seen.add(router_tag(tree))
    (tree / "runtime/pkg/deep/module.py").rename(tree / "runtime/pkg/deep/renamed.py")
    seen.add(router_tag(tree))
    assert len(seen) == 4


def test_bytecode_and_files_beside_do_not_change_the_tag(tree: Path) -> None:
    before = router_tag(tree)
    (tree / "runtime/pkg/__pycache__").mkdir()
    (tree / "runtime/pkg/__pycache__/module.pyc").write_text("compiled")
    (tree / "runtime/other.py").write_text("changed")
    assert router_tag(tree) == before


def test_the_tag_is_a_name_that_no_registry_serves(tree: Path) -> None:
    name, _, digits = router_tag(tree).rpartition(":")
    assert name == "localhost/sluice-router"
    assert len(digits) == 12


def test_a_source_that_is_missing_is_named(tree: Path) -> None:
    (tree / "images/step.sh").unlink()
    with pytest.raises(ClusterError, match=r"router.Dockerfile copies images/\*\.sh"):
        copied_files(tree / "images/router.Dockerfile", tree)


def test_the_context_holds_what_is_copied_and_stays_as_it_was_taken(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    context = tmp_path_factory.mktemp("context")
    take_context([IMAGES["router"]], context, tree)
    taken = router_tag(tree)
    (tree / "runtime/pkg/__init__.py").write_text("changed meanwhile")
    assert router_tag(context) == taken
    assert not (context / "runtime/other.py").exists()
    assert (context / ".dockerignore").exists()


def test_an_image_of_ours_is_built_before_those_that_start_from_it() -> None:
    names = [image.name for image in with_foundations(["engine-sample", "router", "engine"])]
    assert names == ["engine", "engine-sample", "router"]
    names = [image.name for image in with_foundations(["router", "engine-pretended"])]
    assert names == ["router", "engine", "engine-sample", "engine-pretended"]


def test_a_name_that_is_no_image_is_refused() -> None:
    with pytest.raises(ClusterError, match="image enigne: allowed are engine, "):
        with_foundations(["enigne"])


def test_labels_name_version_licence_and_commit() -> None:
    prefix = "org.opencontainers.image."
    found = {name.removeprefix(prefix): text for name, text in labels(IMAGES["router"]).items()}
    assert found.pop("revision", "0" * 40).isalnum()
    assert found == {"title": "sluice-router", "version": VERSION, "licenses": "Apache-2.0"}


def test_a_tree_without_git_has_no_commit(tree: Path) -> None:
    assert "org.opencontainers.image.revision" not in labels(IMAGES["router"], tree)
