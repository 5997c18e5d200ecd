"""What bytes tokens stand for, by the kind of their tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.grammar.vocabulary import token_bytes, unusable
from sluice_runtime.model.files import ModelFiles, resolve
from tokenizers import AddedToken, decoders, models, pre_tokenizers

TEXT = 'Grüße, 東京 🙂!\n\t{"a": 1}'


def saved(folder: Path, tokenizer: tokenizers.Tokenizer) -> ModelFiles:
    tokenizer.save(str(folder / "tokenizer.json"))
    return ModelFiles("", folder, {}, {})


def byte_level() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)} | {"Ġa": 256}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [("Ġ", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    vocabulary = {f"<0x{value:02X}>": value for value in range(256)} | {"▁": 256, "▁a": 257}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token=None))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def test_a_dummys_tokens_are_bytes() -> None:
    words = token_bytes(resolve("dummy://qwen3-tiny"), 259)
    assert words[65] == b"A"
    assert words[256:] == [b"", b"", b""]


def test_byte_level_tokens_spell_what_they_decode_to(tmp_path: Path) -> None:
    tokenizer = byte_level()
    words = token_bytes(saved(tmp_path, tokenizer), 300)
    ids = tokenizer.encode(TEXT + " a").ids
    assert b"".join(words[token] for token in ids) == (TEXT + " a").encode()
    assert words[256] == b" a"
    assert len(words) == 300


def id_of(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    assert found is not None
    return found


def test_special_tokens_are_no_text_and_added_words_are(tmp_path: Path) -> None:
    tokenizer = byte_level()
    words = token_bytes(saved(tmp_path, tokenizer), 300)
    assert words[id_of(tokenizer, "<|end|>")] == b""
    assert words[id_of(tokenizer, "<tool_call>")] == b"<tool_call>"
    assert words[299] == b""


def test_special_tokens_that_grammars_name_stand_for_no_text(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True)])
    word = token_bytes(saved(tmp_path, tokenizer), 300)[id_of(tokenizer, "[TOOL_CALLS]")]
    assert word
    with pytest.raises(UnicodeDecodeError):
        word.decode()


def test_byte_fallback_tokens_are_bytes_and_pieces(tmp_path: Path) -> None:
    words = token_bytes(saved(tmp_path, byte_fallback()), 258)
    assert words[0x0A] == b"\n"
    assert words[256:] == [b" ", b" a"]


def test_a_smaller_model_takes_what_it_has_logits_for(tmp_path: Path) -> None:
    assert len(token_bytes(saved(tmp_path, byte_level()), 100)) == 100


def test_other_tokenizers_are_refused_by_name(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.WordPiece()
    files = saved(tmp_path, tokenizer)
    with pytest.raises(ModelLoadError, match="its decoder is WordPiece"):
        token_bytes(files, 300)
    assert unusable(files) == (
        "tokenizer.json: its decoder is WordPiece; allowed: ByteLevel or ByteFallback"
    )


def test_tokenizers_that_spell_bytes_are_usable(tmp_path: Path) -> None:
    assert unusable(resolve("dummy://qwen3-tiny")) is None
    for tokenizer in (byte_level(), byte_fallback()):
        assert unusable(saved(tmp_path, tokenizer)) is None
