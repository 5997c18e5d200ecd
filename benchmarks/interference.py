"""A prompt of 8 chunks during 16 streaming requests: the gaps between the streams' tokens.

The same requests run in turns with chunking on and off, with fixed chunks of many sizes, and with
the chunk chosen for each step to keep a target. A gap is the time from one step's tokens to the
next one's, by the engine's clock, for every stream while the long prompt is being computed. Gaps
are compared with one mixed step, the median of steps that computed a chunk. The target is a little
more than such a step takes, or what --target says. With --features the chosen chunk is measured
with what else may be on in an engine, one at a time. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from safetensors.torch import save_file
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.adapters import adapter_key
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from benchmarks import structured
from benchmarks.cpu_serving import as_an_engine_process, write_model
from benchmarks.speculation import write_draft

STREAMS = 16
CHUNKS = 8
FIXED_CHUNKS = (64, 96, 128, 160, 192, 256, 384, 512)
"""Tokens of the fixed chunks; the best of those that keep the target is reported."""
LARGEST_CHUNK = 1024
"""Most tokens that may be chosen for a step."""
LEARNING_STEPS = 200
"""Steps before the chosen chunk is measured: fewer say little about a 99th percentile."""
TARGET_STEPS = 1.25
"""The target, in mixed steps of the chunk that --chunk names."""
GREEDY = Sampling(temperature=0.0)
DRAFTS = 4
ADAPTER_RANK = 8
STREAM_TOKENS = 200
CODES = "([A-Z]{2}-[0-9]{4}, )+"
"""Grammar of the answers that have one."""


@dataclass(frozen=True)
class Feature:
    """What is on in an engine beside a promise."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of each stream's request, and of the prompt's."""


NOTHING = Feature()


@dataclass
class Observed:
    """Seconds of gaps, of `steps` that computed a part of the long prompt, and of the prompt."""

    gaps: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    prompt: float = 0.0
    """Seconds from the arrival of the long prompt to its first token."""


Runs = dict[str, list[Observed]]
Clock = Callable[[], float]


def engine_for(folder: Path, chunk: int, threads: int, **settings: Any) -> Engine:
    """An engine with chunks of `chunk` prompt tokens. Decode rows share a step's budget, so the
    number of streams is added to it."""
    config = resolved(
        EngineConfig.model_validate(
            {
                "model": {"uri": str(folder)},
                "kv_pool_tokens": 16_384,
                "chunk_size": chunk if chunk == -1 else chunk + STREAMS,
                "prefix_cache": False,
                "threads": threads,
                **settings,
            }
        )
    )
    return build_engine(config, resolve(config.model.uri))


def observe(
    engine: Engine, prompt_tokens: int, turn: int, clock: Clock, feature: Feature = NOTHING
) -> Observed:
    """The gaps of the streams during a prompt. It arrives once the streams decode, and all requests
    are dropped at the end. No two turns have the same prompt."""
    prompt = [(i + turn) % 1000 for i in range(prompt_tokens)]
    return observe_prompt(engine, prompt, turn, clock, feature)


def observe_prompt(
    engine: Engine, prompt: list[int], turn: int, clock: Clock, feature: Feature = NOTHING
) -> Observed:
    """The gaps of the streams during `prompt`; see `observe`."""
    names = start_streams(engine, turn, STREAM_TOKENS, clock, feature)
    long = f"{turn}-long"
    _add(engine, structs.replace(Generate(long, prompt, 4, GREEDY), **feature.fields))
    observed, arrived = Observed(), clock()
    last = dict.fromkeys(names, arrived)
    while True:
        began = clock()
        extends, answered = step(engine, clock)
        now = clock()
        if extends:
            observed.steps.append(now - began)
        for name in answered & last.keys():
            observed.gaps.append(now - last[name])
            last[name] = now
        if long in answered:
            observed.prompt = now - arrived
            break
    for name in (*names, long):
        engine.scheduler.abort(name)
        engine.grammars.ended(name)
    while engine.scheduler.status().running_requests:
        step(engine, clock)
    engine.scheduler.next_batch(clock())
    return observed


def start_streams(
    engine: Engine, turn: int, tokens: int, clock: Clock, feature: Feature = NOTHING
) -> list[str]:
    """Adds the streams' requests and runs steps until all of them decode; returns their names."""
    names = [f"{turn}-{index}" for index in range(STREAMS)]
    for index, name in enumerate(names):
        message = Generate(name, [index + 1] * 64, tokens, GREEDY, ignore_eos=True)
        _add(engine, structs.replace(message, **feature.fields))
    decoding: set[str] = set()
    while len(decoding) < STREAMS:
        decoding |= step(engine, clock)[1]
    return names


