"""Two engines on one GPU, each with its own pool: pages go through pinned memory of the host, and
the answers are those of one engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.device import accelerator
from tests.runtime.handover.engines import running, through
from tests.runtime.handover.test_two_engines import requests, same

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("overlap", [False, True])
def test_the_answers_are_those_of_one_engine(overlap: bool) -> None:
    settings: dict[str, Any] = {
        "page_size": 16, "chunk_size": 64, "dtype": "float32", "accelerator": accelerator(),
        "overlap": overlap,
    }  # fmt: skip
    asked = [one for one in requests() if one.grammar is None]
    with running("mixed", **settings) as engine:
        expected = engine.answers(asked)
    with running("prefill", **settings) as prefill, running("decode", **settings) as decode:
        assert prefill.engine.device.place.type == "cuda"
        found = decode.answers(through(prefill, asked))
        assert decode.last is not None
        handover = decode.last.load.handover
        assert handover is not None
        assert handover.failures == {}
        assert handover.read_bytes > 0
    for name, answer in expected.items():
        same(answer, found[name])
