"""Ranks compute together what one computes, also where they outnumber the key heads, and take part
in the same exchanges in the same order. They are threads here; processes: see `test_ranks`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from sluice_contract.config.sizing import ResolvedConfig
from sluice_runtime.engine.build import build_engine
from sluice_runtime.engine.prepare import capture_graphs
from sluice_runtime.engine.warm_up import warm_up
from sluice_runtime.kv.pool import CPU, KvShape, PagePool
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.model import files
from sluice_runtime.model.adapters import adapter_key
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import DUMMIES, resolve
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder
from sluice_runtime.model.weights import RandomWeights
from sluice_runtime.parallel.group import SOLO, Group
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.wire.messages import Generate, Sampling
from torch import Tensor

from tests.pairwise import matrix
from tests.runtime.harness import Recorder, Run, drive, generate, resolved_config
from tests.runtime.layers.flashinfer_backend import engines_on_flashinfer
from tests.runtime.layers.layouts import layout
from tests.runtime.parallel.thread_ranks import Collective, ThreadRanks
from tests.runtime.random_adapter import write_random_adapter
from tests.runtime.recorded_graph import capture

HIDDEN, LAYERS, VOCABULARY = 64, 4, 259
ONE_HEAD, TWO_HEADS = "one-key-head", "qwen3-tiny"
SMALL = {"page_size": 8, "chunk_size": 24, "kv_pool_tokens": 160, "max_running_requests": 5}


@pytest.mark.parametrize(
    ("name", "heads_and_ranks"),
    matrix(DUMMIES, [(2, 2), (1, 2), (1, 4), (2, 4)], others=pytest.mark.full, together=1),
    ids=str,
)
def test_ranks_with_copies_of_key_heads_compute_what_one_computes(
    name: str, heads_and_ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every family: its matrices, biases and norms."""
    key_heads, ranks = heads_and_ranks
    spec = spec_from({**DUMMIES[name], "num_key_value_heads": key_heads})

    @torch.inference_mode()
    def logits(group: Group) -> Tensor:
        reader = Reader(spec, RandomWeights(7, CPU), torch.float32, Placement(group=group))
        model, where = build_decoder(reader, TORCH), layout(4)
        n, heads = int(where.begins[-1]), spec.rank_kv_heads(group.size)
        shape = KvShape(spec.layers, heads, spec.head_dim, torch.float32)
        pool = PagePool(shape, where.page_table.numel(), 4)
        return model.logits(model.hidden(torch.arange(n), torch.arange(n), pool, where))

    together = ThreadRanks(ranks, monkeypatch).run(logits)
    for own in together:
        torch.testing.assert_close(own, logits(SOLO), atol=1e-4, rtol=1e-4)


def requests(keys: Sequence[str] = ("",)) -> list[Generate]:
    """They share a prefix; each adapter has two."""
    return [
        generate(
            f"r{i}",
            [*range(20), *range(i, i + 1 + 7 * (i % 3))],
            12,
            sampling=Sampling(temperature=float(i % 2), seed=i),
            credit_tokens=64,
            adapter=keys[i % len(keys)],
        )
        for i in range(6)
    ]


def answers(
    config: ResolvedConfig,
    group: Group,
    batches: Sequence[SimpleQueue[Batch | None]],
    asked: list[Generate],
) -> Run:
    """As a rank's process: rank 0 schedules, the others compute its batches."""
    engine, run = build_engine(config, resolve(config.model.uri), group=group), Run()

    def announce(batch: Batch | None) -> None:
        for queue in batches[1 : group.size]:
            queue.put(batch)

    with closing(engine.grammar_compiler):
        warm_up(engine.runner, engine.settings, VOCABULARY)
        capture_graphs(engine, 4, lambda: capture)
        assert bool(engine.runner.missing_graphs) is (group.size == 1)
        if group.rank:
            for batch in iter(batches[group.rank].get, None):
                engine.runner.launch(batch).land()
            return run
        try:
            executor = engine.executor(overlap=False, announce=announce)
            drive(engine.scheduler, executor, run, Recorder(run), asked, ())
        finally:
            announce(None)
    run.graph_steps = engine.runner.graph_steps or 0
    run.drafted_tokens = engine.scheduler.status().drafted_tokens
    return run


@pytest.mark.process
@pytest.mark.parametrize(
    ("model", "size", "more"),
    [(TWO_HEADS, 4, "adapters"), (ONE_HEAD, 2, "nothing"), (TWO_HEADS, 4, "draft")],
)
def test_all_ranks_exchange_the_same_in_warm_up_capture_and_replay(
    model: str, size: int, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sums a layer, and logits joined once: a call on one rank alone would wait for ever. A
    draft model has its own number of key heads."""
    one_head = {**DUMMIES[TWO_HEADS], "num_key_value_heads": 1}
    monkeypatch.setattr(files, "DUMMIES", {**DUMMIES, ONE_HEAD: one_head})
    engines_on_flashinfer(monkeypatch)
    settings: dict[str, object] = {"attention_backend": "torch", **SMALL}
    keys = [""]
    if more == "adapters":
        folders = {name: write_random_adapter(tmp_path / name, i) for i, name in enumerate("ab")}
        settings["adapters"] = tuple({"name": n, "uri": str(p)} for n, p in folders.items())
        keys += [adapter_key(name, folder) for name, folder in folders.items()]
    if more == "draft":
        settings["speculation"] = {"method": "Draft", "draft": {"uri": f"dummy://{ONE_HEAD}"}}
    # One rank alone captures two of three graphs later, if at all.
    monkeypatch.setattr("sluice_runtime.engine.prepare.first_batches", lambda sizes: sizes[-1:])
    config, asked = resolved_config(f"dummy://{model}", **settings), requests(keys)
    ranks = ThreadRanks(size, monkeypatch)
    batches = [SimpleQueue[Batch | None]() for _ in range(size)]
    as_one = answers(config, SOLO, batches, asked)
    run = ranks.run(lambda group: answers(config, group, batches, asked))[0]
    assert run.tokens == as_one.tokens
    assert sum(run.cached.values()) > 0, "prompts were in the prefix cache"
    assert run.graph_steps > 0
    assert ranks.calls[1:] == [ranks.calls[0]] * (size - 1)
    if more == "draft":
        assert run.drafted_tokens > 0
    else:
        assert ranks.calls[0][-2 * LAYERS - 3 :] == decode_step(rows=1, size=size)


def decode_step(rows: int, size: int) -> list[Collective]:
    """Exchanges of one step: embeddings, attention and feed-forward part of each layer, logits,
    tokens."""
    sums = [Collective("all_reduce", (rows, HIDDEN), torch.float32)] * (1 + 2 * LAYERS)
    share = -(-VOCABULARY // size)
    logits = Collective("all_gather", (rows, share), torch.float32)
    return [*sums, logits, Collective("broadcast", (rows,), torch.int64)]
