"""Kernels as one file, which is checked before it replaces anything."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from kernel_archive import FOLDERS, UnusableArchiveError, main, pack, unpack
from sluice_kernels.flashinfer_ahead import CUDA, MANIFEST, VERSION, Manifest, Module

LIBRARY, CUBIN = f"{FOLDERS[0]}/norm/norm.so", f"{FOLDERS[1]}/a.cubin"
MANIFESTS = tuple(f"{folder}/{MANIFEST}" for folder in FOLDERS)


def checkout(folder: Path, *, version: str = VERSION, **contents: str) -> Path:
    """A checkout whose kernels have these contents, beside a module and a cubin of older
    sources."""
    for name in (LIBRARY, CUBIN, f"{FOLDERS[0]}/old/old.so", f"{FOLDERS[1]}/old.cubin"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents[path.suffix[1:]])
    Manifest(version, {"norm": Module((90,), "")}).write(folder / FOLDERS[0])
    cubins = {"architectures": [90], "cubins": {"a.cubin": 0}}
    (folder / MANIFESTS[1]).write_text(json.dumps(cubins))
    return folder


def manifest(files: Mapping[str, str] | None = None, **versions: str) -> bytes:
    """An archive's manifest for these versions, by default those of this checkout."""
    own = {"flashinfer": VERSION, "cuda": CUDA, **versions}
    return json.dumps({"versions": own, "modules": {}, "files": files or {}}).encode()


def written(archive: Path, contents: Mapping[str, bytes]) -> None:
    """Writes an archive of these files, whatever its digests say."""
    with tarfile.open(archive, "w:xz") as file:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def changed(archive: Path, change: Mapping[str, bytes]) -> None:
    """Adds files to an archive, or replaces its own, without their digests."""
    with tarfile.open(archive, "r:xz") as file:
        contents = {member.name: file.extractfile(member).read() for member in file}  # type: ignore[union-attr]
    written(archive, {**contents, **change})


def test_kernels_arrive_as_they_were_and_replace_older_ones(tmp_path: Path) -> None:
    here = checkout(tmp_path / "here", so="new library", cubin="new kernel")
    there = checkout(tmp_path / "there", so="old library", cubin="old kernel")
    packed = pack(tmp_path / "archive", here)
    assert unpack(tmp_path / "archive", there) == json.loads(json.dumps(packed))
    assert packed["versions"] == {"flashinfer": VERSION, "cuda": CUDA}
    assert packed["modules"] == {"norm": (90,)}
    found = {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
    assert found == {Path(name) for name in (LIBRARY, CUBIN, *MANIFESTS)}
    assert (there / LIBRARY).read_text() == "new library"
    assert (there / CUBIN).read_text() == "new kernel"
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    unpack(tmp_path / "archive", fresh)
    assert (fresh / CUBIN).read_text() == "new kernel"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({CUBIN: b"other"}, f"not as packed: {CUBIN}"),
        ({f"{FOLDERS[0]}/more.so": b"x"}, f"does not belong there: {FOLDERS[0]}/more.so"),
        ({MANIFEST: manifest()}, f"does not belong there: {MANIFESTS[0]}, {LIBRARY}, "),
        ({MANIFEST: b"["}, "Expecting value"),
        ({MANIFEST: b"[]"}, "list indices"),
        ({MANIFEST: b"{}"}, "versions"),
        ({MANIFEST: manifest(flashinfer="0.6.12")}, f"flashinfer: 0.6.12; allowed: {VERSION}"),
        ({MANIFEST: manifest(cuda="12")}, f"cuda: 12; allowed: {CUDA}"),
    ],
)
def test_a_damaged_archive_replaces_nothing(
    change: Mapping[str, bytes], error: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    pack(archive, checkout(tmp_path / "here", so="new", cubin="new"))
    changed(archive, change)
    there = checkout(tmp_path / "there", so="old", cubin="old")
    with pytest.raises(UnusableArchiveError, match=error):
        unpack(archive, there)
    assert {(there / name).read_text() for name in (LIBRARY, CUBIN)} == {"old"}


@pytest.mark.parametrize(
    "name", ["setup.py", f"{FOLDERS[0]}/../../x.py", "/proc/x", str(FOLDERS[1])]
)
def test_files_outside_the_folders_of_kernels_are_refused(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    packed = pack(archive, checkout(tmp_path / "here", so="new", cubin="new"))
    listed = {**packed["files"], name: hashlib.sha256(b"x").hexdigest()}
    changed(archive, {name: b"x", MANIFEST: manifest(listed)})
    with pytest.raises(UnusableArchiveError, match="does not belong there"):
        unpack(archive, tmp_path)


def test_an_archive_without_kernels_of_one_kind_replaces_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    written(archive, {MANIFEST: manifest()})
    there = checkout(tmp_path / "there", so="old", cubin="old")
    with pytest.raises(UnusableArchiveError, match=f"has nothing for {FOLDERS[0]}"):
        unpack(archive, there)
    assert (there / LIBRARY).exists()


def test_half_an_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    pack(archive, checkout(tmp_path / "here", so="new" * 1000, cubin="new"))
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(UnusableArchiveError, match="archive: "):
        unpack(archive, tmp_path)


def test_kernels_of_another_flashinfer_are_packed_as_such(tmp_path: Path) -> None:
    pack(tmp_path / "archive", checkout(tmp_path / "a", version="0.6.12", so="x", cubin="x"))
    with pytest.raises(UnusableArchiveError, match=f"flashinfer: 0.6.12; allowed: {VERSION}"):
        unpack(tmp_path / "archive", tmp_path)


def test_the_command_shows_what_an_archive_holds_or_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path / "archive"), "--root", str(tmp_path)]
    assert main(["pack", *words]) == 1
    assert capsys.readouterr().err == (
        f"error: {FOLDERS[0]} has no kernels: scripts/gpu-kernels builds them\n"
    )
    checkout(tmp_path, so="x", cubin="x")
    (tmp_path / MANIFESTS[1]).unlink()
    assert main(["pack", *words]) == 1
    assert f"error: {FOLDERS[1]} has no kernels" in capsys.readouterr().err
    assert main(["unpack", *words]) == 1
    assert "No such file" in capsys.readouterr().err
    pack(tmp_path / "archive", checkout(tmp_path, so="x", cubin="x"))
    assert main(["unpack", *words]) == 0
    assert f"flashinfer {VERSION}, cuda {CUDA}, 1 modules, 4 files" in capsys.readouterr().out


def test_the_script_explains_itself_before_it_makes_anything(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts/gpu-kernels"
    command = ["bash", str(script), "-a", "90", "--help"]
    answer = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "SLUICE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    assert "scripts/gpu-kernels [-a 90] [--dtypes bfloat16]" in answer.stdout
    assert list(tmp_path.iterdir()) == []
