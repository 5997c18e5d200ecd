"""The workload "CPU serving": 64 requests on a 33.6 M-parameter Qwen3 in bfloat16.

Prompts and answers of 16 to 256 tokens (9,536 in, 8,224 out), all there at once. Compared are the
engine without its HTTP side, transformers' continuous batching, and the engines of
`benchmarks.peers`, each in an environment of its own. transformers has one answer length for all
requests and gets the mean.

The engines take turns, round by round, since a machine shared with others changes its pace within
minutes. A ratio is the median of the rounds', except for transformers, which runs in the last round
alone. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.sizing import host
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import Generate, Sampling

from benchmarks.peers.environments import PEERS, peer
from benchmarks.step_breakdown import breakdown, least_work, product_rate, read_rate
from benchmarks.turns import Measured, Run, in_turns, middle, report, report_rounds, stopwatch

TEMPERATURE = 0.6
OTHERS = ("transformers", *PEERS)
ROUNDS = 7


@dataclass(frozen=True)
class Workload:
    prompts: list[list[int]]
    answers: list[int]
    """Tokens to generate for each prompt."""

    def shifted(self, by: int) -> Workload:
        """A workload of the same lengths, with other tokens."""
        return Workload([[token + by for token in prompt] for prompt in self.prompts], self.answers)


def workload(count: int = 64, longest: int = 256) -> Workload:
    draw = random.Random(0)
    prompts = [
        [draw.randint(0, 10_000) for _ in range(draw.randint(16, longest))] for _ in range(count)
    ]
    return Workload(prompts, [draw.randint(16, longest) for _ in range(count)])


def write_model(folder: Path, context: int = 4096) -> None:
    """Writes a model of random weights, saved by transformers."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=16_384,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)


def engine_for(folder: Path, threads: int) -> Engine:
    """An engine with scheduler and runner, without messages and HTTP."""
    config = resolved(
        EngineConfig.model_validate(
            {
                "model": {"uri": str(folder)},
                "kv_pool_tokens": 65_536,
                "chunk_size": 2048,
                "threads": threads,
            }
        )
    )
    engine = build_engine(config, resolve(config.model.uri))
    host.collect_garbage_rarely()
    return engine


def ask(engine: Engine, work: Workload) -> None:
    for index, (prompt, answer) in enumerate(zip(work.prompts, work.answers, strict=True)):
        sampling = Sampling(temperature=TEMPERATURE, seed=index)
        engine.scheduler.add(Generate(f"r{index}", prompt, answer, sampling, ignore_eos=True))


def step(engine: Engine) -> int | None:
    """Tokens that one step made; None when there was nothing to do."""
    batch = engine.scheduler.next_batch(time.monotonic())
    if batch is None:
        return None
    result = engine.runner.forward(batch)
    deltas = engine.scheduler.process(batch, result, time.monotonic()).deltas
    return sum(len(delta.token_ids) for delta in deltas)


def run_sluice(folder: Path, work: Workload, threads: int) -> Measured:
    """Figures of all requests, from the first to the last token."""
    engine = engine_for(folder, threads)
    made = 0
    with stopwatch() as measured:
        ask(engine, work)
        while (tokens := step(engine)) is not None:
            made += tokens
        assert made == sum(work.answers)
        return measured(made)


def report_steps(folder: Path, work: Workload, threads: int) -> None:
    """Reports mixed steps of a chunk each, then decode steps of all requests half way through."""
    engine = engine_for(folder, threads)
    ask(engine, Workload(work.prompts, [256] * len(work.prompts)))
    step(engine)
    for kind, steps, skipped in (("mixed", 3, 1), ("decode", 10, 64)):
        parts = breakdown(lambda: step(engine), steps)
        for name, spent in asdict(parts).items():
            share = round(spent / parts.whole, 2)
            report(f"cpu_serving.{kind}_step.{name}", spent, unit="ms", share=share)
        for _ in range(skipped):
            step(engine)


def report_ceilings(folder: Path, work: Workload, ours: Measured) -> None:
    """Reports the limits of this machine, and how far the run came."""
    spec = spec_from(resolve(str(folder)).config)
    least = least_work(spec, map(len, work.prompts), work.answers)
    flops, read = product_rate(spec), read_rate(int(least.read_bytes / max(work.answers)))
    report("cpu_serving.peak.products", flops / 1e9, unit="GFLOP/s, bfloat16")
    report("cpu_serving.peak.memory", read / 1e9, unit="GB/s read")
    for name, seconds in (("compute", least.flops / flops), ("memory", least.read_bytes / read)):
        ceiling = ours.tokens / seconds
        reached = round(ours.rate / ceiling, 3)
        report(f"cpu_serving.ceiling.{name}", ceiling, unit="output tokens/s", reached=reached)


def run_transformers(folder: Path, work: Workload, threads: int) -> Measured:
    """Figures of `generate_batch` with its defaults."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="sdpa", dtype=torch.bfloat16
    ).eval()
    generation = GenerationConfig(
        max_new_tokens=sum(work.answers) // len(work.answers),
        do_sample=True,
        temperature=TEMPERATURE,
        eos_token_id=-1,
        pad_token_id=0,
    )
    batching = ContinuousBatchingConfig(num_blocks=512, max_batch_tokens=2048)
    with stopwatch() as measured:
        made = model.generate_batch(
            work.prompts,
            generation_config=generation,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        return measured(sum(len(output.generated_tokens) for output in made.values()))


@contextmanager
def peer_runs(name: str, folder: Path, work: Workload, threads: int) -> Iterator[Run]:
    given = {"model": str(folder), "threads": threads, "temperature": TEMPERATURE}
    with peer(name, {**given, **asdict(work)}) as run:
        yield measured_run(run)


def measured_run(ask_peer: Callable[[int], dict[str, float]]) -> Run:
    def run(shift: int) -> Measured:
        seen = ask_peer(shift)
        return Measured(int(seen["tokens"]), seen["seconds"], seen["cpu_seconds"])

    return run


def runs_of(
    folder: Path, work: Workload, threads: int, others: Sequence[str], peers: ExitStack
) -> dict[str, Run]:
    """The run of each engine, which takes a number to shift tokens by; `peers` ends what it
    starts."""
    runs: dict[str, Run] = {
        "sluice": lambda shift: run_sluice(folder, work.shifted(shift), threads)
    }
    for name in others:
        if name in PEERS:
            runs[name] = peers.enter_context(peer_runs(name, folder, work, threads))
        else:
            runs[name] = lambda shift: run_transformers(folder, work.shifted(shift), threads)
    return runs


def as_an_engine_process(module: str) -> None:
    """Restarts this process with the variables that the engine process sets before it loads
    torch."""
    if not host.LIBRARY_VARIABLES.keys() <= os.environ.keys():
        host.set_library_variables()
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--beside",
        nargs="*",
        choices=OTHERS,
        default=["transformers"],
        help="engines to run as well; those of benchmarks.peers install several GB each",
    )
    arguments = parser.parse_args()
    as_an_engine_process("benchmarks.cpu_serving")
    work, threads = workload(), arguments.threads
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        with ExitStack() as peers:
            runs = runs_of(folder, work, threads, arguments.beside, peers)
            seen = in_turns(runs, ROUNDS, once={"transformers"})
        report_rounds("cpu_serving", "sluice", seen)
        report_steps(folder, work, threads)
        report_ceilings(folder, work, middle(seen["sluice"]))


if __name__ == "__main__":
    main()
