"""Which engines may go on with each other's answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.config.kv_transfer import KvFingerprint
from sluice_runtime.model.files import ModelFiles
from sluice_runtime.model.tokenizer import ByteTokenizer, tokenizer_digest
from sluice_runtime.server.prompts import ModelText
from sluice_runtime.server.reasoning.formats import reasoning_format_of
from sluice_runtime.server.sampling_plan import Defaults
from sluice_runtime.server.service import answer_identity
from sluice_runtime.server.tools.formats import tool_format_of

TEXT = ModelText(ByteTokenizer(), None, Defaults((258,), 0.7), tokenizer_digest="t")
FINGERPRINT = KvFingerprint(
    model="/models/m",
    weights="c0ffee",
    page_size_tokens=16,
    kv_dtype="bfloat16",
    tensor_parallel_size=1,
)
OWN = answer_identity(FINGERPRINT, "m", TEXT)


def test_pages_and_parallelism_have_no_part_in_it() -> None:
    other = FINGERPRINT.model_copy(update={"page_size_tokens": 32, "tensor_parallel_size": 2})
    assert answer_identity(other, "m", TEXT) == OWN


@pytest.mark.parametrize(
    "changed",
    [{"model": "/models/n"}, {"model_revision": "a"}, {"weights": "f00"}, {"kv_dtype": "float32"}],
)
def test_another_model_is_another(changed: dict[str, Any]) -> None:
    assert answer_identity(FINGERPRINT.model_copy(update=changed), "m", TEXT) != OWN


@pytest.mark.parametrize(
    "changed",
    [
        {"defaults": Defaults((258,), 0.6)},
        {"defaults": Defaults((257,), 0.7)},
        {"tokenizer_digest": "u"},
        {"tool_format": tool_format_of("", "hermes")},
        {"reasoning_form": reasoning_format_of("", "qwen3")},
        {"structured_output_unavailable": "bytes"},
    ],
)
def test_other_text_is_another(changed: dict[str, Any]) -> None:
    assert answer_identity(FINGERPRINT, "m", replace(TEXT, **changed)) != OWN


def test_another_name_is_another() -> None:
    assert answer_identity(FINGERPRINT, "n", TEXT) != OWN


def test_a_tokenizer_that_was_written_over_is_another(tmp_path: Path) -> None:
    files = ModelFiles(str(tmp_path), tmp_path, {}, {})
    found = set()
    for content in ("{}", "{} "):
        (tmp_path / "tokenizer.json").write_text(content)
        found.add(tokenizer_digest(files))
    assert len(found) == 2
