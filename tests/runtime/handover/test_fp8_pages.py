"""Pages of 8 bits are handed over as they are: half of the bytes, and the answers of one engine."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.wire.messages import Generate

from tests.runtime.handover.engines import Answer, pair, running, through
from tests.runtime.handover.test_two_engines import prompt, same
from tests.runtime.harness import generate

pytestmark = pytest.mark.process

PAGES = "fp8_e4m3"
SETTINGS: dict[str, Any] = {"dtype": "bfloat16", "chunk_size": 64, "page_size": 16}
"""As a GPU has them: two bytes of a number without `kvCacheDtype`."""


def requests() -> list[Generate]:
    return [
        generate("greedy", prompt(70), 20),
        generate("scored", prompt(40, 5), 8, logprobs=3),
        generate("long", prompt(600, 7), 10),
    ]


@pytest.fixture(scope="module")
def expected() -> dict[str, Answer]:
    with running("mixed", kv_cache_dtype=PAGES, **SETTINGS) as engine:
        return engine.answers(requests())


def handed_over(backend: str, **settings: Any) -> tuple[int, dict[str, Answer]]:
    """Bytes that were read for all three, and the answers."""
    with pair(backend, **SETTINGS, **settings) as (prefill, decode):
        answers = decode.answers(through(prefill, requests()))
        assert decode.last is not None
        load = decode.last.load.handover
    assert load is not None
    assert (load.failures, load.recomputed) == ({}, 0)
    return load.read_bytes, answers


@pytest.mark.parametrize("backend", ["Mooncake", "TCP"])
def test_a_hand_over_reads_half_of_the_bytes(backend: str, expected: dict[str, Answer]) -> None:
    whole, _ = handed_over(backend)
    half, answers = handed_over(backend, kv_cache_dtype=PAGES)
    assert half * 2 == whole
    for name, answer in answers.items():
        same(expected[name], answer)


def test_pages_go_through_blocks_of_the_host(expected: dict[str, Answer]) -> None:
    """As from a GPU's memory."""
    _, answers = handed_over("TCP", kv_cache_dtype=PAGES, staged=True)
    for name, answer in answers.items():
        same(expected[name], answer)


def test_engines_of_other_pages_do_not_go_together() -> None:
    with (
        running("prefill", kv_cache_dtype=PAGES, **SETTINGS) as prefill,
        running("decode", **SETTINGS) as decode,
    ):
        answer = decode.answers(through(prefill, requests()[:1]))["greedy"]
    assert answer.end.refusal == "prefill_unavailable"
    assert "differ: kvDtype: fp8_e4m3 and bfloat16" in str(answer.end.error)
