"""Processes that share each layer answer as one process does, and end together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from sluice_contract.config.sizing import ResolvedConfig
from sluice_kernels.packed import PackedMatrix
from sluice_runtime.engine.build import Engine, EngineHooks, build_engine
from sluice_runtime.engine.prepare import prepare
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.model import layer_tensors
from sluice_runtime.model.adapters import adapter_key
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import DUMMIES, resolve
from sluice_runtime.model.layer_tensors import WHOLE_ON_CPU, Reader
from sluice_runtime.model.load import build_decoder
from sluice_runtime.parallel.joined import JoinedRanks, joined_ranks
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.pacing import LayerSplit
from sluice_runtime.wire.messages import Generate, Sampling

from tests.patience import PATIENCE_SECONDS
from tests.runtime.harness import (
    Recorder,
    Run,
    drive,
    engine_config,
    generate,
    resolved_config,
    run_engine,
)
from tests.runtime.model.held import reached
from tests.runtime.model.quantised_checkpoints import write_mxfp4, write_quantised
from tests.runtime.model.test_streamed_weights import Recorded
from tests.runtime.random_adapter import write_random_adapter
from tests.runtime.scheduler.building import SplitChunk

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("ranks")]

SIZES = {
    "page_size": 4,
    "chunk_size": 24,
    "kv_pool_tokens": 112,
    "max_running_requests": 5,
    "reserve_percent": 10,
}
ONE_KEY_HEAD = "one key head"
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, seed=7),
    Sampling(temperature=0.8, seed=3, top_p=0.9, top_k=20),
    Sampling(temperature=1.0, seed=9, presence_penalty=0.4, frequency_penalty=0.3),
)


def requests() -> list[Generate]:
    """More than the pool holds: some are retracted, the longest is computed in chunks."""
    return [
        generate(
            f"r{i}",
            range(i, i + 5 + 13 * (i % 5)),
            40,
            sampling=SAMPLINGS[i % 4],
            credit_tokens=64,
            logprobs=2 if i == 3 else -1,
            prompt_logprobs=1 if i == 4 else -1,
        )
        for i in range(8)
    ]


def sharing(model: str = "dummy://qwen3-tiny", size: int = 2, **settings: object) -> ResolvedConfig:
    """Several ranks on CPUs, which users cannot ask for."""
    config = resolved_config(model, **SIZES, **settings)
    return config.model_copy(update={"tensor_parallel_size": size})


def first_rank(config: ResolvedConfig, ranks: JoinedRanks, hooks: EngineHooks) -> Engine:
    """As the other ranks do it for themselves."""
    engine = build_engine(config, resolve(config.model.uri), hooks, group=ranks.group)
    prepare(config, engine)
    return engine


def write_model(folder: Path, dummy: str, **changed: object) -> str:
    """A model with random weights, in files; its path."""
    config = {**DUMMIES[dummy], **changed}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = Recorded()
    build_decoder(Reader(spec_from(config), weights, torch.float32, WHOLE_ON_CPU), TORCH)
    save_file(weights.tensors, folder / "model.safetensors")
    return str(folder)


def with_adapters(asked: list[Generate], adapters: dict[str, Path]) -> list[Generate]:
    """The same requests, two of three with an adapter."""
    keys = ["", *(adapter_key(name, folder) for name, folder in adapters.items())]
    return [replace(one, adapter=keys[i % len(keys)]) for i, one in enumerate(asked)]


@pytest.mark.parametrize(
    ("name", "size", "overlap", "adapted"),
    [
        ("qwen3-tiny", 2, True, None),
        ("qwen3-tiny", 4, True, "adapters_file"),
        ("qwen3-moe-tiny", 2, False, "adapters"),
        ("phi3-tiny", 2, False, "adapters"),
        ("olmo2-tiny", 2, True, None),
        ("gpt-oss-tiny", 2, False, None),
        ("gemma3-tiny", 2, True, None),
        ("granite-tiny", 2, False, "adapters"),
        (ONE_KEY_HEAD, 2, False, None),
        *(
            pytest.param(*rest, marks=pytest.mark.full)
            for rest in (
                ("qwen3-tiny", 2, False, "adapters_file"),
                ("qwen3-tiny", 2, True, "adapters"),
                ("qwen2-tiny", 2, False, None),
                ("glm4-tiny", 2, False, "adapters"),
                ("phi3-tiny", 4, True, "adapters"),
                ("mixtral-tiny", 2, False, None),
            )
        ),
    ],
)
def test_ranks_answer_as_one(
    name: str, size: int, overlap: bool, adapted: str | None, tmp_path: Path
) -> None:
    """Four ranks have two copies of each of two key heads."""
    model = f"dummy://{name}"
    if name == ONE_KEY_HEAD:
        model = write_model(tmp_path, "qwen3-tiny", num_key_value_heads=1)
    names = "ab" if adapted else ""
    adapters = {
        each: write_random_adapter(tmp_path / each, i, name) for i, each in enumerate(names)
    }
    settings: dict[str, object] = {"attention_backend": "torch"}
    asked = with_adapters(requests(), adapters) if adapted else requests()
    if adapted:
        refs = tuple({"name": n, "uri": str(path)} for n, path in adapters.items())
        (tmp_path / "adapters.json").write_text(json.dumps({"adapters": refs}))
        told = {"adapters": refs, "adapters_file": str(tmp_path / "adapters.json")}
        settings |= {adapted: told[adapted], "max_loras_per_batch": 1}
    plain = run_engine(engine_config(model, **SIZES, **settings), asked)
    run, config = Run(), sharing(model, size, **settings)
    recorder = Recorder(run)

    def of_requests(batch: Batch, logits: torch.Tensor) -> None:
        if batch.step:  # none of the warm-up
            recorder(batch, logits)

    with joined_ranks(config, torch.device("cpu")) as ranks:
        engine = first_rank(config, ranks, EngineHooks(on_logits=of_requests))
        for folder in adapters.values():
            shutil.rmtree(folder)  # each rank has read it: no step does
        with closing(engine.executor(overlap=overlap, announce=ranks.announce)) as executor:
            drive(engine.scheduler, executor, run, recorder, asked, ())
        assert engine.pool.shape.kv_heads == 1, "each rank holds one of the two heads"
        # With one slot few requests run at once.
        assert engine.scheduler.status().retractions > 0 or adapted
    assert run.tokens == plain.tokens
    assert tokens_scored(run) == tokens_scored(plain)
    for name, logits in plain.logits.items():
        torch.testing.assert_close(
            torch.stack(run.logits[name]), torch.stack(logits), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dummy", ["gpt-oss-tiny", "qwen3-tiny"])
def test_ranks_share_packed_groups_unevenly(
    dummy: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine groups of 32 inputs: experts in MXFP4, and FP8 in blocks beside an adapter."""
    monkeypatch.setattr(layer_tensors, "can_pack", lambda device: True)
    path = [str(Path(__file__).parent / "packing"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    plain, quantised, meant = (tmp_path / name for name in ("plain", "quantised", "meant"))
    sizes = {"intermediate_size": 288, "num_attention_heads": 8}
    write_model(plain, dummy, **sizes)
    quantised.mkdir()
    meant.mkdir()
    settings: dict[str, object] = {"attention_backend": "torch"}
    asked = requests()
    if dummy == "gpt-oss-tiny":
        write_mxfp4(plain, quantised, meant)
    else:
        write_quantised(plain, "compressed-block", quantised)
        adapter = write_random_adapter(tmp_path / "a", 0, dummy, **sizes)
        asked = with_adapters(asked, {"a": adapter})
        settings |= {"adapters": ({"name": "a", "uri": str(adapter)},)}
    alone = run_engine(engine_config(str(quantised), **SIZES, **settings), asked)
    run, config = Run(), sharing(str(quantised), size, **settings)
    with joined_ranks(config, torch.device("cpu")) as ranks:
        engine = first_rank(config, ranks, EngineHooks())
        widths = {matrix.shape[-1] for matrix in reached(engine.model, PackedMatrix)}
        assert max(widths) == {2: 160, 4: 96}[size]
        with closing(engine.executor(overlap=False, announce=ranks.announce)) as executor:
            drive(engine.scheduler, executor, run, Recorder(run), asked, ())
    assert run.tokens == alone.tokens


def test_two_ranks_split_a_chunk_alike() -> None:
    plain = run_engine(engine_config("dummy://qwen3-tiny", **SIZES), requests())
    run, config = Run(), sharing(attention_backend="torch")
    with joined_ranks(config, torch.device("cpu")) as ranks:
        engine = first_rank(config, ranks, EngineHooks())
        engine.scheduler._pacing._choice = SplitChunk(24, LayerSplit(32, 1))
        with closing(engine.executor(overlap=True, announce=ranks.announce)) as executor:
            drive(engine.scheduler, executor, run, Recorder(run), requests(), ())
    assert run.modes["SPLIT_PREFILL"]
    assert run.tokens == plain.tokens


def tokens_scored(run: Run) -> list[tuple[str, int]]:
    """Requests and tokens of which logprobs were told, of answers and of prompts."""
    scores = [(delta.request_id, delta.logprobs, delta.prompt_logprobs) for delta in run.deltas]
    found = [(name, each) for name, own, prompt in scores for each in (own, prompt or ())]
    return sorted((name, score.token_id) for name, each in found for score in each)


def test_the_death_of_a_rank_is_told() -> None:
    told: list[str] = []
    happened = threading.Event()

    def on_death(what: str) -> None:
        told.append(what)
        happened.set()

    with joined_ranks(sharing(), torch.device("cpu"), on_death):
        (other,) = other_ranks()
        os.kill(other, signal.SIGKILL)
        assert happened.wait(PATIENCE_SECONDS)
    assert told == [
        "the rank 1 of 2 process was ended by SIGKILL (out of memory?); "
        "ranks compute together, so the engine ends"
    ]


def other_ranks() -> list[int]:
    """Processes that this one has started to compute as ranks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if "sluice_runtime.engine.rank" in words and str(os.getpid()) in words:
                found.append(int(folder.name))
    return found
