"""The files of a commit, the choice of those that an engine reads, and the protocol of places that
have commits. Values and pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from sluice_contract.config.weight_files import (
    INDEX,
    SHARD,
    SINGLE,
    absent_weights,
    unread_weights,
)

from sluice_fetch.errors import FetchError, NotAModelError, NotAnAdapterError

CONFIG_FILE: Final = "config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"


@dataclass(frozen=True)
class Selection:
    """The files that an engine reads of a model or of an adapter."""

    required: dict[str, re.Pattern[str]]
    """Required patterns by the text that names what is missing; at least one file name must match
    each pattern."""
    optional: frozenset[str]
    refusal: type[FetchError]

    def reads(self, name: str) -> bool:
        """Whether an engine reads a file of this name."""
        return name in self.optional or any(
            pattern.fullmatch(name) for pattern in self.required.values()
        )

    def missing(self, names: Collection[str]) -> list[str]:
        """Required files that are not among `names`."""
        return [
            called
            for called, pattern in self.required.items()
            if not any(map(pattern.fullmatch, names))
        ]

    def flaw(self, names: Collection[str]) -> str:
        """Reason why an engine cannot use files with these names; empty: the names show none."""
        is_adapter = ADAPTER_WEIGHTS in self.required
        if missing := self.missing(names):
            hint = unread_weights(names, ADAPTER_WEIGHTS if is_adapter else SINGLE)
            lacks = any(name.endswith(".safetensors") for name in missing)
            return f"has no {', no '.join(missing)}{f'; {hint}' if lacks and hint else ''}"
        if is_adapter or INDEX in names or not (hint := absent_weights(names)):
            return ""
        return f"has no {SINGLE}; {hint}"


MODEL: Final = Selection(
    {
        CONFIG_FILE: re.compile(r"config\.json"),
        "tokenizer.json": re.compile(r"tokenizer\.json"),
        "model*.safetensors": re.compile(rf"{re.escape(SINGLE)}|{SHARD.pattern}"),
    },
    frozenset(
        {
            "generation_config.json",
            "hf_quant_config.json",
            INDEX,
            "tokenizer_config.json",
            "special_tokens_map.json",
            "chat_template.jinja",
            "chat_template.json",
        }
    ),
    NotAModelError,
)
ADAPTER: Final = Selection(
    {
        "adapter_config.json": re.compile(r"adapter_config\.json"),
        ADAPTER_WEIGHTS: re.compile(re.escape(ADAPTER_WEIGHTS)),
    },
    frozenset(),
    NotAnAdapterError,
)
"""A LoRA adapter in PEFT's format."""


@dataclass(frozen=True)
class HubFile:
    """A file of a commit."""

    name: str
    size_bytes: int
    etag: str
    """Name of the file's blob. From a hub: sha256 of the content if it is stored by LFS, else git's
    sha1. From a bucket: a digest of name, size and `version`."""
    version: str = ""
    """The bucket's ETag; empty for files of a hub."""


@dataclass(frozen=True)
class Snapshot:
    """A commit with the files of it that an engine reads."""

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Content(Protocol):
    """Body of a response."""

    continues: bool
    """Whether the body begins at the requested offset instead of at the file's start."""

    def chunks(self) -> Iterator[bytes]:
        """Chunks as they arrive."""


class Origin(Protocol):
    """Place from which a revision of a model is fetched. All methods raise `FetchError`."""

    @property
    def repository(self) -> str:
        """Name of the origin's part of the cache."""

    @property
    def revision(self) -> str:
        """Branch, tag or commit."""

    def look_up(self, selection: Selection) -> tuple[str, tuple[HubFile, ...]]:
        """The revision's current commit, and at least those of its files that `selection` reads."""

    def content(self, commit: str, file: HubFile, offset: int) -> AbstractContextManager[Content]:
        """The bytes of a file from `offset` on, or all of them."""

    def flaw(self, path: Path, file: HubFile) -> str:
        """Reason why a downloaded file cannot be used; empty: there is none."""


def snapshot(selection: Selection, commit: str, files: Iterable[HubFile]) -> Snapshot:
    """Chooses a commit's files by name. Files in folders, and other formats of the weights, are not
    chosen.

    Raises:
        FetchError: of the selection's class; names what is missing.
    """
    listed = sorted(files, key=lambda file: file.name)
    if flaw := selection.flaw([file.name for file in listed]):
        raise selection.refusal(f"commit {commit} {flaw}")
    return Snapshot(commit, tuple(file for file in listed if selection.reads(file.name)))