def _add(engine: Engine, message: Generate) -> None:
    """Adds a request, once its grammar is compiled if it has one."""
    if message.grammar is None:
        engine.scheduler.add(message)
        return
    engine.grammars.add(message)
    while not (ready := engine.grammars.released().ready):
        time.sleep(0.0002)
    engine.scheduler.add(ready[0])


def step(engine: Engine, clock: Clock) -> tuple[bool, set[str]]:
    """Whether the step computed prompt tokens, and which requests got a token."""
    batch = engine.scheduler.next_batch(clock())
    assert batch is not None
    result = engine.executor(overlap=False).launch(batch)()
    assert not engine.grammars.given_up(batch.step)
    deltas = engine.scheduler.process(batch, result, clock()).deltas
    return bool(batch.extend_rows), {delta.request_id for delta in deltas if delta.token_ids}


def in_turns(
    engines: Mapping[str, Engine], prompt: int, turns: Iterable[int], clock: Clock
) -> Runs:
    """Runs each engine once a turn; the first turn is a warm-up."""
    runs: Runs = {kind: [] for kind in engines}
    for turn in turns:
        for kind, engine in engines.items():
            observed = observe(engine, prompt, turn, clock)
            runs[kind] += [observed] if turn else []
    return runs


def learn(engine: Engine, prompt: int, clock: Clock, feature: Feature = NOTHING) -> None:
    """Runs turns that are not measured, until the engine has learnt how long its steps take."""
    turn = steps = 0
    while steps < LEARNING_STEPS:
        turn -= 1
        steps += len(observe(engine, prompt, turn, clock, feature).steps)


def features(folder: Path) -> dict[str, Feature]:
    """What may be on, for the model in `folder`, which gets a tokenizer for the grammar."""
    draft, adapter = folder / "draft", folder / "adapter"
    write_draft(folder, draft)
    write_adapter(folder, adapter)
    ngram = {"method": "NGram", "tokens": DRAFTS}
    drafting = {"method": "Draft", "tokens": DRAFTS, "draft": {"uri": str(draft)}}
    lora = {"adapters": ({"name": "lora", "uri": str(adapter)},)}
    tokens = json.loads((folder / "config.json").read_text())["vocab_size"]
    structured.save(folder, tokens)
    grammar = Grammar("regex", CODES, [tokens - 1], "regex", min_tokens=STREAM_TOKENS)
    return {
        "nothing": NOTHING,
        "ngram": Feature({"speculation": ngram}),
        "draft_model": Feature({"speculation": drafting}),
        "host_cache": Feature({"prefix_cache": True, "host_cache": {"memory": "1Gi"}}),
        "penalties": Feature(fields={"sampling": Sampling(temperature=0.0, presence_penalty=0.5)}),
        "logprobs": Feature(fields={"logprobs": 5}),
        "adapter": Feature(lora, {"adapter": adapter_key("lora", adapter)}),
        "grammar": Feature(fields={"grammar": grammar}),
    }


