"""The committed weights still answer, in transformers; figures at full size: e2e.model.evaluate."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from e2e.model.folder import END_ID, FOLDER, write_folder
from e2e.model.tasks import LENGTHS, TASKS, as_chat, make_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("transformers")]

LONGEST_IN_A_FAST_TEST = 128


@pytest.fixture(scope="module")
def evaluate() -> ModuleType:
    """Imported here: torch and transformers take seconds, and every run of pytest collects."""
    return importlib.import_module("e2e.model.evaluate")


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    found = importlib.import_module("torch")
    found.set_num_threads(1)
    return found


@pytest.fixture(scope="module")
def model(torch: ModuleType, evaluate: ModuleType) -> Qwen3ForCausalLM:
    loaded: Qwen3ForCausalLM = evaluate.load_model()
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    transformers = importlib.import_module("transformers")
    loaded: PreTrainedTokenizerFast = transformers.AutoTokenizer.from_pretrained(FOLDER)
    return loaded


def test_the_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 4_000_000


def test_everything_but_the_weights_is_what_the_script_writes(tmp_path: Path) -> None:
    write_folder(tmp_path)
    for file in tmp_path.iterdir():
        assert (FOLDER / file.name).read_text() == file.read_text(), file.name
    assert json.loads((FOLDER / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize("length", [n for n in LENGTHS if n <= LONGEST_IN_A_FAST_TEST])
@pytest.mark.parametrize("task", TASKS)
def test_held_out_prompts_are_answered(
    evaluate: ModuleType, model: Qwen3ForCausalLM, task: str, length: int
) -> None:
    assert evaluate.accuracy(model, task, length, count=20) >= 0.95


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("task", TASKS)
def test_a_thousand_held_out_prompts_are_answered(
    evaluate: ModuleType, model: Qwen3ForCausalLM, task: str, length: int
) -> None:
    assert evaluate.accuracy(model, task, length, count=1000) >= 0.99


def test_one_forward_and_token_by_token_decoding_judge_alike(
    torch: ModuleType, evaluate: ModuleType, model: Qwen3ForCausalLM
) -> None:
    prompts, answers = evaluate.encode_rows("copy", 48, range(8))
    spoiled = answers.clone()
    spoiled[::2, 20] = ord("!")
    for expected in (answers, spoiled):
        by_forward = evaluate.right_by_forward(model, prompts, expected)
        assert torch.equal(by_forward, evaluate.right_by_decoding(model, prompts, expected))
    assert by_forward.tolist() == [False, True] * 4


@pytest.mark.parametrize("page", range(4))
def test_any_page_of_another_request_spoils_a_copy(
    torch: ModuleType, evaluate: ModuleType, model: Qwen3ForCausalLM, page: int
) -> None:
    prompts, answers = evaluate.encode_rows("copy", 64, range(20))
    kept = evaluate.kept_after_exchange(model, prompts, answers, torch.full((20,), page))
    assert kept.float().mean() <= 0.05


def test_an_exchange_with_itself_changes_nothing(
    torch: ModuleType, evaluate: ModuleType, model: Qwen3ForCausalLM
) -> None:
    prompts, answers = evaluate.encode_rows("copy", 64, range(1))
    assert evaluate.kept_after_exchange(model, prompts, answers, torch.tensor([2])).all()


def test_chat_and_completion_are_the_same_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt, _ = make_prompt("lookup", 64, 0)
    rendered = tokenizer.apply_chat_template(
        as_chat(prompt), add_generation_prompt=True, return_dict=False
    )
    assert rendered == tokenizer(prompt).input_ids == list(prompt.encode())


def test_a_conversation_reads_as_its_text(tokenizer: PreTrainedTokenizerFast) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "map:ab=QXR cd=LMN"},
        {"role": "user", "content": [{"type": "text", "text": "ab"}]},
        {"role": "assistant", "content": "QXR"},
        {"role": "user", "content": "cd"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "map:ab=QXR cd=LMN\nab\nQXR<|end|>cd\n"


def test_a_conversation_is_answered(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = tokenizer("map:ab=QXR cd=LMN ef=ZZT gh=OPK\nab\nQXR<|end|>cd\n", return_tensors="pt")
    untyped: Any = model
    decoded = untyped.generate(**ids, max_new_tokens=8)[0, ids.input_ids.shape[1] :]
    assert tokenizer.decode(decoded) == "LMN<|end|>"


def test_every_byte_is_a_token_and_comes_back(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "".join(map(chr, range(1, 0x180))) + "中🙂"
    ids = tokenizer(text).input_ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id == END_ID
