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
from collections.abc import Iterator, Sequence
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


# Tasks of the rows, drawn with these frequencies. Sums have the shortest answers and are learned
# last.
FIRST_MIX = ("copy", "text", "lookup", "add", "add")
LAST_MIX = ("copy", "copy", "text", "lookup", "add", "add", "add", "add")
EVEN_MIX = ("copy", "copy", "copy", "text", "lookup", "add", "add", "add")
COPY_MIX = ("copy", "copy", "copy", "copy", "copy", "text", "lookup", "add")


@dataclass(frozen=True)
class Stage:
    """A number of steps with sequences of up to `longest_tokens`, and `batch_tokens` a step."""

    steps: int
    longest_tokens: int
    batch_tokens: int
    rates: tuple[float, float] = (1.0, 1.0)  # share of the full learning rates: start, end
    mix: tuple[str, ...] = FIRST_MIX
    long_share: float = 0.0  # of batches whose sequences are nearly the longest
    norm_rate: float = 3e-3  # norm weights; those of queries and keys set how sharp attention is


CURRICULUM = (
    Stage(steps=400, longest_tokens=64, batch_tokens=4096),
    Stage(steps=300, longest_tokens=128, batch_tokens=6144),
    Stage(steps=300, longest_tokens=256, batch_tokens=6144),
    Stage(steps=200, longest_tokens=512, batch_tokens=8192),
    Stage(steps=200, longest_tokens=512, batch_tokens=8192, rates=(1.0, 0.75)),
    Stage(100, 1024, 8192, rates=(0.75, 0.58), mix=LAST_MIX, long_share=0.35, norm_rate=1e-2),
    Stage(220, 1024, 4096, rates=(0.5, 0.0), mix=LAST_MIX, long_share=0.15, norm_rate=1e-2),
    Stage(260, 1024, 4096, rates=(0.4, 0.0), mix=EVEN_MIX, long_share=0.15, norm_rate=1e-2),
    Stage(650, 1024, 4096, rates=(0.6, 0.0), mix=EVEN_MIX, long_share=0.2, norm_rate=1e-2),
    Stage(240, 1280, 4096, rates=(0.3, 0.0), mix=COPY_MIX, long_share=0.5, norm_rate=1e-2),
)
SHORTEST_TOKENS = 32
WARMUP_STEPS = 50
MATRIX_RATE, EMBEDDING_RATE = 0.02, 3e-3
REPORT_STEPS = 10
CHECKPOINT_STEPS = 50


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
        return TASKS[task](length, 1 + max(0, tokens - length - 19) // 19, rng)
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
    labels = [token if answer else IGNORED for token, answer in zip(tokens, answers, strict=True)]
    labels = [*labels[1:], IGNORED]
    padding = max(0, length - len(tokens))
    return (tokens + [PAD_ID] * padding)[:length], (labels + [IGNORED] * padding)[:length]


def draw_length(stage: Stage, rng: random.Random) -> int:
    """Tokens per sequence: uniform on a logarithmic scale, or nearly the longest."""
    if rng.random() < stage.long_share:
        return rng.randint(stage.longest_tokens * 3 // 4, stage.longest_tokens)
    low, high = math.log(SHORTEST_TOKENS), math.log(stage.longest_tokens)
    return round(math.exp(rng.uniform(low, high)))


def draw_batch(stage: Stage, rng: random.Random) -> Batch:
    length = draw_length(stage, rng)
    tasks = [rng.choice(stage.mix) for _ in range(max(4, stage.batch_tokens // length))]
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
    labelled: Counter[str]
    loss: float = 0.0

    def add(self, batch: Batch, loss: float, wrong_by_row: Tensor) -> None:
        labelled_by_row = (batch.labels != IGNORED).sum(1).tolist()
        self.loss += loss
        for task, wrong, labelled in zip(
            batch.tasks, wrong_by_row.tolist(), labelled_by_row, strict=True
        ):
            self.wrong[task] += wrong
            self.labelled[task] += labelled

    def line(self, steps: int) -> str:
        errors = {
            task: f"{self.wrong[task] / self.labelled[task]:.6f}" for task in sorted(self.labelled)
        }
        return f"loss {self.loss / steps:.4f} wrong tokens {errors}"


def train_step(model: Qwen3ForCausalLM, batch: Batch) -> tuple[float, Tensor]:
    """Computes gradients, which stay; returns the mean loss and the wrong answer tokens per row
    [rows]."""
    labelled = batch.labels != IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[labelled]).float()
    loss = cross_entropy(logits, batch.labels[labelled])
    torch.autograd.backward(loss)
    wrong = torch.zeros(batch.labels.shape, dtype=torch.int64)
    wrong[labelled] = (logits.detach().argmax(-1) != batch.labels[labelled]).long()
    return loss.item(), wrong.sum(1)


def optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Optimizers for the layers' matrices, the norms and the embedding, in this order."""
    inside = list(model.model.layers.parameters())
    matrices = [p for p in inside if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    return [
        torch.optim.Muon(matrices, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(norms, betas=(0.9, 0.98), weight_decay=0.0),
        torch.optim.AdamW([model.lm_head.weight], betas=(0.9, 0.98), weight_decay=0.0),
    ]


def save_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Writes the weights in float32; the output projection is the embedding and is not stored
    twice."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    assert "lm_head.weight" not in weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def rates(stages: Sequence[Stage]) -> Iterator[tuple[Stage, float]]:
    """For each step: its stage and its share of the full learning rates."""
    step = 0
    for stage in stages:
        start, end = stage.rates
        for at in range(stage.steps):
            step += 1
            yield stage, min(1.0, step / WARMUP_STEPS) * (start + (end - start) * at / stage.steps)


def train(model: Qwen3ForCausalLM, stages: Sequence[Stage], seed: int, out: Path) -> None:
    updates = optimizers(model)
    progress, tokens, start = Progress(Counter(), Counter()), 0, time.monotonic()
    for step, (stage, rate) in enumerate(rates(stages), start=1):
        batch = draw_batch(stage, random.Random(f"train/{seed}/{step}"))
        progress.add(batch, *train_step(model, batch))
        clip_grad_norm_(model.parameters(), 1.0)
        full_rates = (MATRIX_RATE, stage.norm_rate, EMBEDDING_RATE)
        for update, full_rate in zip(updates, full_rates, strict=True):
            update.param_groups[0]["lr"] = full_rate * rate
            update.step()
            update.zero_grad()
        tokens += batch.tokens.numel()
        if step % REPORT_STEPS == 0:
            spent = time.monotonic() - start
            report = progress.line(REPORT_STEPS)
            print(f"{step} {tokens / 1e6:.2f}M {spent:.0f}s {report}", flush=True)
            progress = Progress(Counter(), Counter())
        if step % CHECKPOINT_STEPS == 0:
            save_weights(model, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--stages", type=int, nargs=2, default=(0, len(CURRICULUM)), metavar=("FIRST", "END")
    )
    parser.add_argument("--start", type=Path, help="folder of weights to start from")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(args.seed)
    write_folder(args.out)
    if args.start:
        model = Qwen3ForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    else:
        model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(args.out))
    model.train()
    first, end = args.stages
    train(model, CURRICULUM[first:end], args.seed, args.out)
    save_weights(model, args.out)


if __name__ == "__main__":
    main()
