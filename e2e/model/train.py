"""Trains the small model: `python -m e2e.model.train --out FOLDER`.

A curriculum of growing sequence lengths, one batch one length and one task mix, loss on answers
only. Muon for the matrices inside the layers, AdamW for embeddings and norms. Knows nothing of
held-out prompts.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from transformers import Qwen3Config, Qwen3ForCausalLM

from e2e.model.folder import END_ID, PAD_ID, write_folder
from e2e.model.tasks import ALPHANUMERIC, PRINTABLE, TASKS, Dialogue, copy_dialogue

IGNORED = -100


@dataclass(frozen=True)
class Stage:
    """So many steps with sequences of up to `longest_tokens`, `batch_tokens` a step."""

    steps: int
    longest_tokens: int
    batch_tokens: int


CURRICULUM = (
    Stage(steps=400, longest_tokens=64, batch_tokens=4096),
    Stage(steps=300, longest_tokens=128, batch_tokens=6144),
    Stage(steps=300, longest_tokens=256, batch_tokens=6144),
    Stage(steps=400, longest_tokens=512, batch_tokens=8192),
    Stage(steps=400, longest_tokens=1088, batch_tokens=8192),
    Stage(steps=200, longest_tokens=2112, batch_tokens=8192),
)
SHORTEST_TOKENS = 32
# How often a row is of which task: sums have the shortest answers and are learned last.
MIX = ("copy", "text", "lookup", "add", "add")
WARMUP_STEPS = 50
DECAY_SHARE = 0.4
MATRIX_RATE, VECTOR_RATE = 0.02, 3e-3
REPORT_STEPS = 25
CHECKPOINT_STEPS = 100


@dataclass(frozen=True)
class Batch:
    tokens: Tensor  # [rows, length] int64
    labels: Tensor  # [rows, length] int64: the next token, or IGNORED
    tasks: list[str]  # [rows]


def draw_dialogue(task: str, tokens: int, rng: random.Random) -> Dialogue:
    """A dialogue whose context, questions and answers fill about `tokens` tokens."""
    share = rng.uniform(0.4, 0.8)
    if task == "lookup":
        length = max(14, int(tokens * share))
        return TASKS[task](length, 1 + max(0, tokens - length - 7) // 7, rng)
    if task == "add":
        length = max(16, int(tokens * share))
        return TASKS[task](length, 1 + max(0, tokens - length - 9) // 9, rng)
    longest = (tokens + 6) // 2
    length = rng.randint(max(8, longest * 2 // 3), longest)
    return copy_dialogue(length, 1, rng, PRINTABLE if task == "text" else ALPHANUMERIC)


def encode(dialogue: Dialogue, length: int) -> tuple[list[int], list[int]]:
    """Token ids and labels of `length` tokens; a label stands at the token that predicts it."""
    tokens = list(dialogue.context.encode())
    answers = [False] * len(tokens)
    for exchange in dialogue.exchanges:
        answer = [*exchange.answer.encode(), END_ID]
        tokens += [*exchange.question.encode(), *answer]
        answers += [False] * len(exchange.question) + [True] * len(answer)
    labels = [token if told else IGNORED for token, told in zip(tokens, answers, strict=True)]
    labels = [*labels[1:], IGNORED]
    padding = max(0, length - len(tokens))
    return (tokens + [PAD_ID] * padding)[:length], (labels + [IGNORED] * padding)[:length]


def draw_batch(stage: Stage, rng: random.Random) -> Batch:
    low, high = math.log(SHORTEST_TOKENS), math.log(stage.longest_tokens)
    length = round(math.exp(rng.uniform(low, high)))
    tasks = [rng.choice(MIX) for _ in range(max(4, stage.batch_tokens // length))]
    rows = [encode(draw_dialogue(task, length, rng), length) for task in tasks]
    return Batch(
        tokens=torch.tensor([tokens for tokens, _ in rows]),
        labels=torch.tensor([labels for _, labels in rows]),
        tasks=tasks,
    )


@dataclass
class Progress:
    """Wrong answer tokens by task since the last report."""

    wrong: Counter[str]
    told: Counter[str]
    loss: float = 0.0

    def add(self, batch: Batch, loss: float, wrong_by_row: Tensor) -> None:
        told_by_row = (batch.labels != IGNORED).sum(1).tolist()
        self.loss += loss
        for task, wrong, told in zip(batch.tasks, wrong_by_row.tolist(), told_by_row, strict=True):
            self.wrong[task] += wrong
            self.told[task] += told

    def line(self, steps: int) -> str:
        errors = {task: f"{self.wrong[task] / self.told[task]:.6f}" for task in sorted(self.told)}
        return f"loss {self.loss / steps:.4f} wrong tokens {errors}"


def train_step(model: Qwen3ForCausalLM, batch: Batch) -> tuple[float, Tensor]:
    """Leaves gradients; returns the mean loss and the wrong answer tokens per row [rows]."""
    told = batch.labels != IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[told]).float()
    loss = cross_entropy(logits, batch.labels[told])
    torch.autograd.backward(loss)
    wrong = torch.zeros(batch.labels.shape, dtype=torch.int64)
    wrong[told] = (logits.detach().argmax(-1) != batch.labels[told]).long()
    return loss.item(), wrong.sum(1)


def optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    inside = {id(p) for p in model.model.layers.parameters() if p.ndim == 2}
    matrices = [p for p in model.parameters() if id(p) in inside]
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=VECTOR_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def save_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """In float32; the output projection is the embedding and is not stored twice."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    assert "lm_head.weight" not in weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def rate(step: int, steps: int) -> float:
    """Share of the full learning rate: a short rise, a plateau, a linear fall."""
    left = (steps - step) / (DECAY_SHARE * steps)
    return min(1.0, (step + 1) / WARMUP_STEPS, left)


def train(stages: tuple[Stage, ...], seed: int, out: Path) -> None:
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(out)).train()
    updates = optimizers(model)
    full_rates = [update.param_groups[0]["lr"] for update in updates]
    plan = [stage for stage in stages for _ in range(stage.steps)]
    progress, tokens, start = Progress(Counter(), Counter()), 0, time.monotonic()
    for step, stage in enumerate(plan):
        batch = draw_batch(stage, random.Random(f"train/{seed}/{step}"))
        progress.add(batch, *train_step(model, batch))
        clip_grad_norm_(model.parameters(), 1.0)
        for update, full_rate in zip(updates, full_rates, strict=True):
            update.param_groups[0]["lr"] = full_rate * rate(step, len(plan))
            update.step()
            update.zero_grad()
        tokens += batch.tokens.numel()
        if (step + 1) % REPORT_STEPS == 0:
            spent = time.monotonic() - start
            print(
                f"{step + 1} {tokens / 1e6:.2f}M {spent:.0f}s {progress.line(REPORT_STEPS)}",
                flush=True,
            )
            progress = Progress(Counter(), Counter())
        if (step + 1) % CHECKPOINT_STEPS == 0:
            save_weights(model, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(2)
    write_folder(args.out)
    train(CURRICULUM, args.seed, args.out)


if __name__ == "__main__":
    main()
