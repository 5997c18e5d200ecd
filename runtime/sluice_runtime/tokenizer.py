"""Text to token ids and back: tokenizer.json of a model folder, or bytes for dummy models.

Imports no torch. Knows nothing of requests, and nothing of chat (see `chat_template`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

import tokenizers

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model_files import ModelFiles

_BYTE_VALUES: Final = 256
_DUMMY_VOCABULARY: Final = 259
"""Bytes, then `<bos>`, `<pad>` and `<eos>`."""


class Tokenizer(Protocol):
    """What the API process needs of a tokenizer. Safe to call from several threads."""

    @property
    def hidden_ids(self) -> Collection[int]:
        """Special tokens: never part of the text."""

    @property
    def byte_ids(self) -> Collection[int]:
        """Tokens whose text is known only when a token follows that is not among them."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; with special tokens as the model's post-processor adds them."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids without special tokens; bytes that are no UTF-8 become U+FFFD."""


class ByteTokenizer:
    """The vocabulary of dummy models: 256 bytes and three special tokens."""

    hidden_ids: Collection[int] = frozenset(range(_BYTE_VALUES, _DUMMY_VOCABULARY))
    byte_ids: Collection[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        values = bytes(token for token in token_ids if token < _BYTE_VALUES)
        return values.decode(errors="replace")


class FileTokenizer:
    """A tokenizer.json, run by the `tokenizers` library."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.hidden_ids: Collection[int] = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        self.byte_ids: Collection[int] = _byte_fallback_ids(tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The model's tokenizer.

    Raises:
        ModelLoadError: tokenizer.json is missing or damaged; names the file.
    """
    if files.folder is None:
        return ByteTokenizer()
    return FileTokenizer(_read(files.folder / "tokenizer.json"))


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"model.uri: cannot read {path}: {error.strerror}") from None
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exceptions
        raise ModelLoadError(f"model.uri: {path} is no tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _byte_fallback_ids(tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    candidates = (tokenizer.token_to_id(f"<0x{value:02X}>") for value in range(_BYTE_VALUES))
    return frozenset(token_id for token_id in candidates if token_id is not None)
