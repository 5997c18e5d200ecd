"""What is written into image archives, and read out of them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from e2e.cluster.bare.containerd import write_static_image
from e2e.cluster.loaded_images import archive_images


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def oci_files(annotations: dict[str, str]) -> tuple[dict[str, bytes], str]:
    configuration = digest(b"{}")
    manifest = json.dumps({"config": {"digest": configuration}, "layers": []}).encode()
    index = {"manifests": [{"digest": digest(manifest), "annotations": annotations}]}
    files = {
        "index.json": json.dumps(index).encode(),
        f"blobs/{digest(manifest).replace(':', '/')}": manifest,
    }
    return files, configuration


def test_a_docker_archive_names_its_images(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"binary")
    write_static_image(program, "sluice.local/program:1", tmp_path / "image.tar")
    found = archive_images(tmp_path / "image.tar")
    assert list(found) == ["sluice.local/program:1"]
    program.write_bytes(b"other binary")
    write_static_image(program, "sluice.local/program:1", tmp_path / "other.tar")
    assert archive_images(tmp_path / "other.tar") != found


def test_an_oci_archive_is_named_by_its_annotations(tmp_path: Path) -> None:
    names = {"org.opencontainers.image.ref.name": "1", "io.containerd.image.name": "local/a:1"}
    files, configuration = oci_files(names)
    assert archive_images(write_tar(tmp_path / "a.tar", files)) == {"local/a:1": configuration}


def test_archives_without_names_name_nothing(tmp_path: Path) -> None:
    files, _ = oci_files({})
    assert archive_images(write_tar(tmp_path / "a.tar", files)) == {}
    assert archive_images(write_tar(tmp_path / "b.tar", {"other": b""})) == {}


def test_a_static_image_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"binary")
    for archive in ("one.tar", "two.tar"):
        write_static_image(program, "sluice.local/program:1", tmp_path / archive)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_a_static_image_runs_its_program_as_nobody(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"binary")
    write_static_image(program, "sluice.local/program:1", tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        configuration = archive.extractfile("config.json")
        assert configuration is not None
        settings = json.loads(configuration.read())["config"]
    assert settings == {"Entrypoint": ["/program"], "User": "65535:65535"}
