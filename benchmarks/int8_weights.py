"""Decode with weights of 8 bits (`engine.weightDtype: int8`) compared with bfloat16, in turns.

Two models of random weights: the 33.6 M-parameter Qwen3 of "CPU serving", which a large cache may
hold, and one of the size of Qwen3-0.6B, which is too large for it. 1 and 16 rows with prompts of 32
tokens; prompts are computed before the watch starts. `--prefill` measures chunks of 512 tokens
instead. `--pages` compares pages of 8 bits (`engine.kvCacheDtype: fp8_e4m3`) with bfloat16, in the
same way. `--beside openvino` has OpenVINO GenAI take its turn, with the same threads, tokens and
steps. Prints one JSON line a figure. On a machine shared with others, only tokens per CPU second
mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.sizing import host
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import Generate, Sampling

from benchmarks.cpu_serving import as_an_engine_process, measured_run, step
from benchmarks.peers.environments import peer
from benchmarks.turns import Measured, Run, in_turns, report_rounds, stopwatch

CHUNK_TOKENS = 512
CHUNKS = 2
SMALL = (16_384, 512, 1536, 8, 8, 4, 64)
LARGE = (151_936, 1024, 3072, 28, 16, 8, 128)
"""Sizes of the models: vocabulary, hidden, intermediate, layers, heads, key heads and head dim."""
MODELS = {"33.6M": SMALL, "0.6B": LARGE}


def write_model(folder: Path, sizes: tuple[int, ...]) -> None:
    """Writes random weights in bfloat16; their numbers repeat, which is random enough here."""
    vocabulary, hidden, inner, layers, heads, kv_heads, dim = sizes
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    drawn = (torch.randn(1_048_583) * 0.02).bfloat16()

    def matrix(out: int, width: int) -> torch.Tensor:
        count = out * width
        return drawn.repeat(-(-count // len(drawn)))[:count].view(out, width)

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, hidden)}
    tensors["model.norm.weight"] = torch.ones(hidden).bfloat16()
    for layer in range(layers):
        shapes = {
            "self_attn.q_proj": (heads * dim, hidden),
            "self_attn.k_proj": (kv_heads * dim, hidden),
            "self_attn.v_proj": (kv_heads * dim, hidden),
            "self_attn.o_proj": (hidden, heads * dim),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        norms |= {"self_attn.q_norm": dim, "self_attn.k_norm": dim}
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
        for name, size in norms.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(size).bfloat16()
    save_file(tensors, folder / "model.safetensors")


def engine_of(folder: Path, threads: int, **more: str) -> Engine:
    settings = {"kv_pool_tokens": 16_384, "chunk_size": CHUNK_TOKENS, "threads": threads}
    config = EngineConfig.model_validate({"model": {"uri": str(folder)}, **settings, **more})
    return build_engine(resolved(config), resolve(str(folder)))


def prompts_of(count: int, tokens: int) -> list[list[int]]:
    """Prompts of which none begins like another one."""
    return [[(row * 131 + i) % 8_000 for i in range(tokens)] for row in range(count)]


def decode(engine: Engine, steps: int, prompts: Sequence[Sequence[int]]) -> Run:
    """A run of `steps` steps in which a row of each prompt decodes."""
    rows = len(prompts)

    def run(shift: int) -> Measured:
        for row, prompt in enumerate(prompts):
            tokens = [token + shift for token in prompt]
            sampling = Sampling(temperature=0.0)
            request = Generate(f"{shift}-{row}", tokens, steps + 2, sampling, ignore_eos=True)
            engine.scheduler.add(request)
        made = 0
        while made < rows:
            made += step(engine) or 0
        with stopwatch() as measured:
            made = sum(step(engine) or 0 for _ in range(steps))
            seen = measured(made)
        while step(engine) is not None:
            pass
        return seen

    return run


def prefill(engine: Engine, chunks: int) -> Run:
    """A run of prompts, one after the other, of a chunk each; the tokens counted are theirs."""

    def run(shift: int) -> Measured:
        with stopwatch() as measured:
            for chunk, prompt in enumerate(prompts_of(chunks, CHUNK_TOKENS)):
                tokens = [token + shift for token in prompt]
                sampling = Sampling(temperature=0.0)
                engine.scheduler.add(Generate(f"{shift}-{chunk}", tokens, 1, sampling))
                while step(engine) is not None:
                    pass
            return measured(chunks * CHUNK_TOKENS)

    return run


def openvino_runs(
    folder: Path, threads: int, work: Mapping[str, Any], peers: ExitStack
) -> dict[str, Run]:
    """Runs of OpenVINO GenAI with weights compressed by NNCF, with and without a zero point for
    each output."""
    runs = {}
    for weights in ("int8_asym", "int8_sym"):
        exported = f"{folder}/openvino-{weights}"
        of_peer = {"weights": weights, "exported": exported, "model": str(folder), **work}
        run = peer("openvino", {"threads": threads, **of_peer})
        runs[f"openvino_{weights}"] = measured_run(peers.enter_context(run))
    return runs


@dataclass(frozen=True)
class Workload:
    name: str
    ours: Callable[[Engine], Run]
    theirs: Mapping[str, Any]
    """The workload as a peer's script reads it."""


def workloads(arguments: argparse.Namespace) -> Iterator[Workload]:
    if arguments.prefill:
        prompts = prompts_of(CHUNKS, CHUNK_TOKENS)
        theirs = {"one_by_one": True, "prompts": prompts}
        yield Workload("prefill.{}", lambda engine: prefill(engine, CHUNKS), theirs)
        return
    for rows in arguments.rows:
        prompts, steps = prompts_of(rows, arguments.prompt), arguments.steps
        ours = partial(decode, steps=steps, prompts=prompts)
        yield Workload(f"decode.{{}}.{rows}_rows", ours, {"steps": steps, "prompts": prompts})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--prompt", type=int, default=32, help="tokens before those decoded")
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 16])
    parser.add_argument(
        "--beside",
        nargs="*",
        choices=["openvino"],
        default=[],
        help="engines to run as well, with their own weights of 8 bits; installs several GB",
    )
    arguments = parser.parse_args()
    as_an_engine_process("benchmarks.int8_weights")
    host.collect_garbage_rarely()
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as made:
            write_model(Path(made), MODELS[name])
            measure(Path(made), name, arguments)


def measure(folder: Path, model: str, arguments: argparse.Namespace) -> None:
    named, threads = "fp8-pages" if arguments.pages else "int8", arguments.threads
    changed = {"kv_cache_dtype": "fp8_e4m3"} if arguments.pages else {"weight_dtype": "int8"}
    engines = {named: engine_of(folder, threads, **changed), "bfloat16": engine_of(folder, threads)}
    for work in workloads(arguments):
        runs = {kind: work.ours(engine) for kind, engine in engines.items()}
        with ExitStack() as peers:
            if arguments.beside:
                runs |= openvino_runs(folder, threads, work.theirs, peers)
            seen = in_turns(runs, arguments.rounds)
        report_rounds(f"{named}.{work.name.format(model)}", named, seen)


if __name__ == "__main__":
    main()
