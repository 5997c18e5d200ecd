"""Archives carry what the reader lacks; older images make room for newer ones."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.images.layout import ImageLayout

OLD, NEW, OTHER = "localhost/a:old", "localhost/a:new", "localhost/b:1"


def add_image(folder: Path, name: str, layers: list[bytes]) -> list[str]:
    """Writes one image as a builder does; returns its digests: manifest, configuration, layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def store(content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return f"sha256:{digest}"

    config, *stored = [store(content) for content in (f"config of {name}".encode(), *layers)]
    parts = {"config": {"digest": config}, "layers": [{"digest": digest} for digest in stored]}
    manifest = store(json.dumps(parts).encode())
    index = folder / "index.json"
    content = json.loads(index.read_text()) if index.exists() else {"manifests": []}
    annotations = {"org.opencontainers.image.ref.name": name}
    content["manifests"].append({"digest": manifest, "annotations": annotations})
    index.write_text(json.dumps(content))
    return [manifest, config, *stored]


def blobs_in(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        names = [name for name in opened.getnames() if name.startswith("blobs/sha256/")]
    return {f"sha256:{name.rpartition('/')[2]}" for name in names}


def test_an_archive_holds_the_whole_image_under_its_name(tmp_path: Path) -> None:
    digests = add_image(tmp_path / "layout", NEW, [b"base", b"code"])
    archive = tmp_path / "image.tar"
    ImageLayout(tmp_path / "layout").write_archive(NEW, archive)
    assert blobs_in(archive) == set(digests)
    with tarfile.open(archive) as opened:
        index = json.load(opened.extractfile("index.json"))  # type: ignore[arg-type]
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == NEW


def test_an_archive_leaves_out_what_is_there(tmp_path: Path) -> None:
    add_image(tmp_path / "layout", OLD, [b"base", b"old code"])
    new = add_image(tmp_path / "layout", NEW, [b"base", b"new code"])
    layout = ImageLayout(tmp_path / "layout")
    layout.write_archive(NEW, tmp_path / "image.tar", layout.blobs(OLD))
    manifest, config, base, code = new
    assert blobs_in(tmp_path / "image.tar") == {manifest, config, code}
    assert base in layout.blobs(OLD)


def test_an_archive_names_its_image_also_when_all_of_it_is_there(tmp_path: Path) -> None:
    """An interrupted load leaves blobs without the image: the next archive must complete it."""
    manifest, config, *_ = add_image(tmp_path / "layout", NEW, [b"base", b"code"])
    layout = ImageLayout(tmp_path / "layout")
    layout.write_archive(NEW, tmp_path / "image.tar", layout.blobs(NEW))
    assert blobs_in(tmp_path / "image.tar") == {manifest, config}


def test_older_tags_go_and_shared_layers_stay(tmp_path: Path) -> None:
    old = add_image(tmp_path / "layout", OLD, [b"base", b"old code"])
    new = add_image(tmp_path / "layout", NEW, [b"base", b"new code"])
    other = add_image(tmp_path / "layout", OTHER, [b"base"])
    layout = ImageLayout(tmp_path / "layout")
    layout.drop_older(NEW)
    left = {f"sha256:{path.name}" for path in (tmp_path / "layout/blobs/sha256").iterdir()}
    assert left == set(new) | set(other)
    assert not layout.has(OLD)
    assert old[-1] not in left
    assert layout.size_bytes(OTHER) == sum(
        (tmp_path / "layout/blobs/sha256" / digest.removeprefix("sha256:")).stat().st_size
        for digest in other
    )


def test_an_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert not ImageLayout(tmp_path).has(NEW)
    with pytest.raises(ClusterError, match="holds no image localhost/a:new"):
        ImageLayout(tmp_path).write_archive(NEW, tmp_path / "image.tar")
