"""What brings an image's model into an engine's volume: chosen by name, failures told once."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from sluice_fetch.snapshot import MODEL

from e2e.images.catalog import ROOT
from tests.patience import PATIENCE_SECONDS

SMALL = (*MODEL.optional, "config.json", "tokenizer.json")
SCRIPT = ROOT / "runtime/sluice_fetch/model_of_image.sh"
FILES = dict.fromkeys(("config.json", "tokenizer.json", "model.safetensors"), b"content")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class Image:
    """A file system, a volume beside it, and the script between them, with the host's tools for
    busybox's."""

    def __init__(self, folder: Path) -> None:
        self.root, self.target = folder / "image", folder / "volume"
        self.log, busybox = folder / "termination-log", folder / "busybox"
        for made in (self.root, self.target):
            made.mkdir()
        self.log.touch()
        busybox.write_text('#!/bin/sh\nexec "$@"\n')
        busybox.chmod(0o755)
        self.words = ["sh", str(SCRIPT), str(busybox)]

    def put(self, folder: str, *names: str) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name in names or FILES:
            (self.root / folder / name).write_bytes(FILES.get(name, b"other"))

    def start(self, how: str = "copy") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.words, how, str(self.root), str(self.target)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin:/bin", "SLUICE_TERMINATION_LOG": str(self.log)},
        )

    def run(self, how: str = "copy") -> tuple[int, str, str]:
        """Exit code, reason and message."""
        with self.start(how) as process:
            _, errors = process.communicate(timeout=20)
        assert errors == ""
        told = json.loads(self.log.read_text())
        return process.returncode, told["reason"], told["message"]

    def brought(self) -> set[str]:
        return {file.name for file in self.target.iterdir() if not file.name.startswith(".")}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


@pytest.mark.parametrize("folder", ["models", "", "models/tiny one"])
def test_the_files_that_an_engine_reads_come_and_no_others(image: Image, folder: str) -> None:
    image.put(folder, *SMALL, "model.safetensors", *SHARDS)
    image.put(folder, "pytorch_model.bin", "modeling.py", "x-model.safetensors", "notes.txt")
    code, reason, message = image.run()
    assert (code, reason) == (0, "ModelCopied"), message
    assert image.brought() == {*SMALL, "model.safetensors", *SHARDS}
    assert (image.target / "model.safetensors").read_bytes() == b"content"


def test_files_of_a_mounted_image_are_linked(image: Image) -> None:
    image.put("models")
    assert image.run("link")[:2] == (0, "ModelCopied")
    link = image.target / "config.json"
    assert link.readlink() == image.root / "models/config.json"
    assert image.run("link")[0] == 0, "once more, as after a restart of the pod's sandbox"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model*.safetensors"])
def test_what_is_missing_is_named(image: Image, missing: str) -> None:
    image.put("models", *(name for name in FILES if not Path(name).match(missing)))
    code, reason, message = image.run()
    assert (code, reason) == (2, "NotAModel")
    assert f"no {missing} in" in message
    assert "/models" in message
    assert image.brought() == set()


def test_weights_of_another_format_are_named(image: Image) -> None:
    image.put("models", "config.json", "tokenizer.json", "pytorch_model.bin")
    assert image.run()[2].endswith("pytorch_model.bin is not read; allowed: model.safetensors")


def test_weights_that_are_read_are_not_blamed(image: Image) -> None:
    image.put("models", "config.json", *SHARDS)
    assert image.run()[2].endswith("no tokenizer.json in " + f"{image.root}/models of the image")


def test_of_several_models_none_is_guessed(image: Image) -> None:
    image.put("models/a")
    image.put('models/b"')
    code, reason, message = image.run()
    assert (code, reason) == (2, "NotAModel")
    assert "/models/a/, " in message
    assert "allowed: one" in message


def test_a_start_after_a_refusal_waits_for_the_end_of_the_pod(image: Image) -> None:
    assert image.run()[0] == 2
    with image.start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "failed before; waiting for the end of this pod\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 143
    assert json.loads(image.log.read_text())["reason"] == "NotAModel", "still what it was"


def test_a_volume_without_room_may_have_some_later(image: Image) -> None:
    image.put("models")
    with (image.root / "models/model.safetensors").open("ab") as file:
        file.truncate(1 << 43)
    code, reason, message = image.run()
    assert (code, reason) == (1, "NoSpace")
    assert f"{(1 << 43) + 14} bytes" in message
    assert not (image.target / ".failed").exists()


def test_what_an_earlier_start_has_copied_takes_no_room_of_its_own(image: Image) -> None:
    """The volume has room for the model once, and a start was ended in the middle of it."""
    image.put("models")
    (image.root / "models/model.safetensors").write_bytes(b"x" * (3 << 20))
    (image.target / "model.safetensors").write_bytes(b"x" * (2 << 20))
    (image.target / ".partial").write_bytes(b"x" * (1 << 20))
    used = f'$(du -sk "{image.target}" | cut -f 1)'
    volume = f'[ "$1" != df ] || {{ echo "volume - - $((4096 - {used}))"; exit; }}'
    busybox = Path(image.words[2])
    busybox.write_text(f'#!/bin/sh\n{volume}\nexec "$@"\n')
    assert image.run()[:2] == (0, "ModelCopied")
    assert image.brought() == set(FILES)
