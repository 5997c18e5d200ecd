"""Which tokens end an answer, of the files of a model that name some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import tokenizers
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.files import resolve
from sluice_runtime.model.tokenizer import end_token_ids, load_tokenizer
from sluice_runtime.server.process import _model_text
from tokenizers import AddedToken, models

TEXT, PAD, IM_END, EOT = range(4)
CHAT: Final = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}


def model(folder: Path, config: Any, generation: Any = None, tokenizer: Any = None) -> str:
    """A folder with three special tokens, and <|eot|> that is a token like any other."""
    own = tokenizers.Tokenizer(models.WordLevel({"a": TEXT}, unk_token="a"))
    own.add_special_tokens([AddedToken("<|pad|>"), AddedToken("<|im_end|>")])
    own.add_tokens([AddedToken("<|eot|>", special=False)])
    own.save(str(folder / "tokenizer.json"))
    written = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer,
    }
    for name, content in written.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        ({"eos_token_id": 0}, {"eos_token_id": 0}, CHAT, {0, IM_END}),
        ({"eos_token_id": 0}, {"eos_token_id": [7, 8]}, None, {0, 7, 8}),
        ({"eos_token_id": 0}, {"eos_token_id": None}, None, {0}),
        ({"eos_token_id": 0}, {}, {"eos_token": None}, {0}),
        ({"eos_token_id": None}, {"eos_token_id": 7}, {}, {7}),
        ({}, None, CHAT, {IM_END}),
        ({}, None, {"eos_token": {"content": "<|im_end|>", "special": True}}, {IM_END}),
        ({}, None, {"eos_token": "<|eot|>"}, {EOT}),
        ({}, None, {"eos_token": "<|unknown|>"}, set()),
        ({"eos_token_id": []}, {"pad_token_id": PAD}, {"pad_token": "<|pad|>"}, set()),
        ({"text_config": {"eos_token_id": 5}}, None, None, {5}),
        ({"eos_token_id": [1, 6], "text_config": {"eos_token_id": 5}}, None, CHAT, {1, 5, 6, 2}),
        ({"eos_token_id": 0, "text_config": {}}, None, None, {0}),
    ],
)
def test_an_answer_ends_with_what_any_of_the_files_names(
    tmp_path: Path, config: Any, generation: Any, tokenizer: Any, ends: set[int]
) -> None:
    files = resolve(model(tmp_path, config, generation, tokenizer))
    token_ids = end_token_ids(files, load_tokenizer(files))
    assert list(token_ids) == sorted(ends)


def test_a_dummy_ends_with_its_own_token() -> None:
    files = resolve("dummy://llama-tiny")
    assert end_token_ids(files, load_tokenizer(files)) == (258,)


@pytest.mark.parametrize(
    ("config", "generation", "says"),
    [
        ({"eos_token_id": "2"}, None, r"config\.json: eos_token_id: '2' is not allowed; allowed"),
        ({}, {"eos_token_id": [1, None]}, r"generation_config\.json: eos_token_id: \[1, None\]"),
        ({"text_config": {"eos_token_id": True}}, None, r"config\.json: text_config\.eos_token_id"),
    ],
)
def test_an_end_that_is_no_token_id_is_refused(
    tmp_path: Path, config: Any, generation: Any, says: str
) -> None:
    with pytest.raises(ModelLoadError, match=says):
        resolve(model(tmp_path, config, generation)).eos_token_ids()


def test_the_server_ends_answers_with_all_of_them(tmp_path: Path) -> None:
    uri = model(tmp_path, {"vocab_size": 4, "eos_token_id": 3}, {"eos_token_id": None}, CHAT)
    text = _model_text(EngineConfig.model_validate({"model": {"uri": uri}}))
    assert text.defaults.eos_token_ids == (IM_END, EOT)
