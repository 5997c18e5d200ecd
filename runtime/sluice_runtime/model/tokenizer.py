"""Text to token ids and back: with tokenizer.json of a model folder, or as bytes for dummy models.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol

import tokenizers
from tokenizers.models import BPE, Unigram

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.files import ModelFiles, lfs_pointer, token_text, tokenizer_config

_FILE: Final = "tokenizer.json"
_BYTE_VALUES: Final = 256
_DUMMY_VOCABULARY: Final = 259
"""Size of the dummy vocabulary: bytes, then the special tokens."""
_SPECIAL_NAMES: Final = ("<bos>", "<pad>", "<eos>")
CACHED_WORDS: Final = 1_024
"""Words whose tokens the library keeps for each thread that encodes. A word of 255 bytes takes up
to 9 KB, so its own 10,000 words would be 90 MB a thread, filled by whatever clients send. Ordinary
text is encoded as fast with a tenth of them."""


class Tokenizer(Protocol):
    """Interface of a tokenizer for the API process. Safe to call from several threads."""

    @property
    def hidden_ids(self) -> Collection[int]:
        """Special tokens: never part of the text."""

    @property
    def byte_ids(self) -> Collection[int]:
        """Tokens whose text is known only when a token follows that is not among them."""

    def token_bytes(self, token_id: int) -> bytes | None:
        """Bytes that one token adds to a text; None for special tokens."""

    def token_name(self, token_id: int) -> str:
        """The spelling of a token in the vocabulary."""

    def special_id(self, name: str) -> int | None:
        """Id of the special token with this spelling."""

    def token_id(self, name: str) -> int | None:
        """Id of the token with this spelling, special or not."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; with special tokens as the model's post-processor adds them."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids without special tokens; bytes that are no UTF-8 become U+FFFD."""


class ByteTokenizer:
    """The vocabulary of dummy models: 256 bytes and three special tokens."""

    hidden_ids: Collection[int] = frozenset(range(_BYTE_VALUES, _DUMMY_VOCABULARY))
    byte_ids: Collection[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes | None:
        return bytes([token_id]) if token_id < _BYTE_VALUES else None

    def token_name(self, token_id: int) -> str:
        special = token_id - _BYTE_VALUES
        return _SPECIAL_NAMES[special] if special >= 0 else f"<0x{token_id:02X}>"

    def special_id(self, name: str) -> int | None:
        return _BYTE_VALUES + _SPECIAL_NAMES.index(name) if name in _SPECIAL_NAMES else None

    def token_id(self, name: str) -> int | None:
        return self.special_id(name)

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
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._byte_values = _byte_fallback_ids(tokenizer)
        self.byte_ids: Collection[int] = self._byte_values.keys()
        decoder = tokenizer.decoder
        self._byte_level = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def token_bytes(self, token_id: int) -> bytes | None:
        if token_id in self.hidden_ids:
            return None
        if token_id in self._byte_values:
            return bytes([self._byte_values[token_id]])
        if token_id in self._added:
            return self._added[token_id].encode()
        if self._byte_level:
            return _bytes_of_symbols(self.token_name(token_id))
        # After another token, since decoders treat the first one of a text in their own way.
        return self.decode([*self._anchor, token_id])[len(self.decode(self._anchor)) :].encode()

    def token_name(self, token_id: int) -> str:
        return self._tokenizer.id_to_token(token_id) or ""

    def special_id(self, name: str) -> int | None:
        token = self.token_id(name)
        return token if token in self.hidden_ids else None

    def token_id(self, name: str) -> int | None:
        token: int | None = self._tokenizer.token_to_id(name)
        return token

    @cached_property
    def _anchor(self) -> list[int]:
        """A token that is a word, if there is one."""
        ids = range(self._tokenizer.get_vocab_size())
        return next(([token_id] for token_id in ids if self.decode([token_id]).isalpha()), [])

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
    return FileTokenizer(_read(files.folder / _FILE))


def end_token_ids(files: ModelFiles, tokenizer: Tokenizer) -> tuple[int, ...]:
    """All ids that end an answer: those of the model's configs, and `eos_token` of
    tokenizer_config.json. Fine-tunes often name their end in one of the files only.

    Raises:
        ModelLoadError: a file is damaged, or names no token.
    """
    name = token_text(tokenizer_config(files).get("eos_token"))
    token_id = tokenizer.token_id(name) if name else None
    own = () if token_id is None else (token_id,)
    return tuple(sorted({*files.eos_token_ids(), *own}))


def tokenizer_digest(files: ModelFiles) -> str:
    """Digest of tokenizer.json; empty for a dummy model, whose name identifies it.

    Raises:
        ModelLoadError: the file cannot be read.
    """
    if files.folder is None:
        return ""
    return blake2b(_content(files.folder / _FILE), digest_size=16).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"model.uri: cannot read {path}: {error.strerror}") from None


def _read(path: Path) -> tokenizers.Tokenizer:
    content = _content(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exceptions
        flaw = lfs_pointer(path) or f"is no tokenizer: {error}"
        raise ModelLoadError(f"model.uri: {path} {flaw}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, BPE | Unigram):  # the others keep none
        tokenizer.model._resize_cache(CACHED_WORDS)
    return tokenizer


def _byte_fallback_ids(tokenizer: tokenizers.Tokenizer) -> dict[int, int]:
    """Ids of the tokens that are single bytes, with their values."""
    tokens = ((tokenizer.token_to_id(f"<0x{value:02X}>"), value) for value in range(_BYTE_VALUES))
    return {token_id: value for token_id, value in tokens if token_id is not None}


def _byte_symbols() -> dict[str, int]:
    """Spelling of each byte: byte-level vocabularies use Latin-1 for printable ones, and U+0100 on
    for the rest."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [value for value in range(_BYTE_VALUES) if value not in printable]
    symbols = {chr(value): value for value in printable}
    return symbols | {chr(0x100 + number): value for number, value in enumerate(rest)}


BYTE_OF_SYMBOL: Final = _byte_symbols()
"""Byte that each character of a byte-level vocabulary stands for."""


def _bytes_of_symbols(symbols: str) -> bytes:
    """Bytes that a byte-level token spells; if it spells none, its characters in UTF-8."""
    if not all(symbol in BYTE_OF_SYMBOL for symbol in symbols):
        return symbols.encode()
    return bytes([BYTE_OF_SYMBOL[symbol] for symbol in symbols])
