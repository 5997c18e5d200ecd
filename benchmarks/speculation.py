"""The workload "copying": what drafts from a request's own tokens gain at 1, 4, 16 and 64 rows.

The 33.6 M-parameter Qwen3 of "CPU serving" in bfloat16. Random weights copy nothing, so its output
layer is set: after each token of a phrase the next one is the most probable, and the prompt has the
phrase twice. At a high temperature, about one token in 150 is another one. It begins another
phrase, which has no draft before it was there once.

"novel": random weights as they are, so there is nothing to draft. "drafted": the drafts come from a
model of the first two of the eight layers, with embedding and output layer. The other layers change
little, so the drafts are nearly always right; no prompt has a phrase twice.

The same engine runs with and without drafts, in turns; a ratio is the median of the rounds'. Prints
one JSON line a figure.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.sizing import host
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import Generate, Sampling

from benchmarks.cpu_serving import as_an_engine_process, write_model
from benchmarks.turns import Measured, in_turns, report, stopwatch

ROWS = (1, 4, 16, 64)
ROUNDS = 5
PHRASE = 64
VOCABULARY = 16_384
ANSWERS = {1: 384, 4: 256, 16: 128, 64: 96}
"""Answer tokens of each row, by number of rows."""
DRAFTS = 4


@dataclass(frozen=True)
class Workload:
    name: str
    temperature: float
    copies: bool
    prompt: int = 2 * PHRASE
    """Tokens of a prompt."""


NOVEL = Workload("novel", 1.0, copies=False)
COPYING = (Workload("copying", 0.0, copies=True), Workload("copying_with_breaks", 1.5, copies=True))
DRAFTED = (
    Workload("drafted", 0.0, copies=True, prompt=PHRASE // 2),
    Workload("drafted_with_breaks", 1.5, copies=True, prompt=PHRASE // 2),
)
DRAFT_LAYERS = 2


def write_copier(folder: Path) -> None:
    """The model of "CPU serving", whose output layer favours the next token of a phrase."""
    write_model(folder)
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    embedding = model.model.embed_tokens.weight.data
    for layer in model.model.layers:  # all is computed, and changes little
        layer.self_attn.o_proj.weight.data.mul_(0.02)
        layer.mlp.down_proj.weight.data.mul_(0.02)
    tokens = torch.arange(VOCABULARY)
    after = tokens // PHRASE * PHRASE + (tokens + 1) % PHRASE
    output = torch.empty_like(embedding)
    output[after] = embedding / embedding.norm(dim=-1, keepdim=True)
    model.lm_head.weight = torch.nn.Parameter(output)
    model.bfloat16().save_pretrained(folder)


def write_draft(folder: Path, draft: Path) -> None:
    """The first layers of a model, with its embedding and its output layer."""
    from transformers import Qwen3ForCausalLM

    layers: dict[str, Any] = {
        "num_hidden_layers": DRAFT_LAYERS,
        "layer_types": ["full_attention"] * DRAFT_LAYERS,
    }
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **layers)
    model.save_pretrained(draft)


def engine_for(folder: Path, threads: int, speculation: dict[str, Any] | None) -> Engine:
    settings: dict[str, Any] = {
        "model": {"uri": str(folder)},
        "kv_pool_tokens": 65_536,
        "chunk_size": 2048,
        "threads": threads,
        "prefix_cache": False,
    }
    if speculation:
        settings["speculation"] = speculation
    config = resolved(EngineConfig.model_validate(settings))
    engine = build_engine(config, resolve(config.model.uri))
    host.collect_garbage_rarely()
    return engine


def prompts(work: Workload, rows: int, shift: int, vocabulary: int = VOCABULARY) -> list[list[int]]:
    """Prompts of one phrase each, beginning at another place, or of random tokens."""
    draw = random.Random(shift)
    made = []
    for _ in range(rows):
        phrase, at = draw.randrange(vocabulary // PHRASE), draw.randrange(PHRASE)
        if work.copies:
            made.append([phrase * PHRASE + (at + i) % PHRASE for i in range(work.prompt)])
        else:
            made.append([draw.randrange(vocabulary) for _ in range(work.prompt)])
    return made


def run(engine: Engine, work: Workload, rows: int, shift: int) -> Measured:
    """Runs all rows; measures from their first token to the last."""
    for index, prompt in enumerate(prompts(work, rows, shift)):
        sampling = Sampling(temperature=work.temperature, seed=shift * 1000 + index)
        name = f"{work.name}-{rows}-{shift}-{index}"
        message = Generate(name, prompt, ANSWERS[rows], sampling, ignore_eos=True)
        engine.scheduler.add(message)
    step(engine)
    made = 0
    with stopwatch() as measured:
        while (tokens := step(engine)) is not None:
            made += tokens
        return measured(made)


def step(engine: Engine) -> int | None:
    """Tokens that one step made; None when there was nothing to do."""
    batch = engine.scheduler.next_batch(time.monotonic())
    if batch is None:
        return None
    outcome = engine.scheduler.process(batch, engine.runner.forward(batch), time.monotonic())
    return sum(len(delta.token_ids) for delta in outcome.deltas)


def compare(engines: dict[str, Engine], work: Workload, rows: int, rounds: int) -> None:
    """Reports one workload at `rows` rows."""
    before = engines["on"].scheduler.status()
    runs = {
        name: lambda shift, engine=engine: run(engine, work, rows, shift)
        for name, engine in engines.items()
    }
    seen = in_turns(runs, rounds)
    after = engines["on"].scheduler.status()
    drafted = after.drafted_tokens - before.drafted_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    figure = f"speculation.{work.name}.rows{rows}"
    for name, measured in seen.items():
        report(f"{figure}.{name}", median(each.rate for each in measured), unit="tokens/s")
    rounds_seen = list(zip(seen["on"], seen["off"], strict=True))
    ratios = [on.rate / off.rate for on, off in rounds_seen]
    report(
        f"{figure}.ratio",
        median(ratios),
        unit="on / off",
        of_processor_time=round(median(on.cpu_rate / off.cpu_rate for on, off in rounds_seen), 3),
        least=round(min(ratios), 3),
        most=round(max(ratios), 3),
        drafted=drafted,
        accepted=round(accepted / drafted, 3) if drafted else None,
    )


def main(chosen: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--drafts", type=int, default=DRAFTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", type=int, nargs="*", choices=ROWS, default=list(ROWS))
    names = [work.name for work in (*COPYING, NOVEL, *DRAFTED)] + ["drafted_novel"]
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    arguments = parser.parse_args(chosen)
    as_an_engine_process("benchmarks.speculation")
    ngram = {"method": "NGram", "tokens": arguments.drafts}
    with tempfile.TemporaryDirectory() as name:
        copier, novel, draft = (Path(name, each) for each in ("copier", "novel", "draft"))
        write_copier(copier)
        write_model(novel)
        write_draft(copier, draft)
        drafting = {"method": "Draft", "tokens": arguments.drafts, "draft": {"uri": str(draft)}}
        for folder, speculation, works in (
            (copier, ngram, COPYING),
            (novel, ngram, (NOVEL,)),
            (copier, drafting, DRAFTED),
            (novel, drafting, (replace(NOVEL, name="drafted_novel"),)),
        ):
            if not (named := [work for work in works if work.name in arguments.only]):
                continue
            engines = {
                "on": engine_for(folder, arguments.threads, speculation),
                "off": engine_for(folder, arguments.threads, None),
            }
            for work, rows in product(named, arguments.rows):
                compare(engines, work, rows, arguments.rounds)


if __name__ == "__main__":
    main()
