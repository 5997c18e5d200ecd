"""Hugging Face transformers as the oracle, and what agreement with it means.

Teacher-forced: the oracle reads prompt and answer of the engine in one pass. Its logits for each
token of the answer must lie within TOLERANCE of the engine's, and wherever its best token leads by
more than four times that, the engine must have chosen the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sluice_runtime.messages import Generate

from tests.runtime.harness import Run

TOLERANCE = 2e-4
"""Absolute, in logits of float32 whose spread is about 10."""

SMALL: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 1024,
    "initializer_range": 0.12,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


KINDS = ("qwen3", "qwen3-untied-sharded", "llama", "llama3-rope-sharded")


def write_model(folder: Path, kind: str) -> Path:
    """Saves random weights as transformers does; `kind` is one of KINDS."""
    # Here, as below: it takes seconds, which only the process that runs these tests need pay.
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(7)
    tied = "untied" not in kind
    model: Any
    if kind.startswith("qwen3"):
        model = Qwen3ForCausalLM(Qwen3Config(**SMALL, tie_word_embeddings=tied))
    else:
        rope = {"rope_parameters": LLAMA3_ROPE} if "llama3-rope" in kind else {}
        model = LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=tied, **rope))
    model.save_pretrained(folder, max_shard_size="100KB" if "sharded" in kind else "1GB")
    return folder


def load_oracle(folder: Path) -> Any:
    """The model in float32, with plain attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def assert_agrees(oracle: Any, requests: list[Generate], run: Run) -> int:
    """Checks every answer of a run; returns how many tokens had a clear margin."""
    return sum(_check(oracle, request, run) for request in requests)


@torch.inference_mode()
def _check(oracle: Any, request: Generate, run: Run) -> int:
    answer, seen = run.tokens[request.request_id], torch.stack(run.logits[request.request_id])
    assert len(answer) == len(seen) == request.max_tokens, "an answer is too short or too long"
    ids = torch.tensor([[*request.prompt_ids, *answer[:-1]]])
    wanted = oracle(ids).logits[0, len(request.prompt_ids) - 1 :].float()
    worst = (wanted - seen).abs().max().item()
    assert worst <= TOLERANCE, f"{request.request_id}: logits differ by {worst}"
    best, second = wanted.topk(2, dim=-1).values.unbind(-1)
    clear = best - second > 4 * TOLERANCE
    chosen = torch.tensor(answer)
    assert torch.equal(chosen[clear], wanted.argmax(-1)[clear]), request.request_id
    return int(clear.sum())
