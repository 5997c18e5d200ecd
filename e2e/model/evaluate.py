"""Measures the small model on held-out prompts: `python -m e2e.model.evaluate`.

One JSON line per figure: the share of right answers per task and length, and the share of answers
that change when one KV page is exchanged with the same page of another request.

Greedy decoding gives exactly the answer only if every token of the answer (and EOS) is the most
likely one after the right tokens before it. So one forward over prompt and answer decides;
`--generate` decodes token by token instead. Knows nothing of Sluice's own engine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM
from transformers.cache_utils import DynamicLayer

from e2e.model.folder import END_ID, FOLDER, PAD_ID
from e2e.model.tasks import LENGTHS, TASKS, make_prompt

PAGE_TOKENS = 16
BATCH_TOKENS = 16_384


def load_model(folder: Path = FOLDER) -> Qwen3ForCausalLM:
    """The stored weights in float32, ready to infer."""
    model: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    return model


def encode_rows(task: str, length: int, seeds: range) -> tuple[Tensor, Tensor]:
    """Prompts [rows, length] and answers with EOS [rows, longest answer], padded on the right."""
    pairs = [make_prompt(task, length, seed) for seed in seeds]
    answers = [[*answer.encode(), END_ID] for _, answer in pairs]
    longest = max(map(len, answers))
    return (
        torch.tensor([list(prompt.encode()) for prompt, _ in pairs]),
        torch.tensor([answer + [PAD_ID] * (longest - len(answer)) for answer in answers]),
    )


@torch.inference_mode()
def right_by_forward(model: Qwen3ForCausalLM, prompts: Tensor, answers: Tensor) -> Tensor:
    """Whether greedy decoding would give the answer [rows], from one forward."""
    logits = model(
        input_ids=torch.cat([prompts, answers[:, :-1]], dim=1),
        logits_to_keep=answers.shape[1],
        use_cache=False,
    ).logits
    return _matches(logits.argmax(-1), answers)


@torch.inference_mode()
def right_by_decoding(model: Qwen3ForCausalLM, prompts: Tensor, answers: Tensor) -> Tensor:
    """Whether greedy decoding, one token at a time, gives the answer [rows]."""
    decoded = model.generate(  # type: ignore[misc]
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=answers.shape[1],
        min_new_tokens=answers.shape[1],
        eos_token_id=None,
    )
    return _matches(decoded[:, prompts.shape[1] :], answers)


@torch.inference_mode()
def kept_after_exchange(
    model: Qwen3ForCausalLM, prompts: Tensor, answers: Tensor, pages: Tensor
) -> Tensor:
    """Whether the right answer survives the exchange of one page with a neighbour row [rows].

    Prompts are computed as they should be; then, in K and V of every layer, row r takes tokens
    [16·pages[r], 16·pages[r] + 16) of row r + 1, and decoding goes on from the damaged cache. The
    first answer token was decided by the prefill and stays; those after it read the cache.
    """
    cache = DynamicCache(config=model.config)
    first = model(input_ids=prompts, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    slots = pages[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)  # [rows, page]
    rows = torch.arange(len(prompts))[:, None]
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        for stored in (layer.keys, layer.values):  # [rows, kv heads, tokens, head dim]
            assert stored is not None
            stored[rows, :, slots] = stored.roll(-1, dims=0)[rows, :, slots]
    later = model(input_ids=answers[:, :-1], past_key_values=cache).logits.argmax(-1)
    return _matches(torch.cat([first, later], dim=1), answers)


def _matches(tokens: Tensor, answers: Tensor) -> Tensor:
    return ((tokens == answers) | (answers == PAD_ID)).all(dim=1)


def seed_batches(length: int, count: int) -> Iterator[range]:
    rows = max(2, BATCH_TOKENS // (2 * length))
    for start in range(0, count, rows):
        yield range(start, min(start + rows, count))


def accuracy(
    model: Qwen3ForCausalLM, task: str, length: int, count: int, decode: bool = False
) -> float:
    """Share of `count` held-out prompts answered exactly."""
    right = right_by_decoding if decode else right_by_forward
    answered = [
        right(model, *encode_rows(task, length, seeds)) for seeds in seed_batches(length, count)
    ]
    return int(torch.cat(answered).sum()) / count


def page_exchange_change(
    model: Qwen3ForCausalLM, length: int, count: int, task: str = "copy"
) -> float:
    """Share of right answers that one exchanged page changes; pages take turns."""
    kept, right = 0, 0
    for seeds in seed_batches(length, count):
        prompts, answers = encode_rows(task, length, seeds)
        pages = torch.tensor([seed % (length // PAGE_TOKENS) for seed in seeds])
        was_right = right_by_forward(model, prompts, answers)
        right += int(was_right.sum())
        kept += int((was_right & kept_after_exchange(model, prompts, answers, pages)).sum())
    return 1 - kept / right if right else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="BYTES")
    parser.add_argument("--prompts", type=int, default=1000, help="held-out prompts per figure")
    parser.add_argument("--generate", action="store_true", help="decode token by token")
    args = parser.parse_args()
    model = load_model(args.folder)
    for length in args.lengths:
        for task in TASKS:
            share = accuracy(model, task, length, args.prompts, args.generate)
            _print(figure="accuracy", task=task, length=length, prompts=args.prompts, share=share)
        share = page_exchange_change(model, length, args.prompts)
        _print(figure="changed", task="copy", length=length, prompts=args.prompts, share=share)


def _print(**figure: object) -> None:
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
