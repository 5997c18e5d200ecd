"""Hugging Face transformers as the oracle, and what agreement with it means.

Teacher-forced: the oracle reads prompt and answer of the engine in one pass. Its logits for each
token of the answer must lie within a tolerance of the engine's, and wherever its best token leads
by more than four times that, the engine must have chosen the same. The engine computes in float32,
the oracle in float64: in float32 its own rounding is at times twice the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from sluice_runtime.wire.messages import Generate

from tests.runtime.harness import Run

TOLERANCE = 1e-5
"""Of the spread of an answer's logits: from 10 with random weights to 40 with trained ones."""
MOST_PLAIN_TOKENS = 1024

SMALL: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 8192,
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
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 512,
}
SHORT_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "beta_fast": None,
    "attention_factor": 1.25,
    "original_max_position_embeddings": 64,
}
"""The prompts of most requests are longer."""

PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
    "attention_factor": 1.25,
    "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
    "long_factor": [1.5 + pair for pair in range(6)],
}
ROPES: dict[str, dict[str, Any]] = {
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
    "partial-rope": {"rope_parameters": PARTIAL_ROPE},
    # The oracle chooses by the tokens of a call, the engine by its context length: of all lengths
    # but the first, where nothing turns, both choose alike.
    "short-rope": {
        "rope_parameters": LONG_ROPE,
        "original_max_position_embeddings": SMALL["max_position_embeddings"],
    },
    "long-rope": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 1},
    "yarn-rope": {"rope_parameters": SHORT_YARN_ROPE},
    "linear-rope": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic-rope": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
}
"""What a part of a kind's name adds."""

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "num_hidden_layers": 6,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "qwen3": {},
    "qwen2": {},
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    # transformers checks a rope of phi3 against heads of hidden_size / num_attention_heads.
    "phi3": {"head_dim": 16, "pad_token_id": None, "eos_token_id": 258},
    "glm4": {"pad_token_id": None, "eos_token_id": 258},
    "glm": {"pad_token_id": None, "eos_token_id": 258, "attention_bias": False},
    "olmo2": {"pad_token_id": None, "eos_token_id": 258},
    "granite": {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.06,
        "residual_multiplier": 0.22,
        "logits_scaling": 3.0,
        "rms_norm_eps": 0.1,
    },
    "gemma3_text": {
        "num_hidden_layers": 6,
        "hidden_size": 72,
        "num_attention_heads": 4,
        "query_pre_attn_scalar": 40,
        "sliding_window": 24,
        "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gpt_oss": {
        "num_hidden_layers": 4,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 24,
        "swiglu_limit": 1.5,
        "rope_parameters": YARN_ROPE,
    },
}
"""What each model_type sets beside SMALL. A kind begins with the first that fits."""

KINDS = (
    "qwen3",
    "qwen3-untied-sharded",
    "llama",
    "llama3-rope-sharded",
    "qwen2",
    "mistral",
    "qwen3_moe",
    "mixtral",
    "phi3-sharded",
    "phi3-partial-rope",
    "phi3-short-rope",
    "phi3-long-rope",
    "glm",
    "glm4-sharded",
    "olmo2",
    "granite",
    "granite-yarn-rope",
    "gemma3_text",
    "gpt_oss",
    "qwen3-yarn-rope",
    "qwen2-yarn-rope",
    "qwen3_moe-yarn-rope",
    "llama-yarn-rope",
)


def write_model(folder: Path, kind: str) -> Path:
    """Saves random weights as transformers does; `kind` is one of KINDS."""
    # Here, as below: it takes seconds, which only the process that runs these tests need pay.
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    name = next(name for name in FAMILIES if kind.startswith(name))
    rope = next((keys for part, keys in ROPES.items() if part in kind), {})
    tied = "untied" not in kind
    settings = SMALL | FAMILIES[name] | {"tie_word_embeddings": tied} | rope
    # A family's config writes into the rope that it is given.
    config = AutoConfig.for_model(name, **deepcopy(settings))
    model: Any = AutoModelForCausalLM.from_config(config)
    for tensor_name, tensor in model.named_parameters():
        if tensor_name.endswith("bias"):  # transformers starts them at zero
            torch.nn.init.normal_(tensor, std=0.5)
        if "norm" in tensor_name:  # and these at one
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
        if tensor_name.endswith("sinks"):
            torch.nn.init.normal_(tensor, std=2)
    model.save_pretrained(folder, max_shard_size="100KB" if "sharded" in kind else "1GB")
    return folder


class Oracle:
    """A model. Cases ask the same of it again and again: it answers from memory."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float64) -> None:
        from transformers import AutoModelForCausalLM

        # Other ways to compute experts know no float64.
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, experts_implementation="eager"
        ).eval()
        self._known: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], last: int) -> torch.Tensor:
        """[last, vocabulary]: after each of the last tokens."""
        key = (tuple(token_ids), last)
        if key not in self._known:
            # Plain attention holds tokens x tokens numbers for each head: 1 GiB at 8 k tokens.
            plain = len(token_ids) <= MOST_PLAIN_TOKENS
            self._model.set_attn_implementation("eager" if plain else "sdpa")
            logits = self._model(torch.tensor([key[0]]), logits_to_keep=last).logits
            self._known[key] = logits[0]
        return self._known[key]


def tolerance(logits: torch.Tensor, share: float = TOLERANCE) -> float:
    """By how much numbers of an answer may differ from the oracle's `logits` of it."""
    return share * float(logits.max() - logits.min())


Pair = tuple[Path, Oracle]
"""Folder, and the oracle loaded from it."""
PairOf = Callable[[str], Pair]
"""By kind; see conftest."""


def assert_agrees(
    oracle: Oracle, requests: Sequence[Generate], run: Run, share: float = TOLERANCE
) -> int:
    """Checks every answer of a run; returns how many tokens had a clear margin."""
    return sum(_check(oracle, request, run, share) for request in requests)


def _check(oracle: Oracle, request: Generate, run: Run, share: float) -> int:
    answer = run.tokens[request.request_id]
    seen = torch.stack(run.logits[request.request_id]).cpu()
    assert len(answer) == len(seen) == request.max_tokens, "an answer is too short or too long"
    wanted = oracle.logits([*request.prompt_ids, *answer[:-1]], len(answer))
    worst, allowed = (wanted - seen).abs().max().item(), tolerance(wanted, share)
    assert worst <= allowed, f"{request.request_id}: logits differ by {worst}, not {allowed}"
    best, second = wanted.topk(2, dim=-1).values.unbind(-1)
    clear = best - second > 4 * allowed
    chosen = torch.tensor(answer)
    assert torch.equal(chosen[clear], wanted.argmax(-1)[clear]), request.request_id
    return int(clear.sum())
