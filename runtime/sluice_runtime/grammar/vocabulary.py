"""The bytes of each token of a model's vocabulary, as grammars match them. Imports no torch.

Special tokens have no bytes: they never appear in the text, so no grammar may use one. The
exceptions begin tool calls, and grammars name them by id. They get bytes that occur in no text,
because the library never allows a token without bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import tokenizers
from llguidance import LLTokenizer, TokenizerWrapper

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.files import ModelFiles, read_json
from sluice_runtime.model.tokenizer import BYTE_OF_SYMBOL

NAMED_BY_GRAMMARS: Final = ("[TOOL_CALLS]", "[ARGS]")
"""Special tokens that a grammar may require."""
_IN_NO_TEXT: Final = b"\xff"
_BYTE_VALUES: Final = 256


def unusable(files: ModelFiles) -> str | None:
    """Explains for a person why grammars cannot be used with a model; None: they can."""
    if files.folder is None:
        return None
    try:
        _spelling(files.folder / "tokenizer.json")
    except ModelLoadError as error:
        return str(error)
    return None


def token_bytes(files: ModelFiles, vocabulary_size: int) -> list[bytes]:
    """The bytes of every token id below `vocabulary_size`; b"" for special and unused ones.

    Raises:
        ModelLoadError: the tokenizer is of a kind whose tokens' bytes are not known.
    """
    if files.folder is None:
        plain = [bytes([value]) for value in range(_BYTE_VALUES)]
        return plain + [b""] * (vocabulary_size - _BYTE_VALUES)
    path = files.folder / "tokenizer.json"
    spell = _spelling(path)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    words = [b""] * vocabulary_size
    for text, token in tokenizer.get_vocab(with_added_tokens=False).items():
        if token < vocabulary_size:
            words[token] = spell(text)
    for token, added in tokenizer.get_added_tokens_decoder().items():
        if token < vocabulary_size:
            words[token] = _added(added.content, special=added.special)
    return words


def _added(content: str, *, special: bool) -> bytes:
    if not special:
        return content.encode()
    return _IN_NO_TEXT + content.encode() if content in NAMED_BY_GRAMMARS else b""


def _spelling(path: Path) -> Callable[[str], bytes]:
    decoder = read_json(path).get("decoder") or {}
    kinds = [str(step.get("type")) for step in decoder.get("decoders", [decoder])]
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds:
        return _byte_fallback
    raise ModelLoadError(
        f"{path.name}: its decoder is {'+'.join(kinds)}; allowed: ByteLevel or ByteFallback"
    )


def _byte_level(text: str) -> bytes:
    """Bytes of a byte-level token, one for each character; a token with another character is not an
    ordinary one."""
    if any(character not in BYTE_OF_SYMBOL for character in text):
        return b""
    return bytes(BYTE_OF_SYMBOL[character] for character in text)


def _byte_fallback(text: str) -> bytes:
    """Bytes of a byte-fallback token: `<0x0A>` is a byte, and U+2581 a space."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()


class _Tokens:
    """A vocabulary in the form that the library reads, followed by one token that ends answers."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = [*tokens, b"\xff<end>"]
        self.eos_token_id = len(tokens)
        self.tree: LLTokenizer | None = None

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a text, each as long as possible: where only one text may follow, the library
        allows only its first token."""
        return self.tree.greedy_tokenize(text.decode()) if self.tree else []


def tokenizer_of(tokens: Sequence[bytes]) -> LLTokenizer:
    """A tree of the vocabulary's tokens. Takes two seconds for 150,000 of them."""
    known = _Tokens(tokens)
    known.tree = LLTokenizer(TokenizerWrapper(known), eos_token=len(tokens))
    return known.tree
