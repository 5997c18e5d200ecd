"""The files of a commit, and which of them an engine reads. Values and pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from sluice_fetch.errors import FetchError, NotAModelError, NotAnAdapterError

CONFIG_FILE: Final = "config.json"


@dataclass(frozen=True)
class Selection:
    """The files that an engine reads of a model or of an adapter."""

    required: dict[str, re.Pattern[str]]
    """Required patterns: at least one name must match each; the text names what is missing."""
    optional: frozenset[str]
    refusal: type[FetchError]

    def reads(self, name: str) -> bool:
        """Whether an engine reads a file of this name."""
        return name in self.optional or any(
            pattern.fullmatch(name) for pattern in self.required.values()
        )

    def missing(self, names: Collection[str]) -> list[str]:
        """What is required and not among `names`."""
        return [
            called
            for called, pattern in self.required.items()
            if not any(map(pattern.fullmatch, names))
        ]


MODEL: Final = Selection(
    {
        CONFIG_FILE: re.compile(r"config\.json"),
        "tokenizer.json": re.compile(r"tokenizer\.json"),
        "model*.safetensors": re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors"),
    },
    frozenset(
        {
            "generation_config.json",
            "hf_quant_config.json",
            "model.safetensors.index.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "chat_template.jinja",
        }
    ),
    NotAModelError,
)
ADAPTER: Final = Selection(
    {
        "adapter_config.json": re.compile(r"adapter_config\.json"),
        "adapter_model.safetensors": re.compile(r"adapter_model\.safetensors"),
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
    """sha256 of its content where it is stored by LFS, else git's sha1; names its blob."""


@dataclass(frozen=True)
class Snapshot:
    """A commit, and of its files those that an engine reads."""

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def snapshot(selection: Selection, commit: str, files: Iterable[HubFile]) -> Snapshot:
    """Chooses by name: what is in folders and other formats of the same weights stay there.

    Raises:
        FetchError: the selection's; names what is missing.
    """
    chosen = tuple(
        sorted((file for file in files if selection.reads(file.name)), key=lambda file: file.name)
    )
    if missing := selection.missing([file.name for file in chosen]):
        raise selection.refusal(f"commit {commit} has no {', no '.join(missing)}")
    return Snapshot(commit, chosen)