def write_adapter(model: Path, folder: Path) -> None:
    """Writes an adapter of the attention's queries and outputs, of random numbers."""
    config = json.loads((model / "config.json").read_text())
    wide, narrow = config["num_attention_heads"] * config["head_dim"], config["hidden_size"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out, width in (("q_proj", wide, narrow), ("o_proj", narrow, wide)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(ADAPTER_RANK, width) * 0.01
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(out, ADAPTER_RANK) * 0.01
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": ADAPTER_RANK, "lora_alpha": ADAPTER_RANK}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def compare_features(
    folder: Path, chunk: int, turns: int, milliseconds: int, threads: int, clock: Clock
) -> None:
    """Reports, for each feature, the gaps of all turns against the promise."""
    slo = {"itl_milliseconds": milliseconds, "percentile": 99}
    prompt = CHUNKS * chunk
    for name, feature in features(folder).items():
        engine = engine_for(folder, LARGEST_CHUNK, threads, slo=slo, **feature.settings)
        if engine.adapters:
            engine.adapters.take_change(engine.scheduler)
        learn(engine, prompt, clock, feature)
        seen = [observe(engine, prompt, turn, clock, feature) for turn in range(turns)]
        p99 = 1000 * percentile_99([gap for observed in seen for gap in observed.gaps])
        ttft = 1000 * statistics.median(observed.prompt for observed in seen)
        figure = f"interference.slo_with.{name}"
        report(f"{figure}.p99_gap_of_target", p99 / milliseconds, "x", keeps=p99 <= milliseconds)
        report(f"{figure}.first_token_of_the_prompt", ttft, "ms")
        engine.grammar_compiler.close()
        if engine.host_cache is not None:
            engine.host_cache.close()


def report(figure: str, value: float, unit: str, **more: object) -> None:
    line = {"figure": figure, "value": round(value, 3), "unit": unit, **more}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--target", type=int, help="milliseconds between tokens; else measured")
    parser.add_argument("--features", action="store_true", help="only the promise, with each")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--cpu-clock",
        action="store_true",
        help="measure the process's CPU time, with one thread: for a machine shared with others",
    )
    arguments = parser.parse_args()
    as_an_engine_process("benchmarks.interference")
    clock = time.process_time if arguments.cpu_clock else time.perf_counter
    threads = 1 if arguments.cpu_clock else arguments.threads
    prompt, turns = CHUNKS * arguments.chunk, range(arguments.turns + 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        engines = {
            "chunked": engine_for(folder, arguments.chunk, threads),
            "unchunked": engine_for(folder, -1, threads),
        }
        runs = in_turns(engines, prompt, turns, clock)
        one_step = summarise(runs)
        milliseconds = arguments.target or round(1000 * one_step * TARGET_STEPS)
        if arguments.features:
            report("interference.slo.target", milliseconds, "ms")
            compare_features(folder, arguments.chunk, len(turns), milliseconds, threads, clock)
            return
        slo = {"itl_milliseconds": milliseconds, "percentile": 99}
        chosen = {f"fixed.{chunk}": engine_for(folder, chunk, threads) for chunk in FIXED_CHUNKS}
        chosen["slo"] = engine_for(folder, LARGEST_CHUNK, threads, slo=slo)
        learn(chosen["slo"], prompt, clock)
    compare(in_turns(chosen, prompt, turns, clock), milliseconds / 1000)


def summarise(runs: Runs) -> float:
    """Reports medians over the turns, of each turn's worst and 99th-percentile gap; returns the
    seconds of a mixed step."""
    one_step = statistics.median(s for run in runs["chunked"] for s in run.steps)
    report("interference.mixed_step", 1000 * one_step, "ms")
    for kind, observed in runs.items():
        worst = statistics.median(max(run.gaps) for run in observed)
        p99 = statistics.median(percentile_99(run.gaps) for run in observed)
        chunks = round(statistics.median(len(run.steps) for run in observed))
        report(f"interference.{kind}.worst_gap", 1000 * worst, "ms", steps=chunks)
        report(f"interference.{kind}.p99_gap", 1000 * p99, "ms")
        report(f"interference.{kind}.worst_gap_in_steps", worst / one_step, "mixed steps")
        prompt = statistics.median(run.prompt for run in observed)
        report(f"interference.{kind}.first_token_of_the_prompt", 1000 * prompt, "ms")
    return one_step


def compare(runs: Runs, target: float) -> None:
    """Reports the chosen chunk against the best fixed chunk whose gaps keep the target too. The
    gaps of all turns count together, since a 99th percentile needs that many."""
    p99 = {
        kind: percentile_99([g for run in seen for g in run.gaps]) for kind, seen in runs.items()
    }
    ttft = {kind: statistics.median(run.prompt for run in seen) for kind, seen in runs.items()}
    report("interference.slo.target", 1000 * target, "ms")
    for kind in runs:
        keeps = p99[kind] <= target
        report(f"interference.{kind}.p99_gap_of_all", 1000 * p99[kind], "ms", keeps=keeps)
        report(f"interference.{kind}.first_token_of_the_prompt", 1000 * ttft[kind], "ms")
    keeping = [kind for kind in runs if kind != "slo" and p99[kind] <= target]
    report("interference.slo.p99_gap_of_target", p99["slo"] / target, "x")
    if not keeping:
        report("interference.slo.best_fixed", 0, "none of the fixed chunks keeps the target")
        return
    best = min(keeping, key=lambda kind: ttft[kind])
    report("interference.slo.first_token_of_best_fixed", ttft["slo"] / ttft[best], "x", best=best)


def percentile_99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


if __name__ == "__main__":
    main()
