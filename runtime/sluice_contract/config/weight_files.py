"""Which files of a folder hold a model's weights, and the refusals of folders that lack them.

The fetcher refuses before a download, the engine when it reads a mounted folder. Works on file
names and the content of an index; opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
SHARD: Final = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""The beginning of a file that Git LFS has not fetched."""
MAX_NAMED: Final = 3
"""Files that a message names."""
_PICKLED: Final = re.compile(
    r"(pytorch_|adapter_)?model.*\.bin|.*\.(pt|pth|ckpt)|consolidated.*\.pth"
)
_SAVE: Final = "transformers' from_pretrained(…).save_pretrained(…) writes it"
_CONVERTED: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (_PICKLED, _SAVE),
    (re.compile(r".*\.safetensors"), ""),
    (re.compile(r".*\.gguf"), "the repository that the GGUF file was made from has it"),
    (re.compile(r".*\.(h5|msgpack|onnx)"), _SAVE),
)
"""Formats of weights that no engine reads, and how to convert each to the one that engines read."""


def pointer_text(size_bytes: int) -> str:
    return f"is a pointer of Git LFS ({size_bytes} bytes), not the file itself: run `git lfs pull`"


def unread_weights(names: Collection[str], allowed: str = SINGLE) -> str:
    """Text that names the weights which no engine reads, and how to get `allowed`; empty: there are
    none."""
    for pattern, how in _CONVERTED:
        unread = [name for name in names if pattern.fullmatch(name) and name != allowed]
        if unread:
            return f"{_are(unread)} not read; allowed: {allowed}{how and f' ({how})'}"
    return ""


def absent_weights(names: Collection[str]) -> str:
    """Text that names the files which a folder without `INDEX` has in place of weights; empty:
    there are none."""
    if SINGLE in names:
        return ""
    if shards := sorted(filter(SHARD.fullmatch, names)):
        return f"{INDEX} is missing, which says what is in {_some(shards)}"
    return unread_weights(names)


def index_flaw(places: Mapping[str, object], names: Collection[str]) -> str:
    """Text that names the files which an index lists and a folder lacks; empty: none. `places`: the
    index's `weight_map`."""
    files = {file for file in places.values() if isinstance(file, str)}
    if not (missing := sorted(files.difference(names))):
        return ""
    text = f"{_are(missing)} missing"
    if SINGLE not in names or SINGLE in files:
        return f"{text}; {INDEX} names {'it' if len(missing) == 1 else 'them'}"
    return f"{text}: {INDEX} is stale; allowed: the files that it names, or {SINGLE} without it"


def _are(names: Collection[str]) -> str:
    return f"{_some(names)} {'is' if len(names) == 1 else 'are'}"


def _some(names: Collection[str]) -> str:
    """Text with the first names, and how many more there are."""
    first, more = sorted(names)[:MAX_NAMED], len(names) - MAX_NAMED
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
