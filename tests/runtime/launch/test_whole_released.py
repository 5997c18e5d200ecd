"""A released model answers as transformers does: a whole engine, 135 million parameters, its own
template, many languages, all at once, with and without cached prompts, over several turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
import torch

from e2e.model.released import NAME, ensure_released_model
from tests.runtime.agreement.oracle import Oracle, tolerance
from tests.runtime.launch.processes import program, running, write_config

pytestmark = [
    pytest.mark.process,
    pytest.mark.full,
    pytest.mark.xdist_group("released"),
    pytest.mark.timeout(1800),
]

SECONDS: Final = 600.0
"""For an answer, while twenty are computed on a machine that is busy."""
PAGE_TOKENS: Final = 16
SYSTEM: Final = "You are a helpful assistant. Answer in one sentence."
CODE: Final = "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\n\nprint(f(10))  # what?"
CHATS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "english": [("user", "What is the capital of France?")],
    "english-system": [("system", SYSTEM), ("user", "What is the capital of France?")],
    "german": [("user", "Erkläre mir, warum der Himmel blau ist.")],
    "french-system": [("system", SYSTEM), ("user", "Où se trouve la forêt d'Orléans ?")],
    "russian": [("user", "Почему трава зелёная? Ответь коротко.")],
    "japanese": [("user", "日本で一番高い山は何ですか。")],
    "chinese-system": [("system", "你是一个乐于助人的助手。"), ("user", "请用一句话介绍北京。")],
    "korean": [("user", "한국의 수도는 어디입니까?")],
    "arabic": [("user", "ما هي عاصمة مصر؟")],
    "hindi": [("user", "भारत की राजधानी क्या है?")],
    "emoji": [("user", "🙂🙃 👩‍👩‍👧‍👦 🇫🇷🏳️‍🌈 what do these mean? 🤔")],
    "code": [("user", CODE)],
    "code-system": [("system", "You are a Python expert."), ("user", f"```python\n{CODE}\n```")],
    "newlines": [("user", "\n\n\n\n\n\n\n\n")],
    "spaces": [("system", " "), ("user", "\t   \t  \n ")],
    "digits": [("user", "3.14159265358979 + 2718281828459045 = ? 0000000000007")],
    "repeated": [("user", "the cat sat on the mat. " * 60)],
    "repeated-letter": [("system", SYSTEM), ("user", "a" * 700)],
    "json": [("user", '{"city": "Zürich", "tags": ["a\\n", null, 1e-3]} to YAML, please')],
    "three-turns": [
        ("system", SYSTEM),
        ("user", "My name is Ada."),
        ("assistant", "Hello Ada! How can I help you?"),
        ("user", "What is my name?"),
    ],
}  # fmt: skip
TURNS: Final = (
    "Name three primary colours.",
    "Which of them is the colour of the sky?",
    "Warum ist das so?",
    "Write a haiku about it.",
    "Now count from 1 to 20.",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_released_model()


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = write_config(
        tmp_path_factory.mktemp("released"),
        model={"uri": str(folder), "name": NAME},
        dtype="float32",
        contextLength=2048,
        kvPoolTokens=32768,
        pageSize=PAGE_TOKENS,
    )
    with running(program(config)) as engine:
        yield engine.ready_url()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def rounds(url: str) -> list[dict[str, Any]]:
    """Answers by name, all asked at once: by an engine that is new, then again."""

    def answers() -> dict[str, Any]:
        with ThreadPoolExecutor(len(CHATS)) as pool:
            return dict(zip(CHATS, pool.map(lambda name: ask(url, name), CHATS), strict=True))

    return [answers(), answers()]


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


def messages_of(name: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in CHATS[name]]


def ask(url: str, name: str) -> Any:
    body = {
        "model": NAME,
        "messages": messages_of(name),
        "max_tokens": 20 + 2 * list(CHATS).index(name),
        "temperature": 0,
        "logprobs": True,
        "return_token_ids": True,
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=SECONDS)
    assert response.status_code == 200, response.text
    return response.json()


def test_prompts_are_those_of_the_template(rounds: list[dict[str, Any]], tokenizer: Any) -> None:
    for name, answer in rounds[0].items():
        prompt = tokenizer.apply_chat_template(
            messages_of(name), add_generation_prompt=True, return_dict=False
        )
        assert answer["prompt_token_ids"] == prompt, name
        assert answer["usage"]["prompt_tokens"] == len(prompt), name


@pytest.mark.parametrize("name", CHATS)
def test_greedy_answers_are_those_of_transformers(
    rounds: list[dict[str, Any]], tokenizer: Any, oracle: Oracle, name: str
) -> None:
    for answer in (answers[name] for answers in rounds):
        (choice,) = answer["choices"]
        drawn = choice["token_ids"]
        ended = choice["finish_reason"] == "stop"
        assert (drawn[-1] == tokenizer.eos_token_id) is ended
        shown = drawn[:-1] if ended else drawn
        assert tokenizer.eos_token_id not in shown
        assert choice["message"]["content"] == tokenizer.decode(shown, skip_special_tokens=True)
        scores = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert_drawn_by(oracle, answer["prompt_token_ids"], drawn, scores)


def assert_drawn_by(
    oracle: Oracle, prompt: Sequence[int], drawn: Sequence[int], scores: Sequence[float]
) -> None:
    logits = oracle.logits([*prompt, *drawn[:-1]], len(drawn))  # [answer, vocabulary]
    allowed = tolerance(logits)
    best, second = logits.topk(2, dim=-1).values.unbind(-1)
    clear = best - second > 4 * allowed
    tokens = torch.tensor(drawn)
    assert torch.equal(tokens[clear], logits.argmax(-1)[clear])
    assert clear.sum() > len(drawn) * 0.9, "an answer of near-ties shows little"
    expected = logits.log_softmax(-1).gather(1, tokens[:, None])[: len(scores), 0]
    # A logit's error and that of the sum.
    assert scores == pytest.approx(expected.tolist(), abs=2 * allowed)


def test_the_second_time_prompts_were_known(rounds: list[dict[str, Any]]) -> None:
    for name, answer in rounds[1].items():
        usage = answer["usage"]
        pages = (usage["prompt_tokens"] - 1) // PAGE_TOKENS
        assert usage["prompt_tokens_details"]["cached_tokens"] == pages * PAGE_TOKENS, name


def test_a_conversation_streamed_is_the_conversation_whole(url: str) -> None:
    """Five turns with scores, each asked whole, then streamed, then streamed up to a stop."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", timeout=SECONDS) as client:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        cached = [0]
        for turn in TURNS:
            messages.append({"role": "user", "content": turn})
            request: Any = {
                "model": NAME,
                "messages": messages,
                "max_tokens": 48,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": 3,
            }
            whole = client.chat.completions.create(**request)
            text = whole.choices[0].message.content
            assert text
            assert_same(streamed(client, request), whole)
            stop = text[len(text) // 2 :][:4]
            stopped = client.chat.completions.create(**request, stop=[stop])
            assert stopped.choices[0].finish_reason == "stop"
            assert stopped.choices[0].message.content == text[: text.index(stop)]
            assert_same(streamed(client, request | {"stop": [stop]}), stopped)
            assert whole.usage
            assert whole.usage.prompt_tokens_details
            cached.append(whole.usage.prompt_tokens_details.cached_tokens or 0)
            messages.append({"role": "assistant", "content": text})
        assert cached[1:] == sorted(cached[1:])
        assert cached[-1] > cached[1], "later turns find the earlier ones computed"


def streamed(client: openai.OpenAI, request: Any) -> Any:
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(**request, stream_options=options) as stream:
        return stream.get_final_completion()


def assert_same(ours: Any, theirs: Any) -> None:
    (one,), (other,) = ours.choices, theirs.choices
    assert one.message.content == other.message.content
    assert one.finish_reason == other.finish_reason
    assert ours.usage.completion_tokens == theirs.usage.completion_tokens
    pairs = list(zip(one.logprobs.content, other.logprobs.content, strict=True))
    assert pairs
    for left, right in pairs:
        assert (left.token, left.bytes) == (right.token, right.bytes)
        assert left.logprob == pytest.approx(right.logprob, abs=1e-3)
        assert [top.logprob for top in left.top_logprobs] == pytest.approx(
            [top.logprob for top in right.top_logprobs], abs=1e-3
        )
