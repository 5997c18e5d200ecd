"""What an engine is built for decides what it computes."""

from __future__ import annotations

from contextlib import closing

import torch
from sluice_runtime.engine.build import build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import DUMMIES, ModelFiles
from torch import Tensor

from tests.runtime.harness import engine_config

MODEL = "dummy://phi3-tiny"
LONG_ROPE = {
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [8.0] * 6},
    "original_max_position_embeddings": 1024,
}


def built(context_length: int | None) -> tuple[Tensor, str]:
    """Frequencies, and the digest of the weights."""
    files = ModelFiles(MODEL, None, {**DUMMIES["phi3-tiny"], **LONG_ROPE}, {})
    settings: dict[str, object] = {
        "attention_backend": "torch",
        "kv_pool_tokens": 2048,
        "max_running_requests": 2,
    }
    config = engine_config(MODEL, context_length=context_length, **settings)
    engine = build_engine(resolved(config), files)
    with closing(engine.grammar_compiler):
        return engine.model.frequencies.values, engine.weights


def test_the_longest_context_that_is_served_chooses_the_factors_of_longrope() -> None:
    """Keys of one are of no use to an engine with the other, so the fingerprint differs."""
    short, long, whole = built(1024), built(1025), built(None)
    torch.testing.assert_close(short[0][:6], long[0][:6] * 8)
    assert torch.equal(long[0], whole[0])
    assert short[1] != long[1] == whole[1]
