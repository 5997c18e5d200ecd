"""What a commit holds and which of its files an engine reads. Values and pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_fetch.errors import NotAModelError

WEIGHTS: Final = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
CONFIG_FILE: Final = "config.json"
OTHERS: Final = frozenset(
    {
        CONFIG_FILE,
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    }
)
REQUIRED: Final = (CONFIG_FILE, "tokenizer.json")


@dataclass(frozen=True)
class HubFile:
    """A file of a commit."""

    name: str
    size_bytes: int
    etag: str
    """sha256 of its content where it is stored by LFS, else git's sha1; names its blob."""


@dataclass(frozen=True)
class Snapshot:
    """A commit, and of its files those that an engine reads."""

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def snapshot(commit: str, files: Iterable[HubFile]) -> Snapshot:
    """Chooses by name: what is in folders and other formats of the same weights stay there.

    Raises:
        NotAModelError: names what is missing.
    """
    chosen = tuple(
        sorted(
            (file for file in files if file.name in OTHERS or WEIGHTS.fullmatch(file.name)),
            key=lambda file: file.name,
        )
    )
    names = {file.name for file in chosen}
    missing = [name for name in REQUIRED if name not in names]
    if not any(map(WEIGHTS.fullmatch, names)):
        missing.append("model*.safetensors")
    if missing:
        raise NotAModelError(f"commit {commit} has no {', no '.join(missing)}")
    return Snapshot(commit, chosen)
