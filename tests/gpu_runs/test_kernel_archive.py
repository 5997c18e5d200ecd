"""Kernels as one file, which is checked before it replaces anything."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.gpu_runs import kernel_archive
from e2e.gpu_runs.kernel_archive import DIGESTS, FOLDERS, DamagedArchiveError, main, pack, unpack

LIBRARY, CUBIN = f"{FOLDERS[0]}/norm/norm.so", f"{FOLDERS[1]}/a.cubin"


def checkout(folder: Path, **contents: str) -> Path:
    """A checkout whose kernels have these contents."""
    for name in (LIBRARY, CUBIN):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(contents[path.suffix[1:]])
    return folder


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
    (there / FOLDERS[1] / "old.cubin").write_text("of older sources")
    packed = pack(tmp_path / "archive", here)
    assert unpack(tmp_path / "archive", there) == packed
    found = {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
    assert found == {Path(LIBRARY), Path(CUBIN)}
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
        ({DIGESTS: b"{}"}, f"does not belong there: {LIBRARY}, {CUBIN}"),
        ({DIGESTS: b"["}, "Expecting value"),
    ],
)
def test_a_damaged_archive_replaces_nothing(
    change: Mapping[str, bytes], error: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    pack(archive, checkout(tmp_path / "here", so="new", cubin="new"))
    changed(archive, change)
    there = checkout(tmp_path / "there", so="old", cubin="old")
    with pytest.raises(DamagedArchiveError, match=error):
        unpack(archive, there)
    assert {(there / name).read_text() for name in (LIBRARY, CUBIN)} == {"old"}


@pytest.mark.parametrize(
    "name", ["setup.py", f"{FOLDERS[0]}/../../x.py", "/proc/x", str(FOLDERS[1])]
)
def test_files_outside_the_folders_of_kernels_are_refused(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    digests = pack(archive, checkout(tmp_path / "here", so="new", cubin="new"))
    listed = {**digests, name: hashlib.sha256(b"x").hexdigest()}
    changed(archive, {name: b"x", DIGESTS: json.dumps(listed).encode()})
    with pytest.raises(DamagedArchiveError, match="does not belong there"):
        unpack(archive, tmp_path)


def test_an_archive_without_kernels_of_one_kind_replaces_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    written(archive, {DIGESTS: b"{}"})
    there = checkout(tmp_path / "there", so="old", cubin="old")
    with pytest.raises(DamagedArchiveError, match=f"has nothing for {FOLDERS[0]}"):
        unpack(archive, there)
    assert (there / LIBRARY).exists()


def test_half_an_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    pack(archive, checkout(tmp_path / "here", so="new" * 1000, cubin="new"))
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(DamagedArchiveError, match="archive: "):
        unpack(archive, tmp_path)


def test_the_command_says_what_is_missing_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_archive, "pack", lambda file: pack(file, tmp_path))
    assert main(["pack", str(tmp_path / "archive")]) == 1
    assert capsys.readouterr().err == (
        f"error: {FOLDERS[0]} has no kernels: scripts/gpu-kernels builds them\n"
    )
    assert main(["unpack", str(tmp_path / "absent")]) == 1
    assert "No such file" in capsys.readouterr().err
