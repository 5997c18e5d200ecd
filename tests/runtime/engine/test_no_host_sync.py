"""Launching a step waits for nothing on the device, whatever its rows ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
import torch
from sluice_runtime.engine.device import CPU
from sluice_runtime.engine.draft import DraftDraws, DraftModel
from sluice_runtime.engine.eagle import EagleDrafts
from sluice_runtime.engine.rows import RowSizes, allocated_rows
from sluice_runtime.engine.runner import Runner
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers import experts
from sluice_runtime.layers.attention import GraphRows, LayerKind
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.layers.dense import linear
from sluice_runtime.layers.stacks import FusedLayer
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.eagle import EagleHead
from sluice_runtime.model.families.registry import family_of, spec_from
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.parallel.group import SOLO
from sluice_runtime.scheduler.batch import (
    NO_TOKEN,
    Batch,
    ExtendRow,
    ForwardMode,
    PagesAppended,
    PagesReplaced,
    RowAdded,
    VerifyRow,
)
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.wire.messages import Sampling
from torch import Tensor

from tests.runtime.host_sync import GPU, FakeGpu, HostSyncError, fake_tensors, no_host_sync

PAGE_TOKENS = 4
ROWS = 6


class WeightsWithoutContent:
    """See `model.weights.WeightSource`."""

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        return torch.empty(part.shape, dtype=dtype, device=GPU)

    def settle(self) -> None: ...

    def unread(self) -> list[str]:
        return []


def head_of(decoder: Decoder) -> EagleHead:
    """Of an EAGLE-3 head, from what enters and leaves the model's one layer."""
    spec = decoder.spec
    size, width = spec.vocabulary_size, spec.hidden_size
    reader = Reader(spec, WeightsWithoutContent(), decoder.dtype, Placement(GPU))
    layer = family_of(spec).read_layer(reader, "midlayer", 2 * width)
    return EagleHead(
        spec=spec,
        taps=(1, 1, 1),
        vocabulary_size=size,
        embedding=decoder.embedding,
        fc=linear(reader.matrix("fc", width, 3 * width)),
        hidden_norm=reader.norm("midlayer.hidden_norm", width),
        layer=FusedLayer([layer], family_of(spec).layer_shape(spec, SOLO), TORCH.operators),
        norm=reader.norm("norm", width),
        output=linear(reader.matrix("lm_head", 100, width)),
        token_ids=torch.arange(100, device=GPU),
        frequencies=decoder.frequencies,
        backend=TORCH,
    )


class PlannedAttention:
    """Attention of a graph, whose plan reads the host's numbers alone."""

    def __init__(self, rows: GraphRows) -> None:
        assert {each.device for each in (rows.indptr, rows.indices, rows.last_page_len)} == {GPU}
        self.batch = len(rows.last_page_len)

    def plan(self, indptr: Tensor, last_page_len: Tensor) -> None:
        assert (len(indptr), len(last_page_len)) == (self.batch + 1, self.batch)
        assert {indptr.device, last_page_len.device} == {CPU}

    def run_with(self, _: LayerKind) -> Callable[..., Tensor]:
        return lambda *_, out, **__: out


@contextmanager
def runner_of(
    model: str = "dummy://qwen3-tiny", *, head: bool = False, backend: Backend = TORCH
) -> Iterator[Runner]:
    spec: ModelSpec = replace(spec_from(resolve(model).config), layers=1)
    dtype = torch.bfloat16
    size = spec.vocabulary_size
    with fake_tensors():
        reader = Reader(spec, WeightsWithoutContent(), dtype, Placement(GPU))
        decoder = build_decoder(reader, backend)
        shape = KvShape(spec.layers, spec.kv_heads, spec.head_dim, dtype)
        pool = PagePool(shape, 64, PAGE_TOKENS, GPU, shape)
        assert pool.draft is not None
        matchers = Matchers(size)
        rows = allocated_rows(decoder, pool, RowSizes(ROWS, 64), FakeGpu(), matchers)
        draws = DraftDraws(rows.sampling, matchers, FakeGpu())
        own = pool.draft, rows.table, draws, FakeGpu()
        follows = EagleDrafts(head_of(decoder), *own, most=4) if head else None
        drafts = follows or DraftModel(decoder, *own)
        runner = Runner(decoder, pool, rows, FakeGpu(), draft=drafts)
        if follows is not None:
            runner.follow_with(follows)
        with no_host_sync():
            yield runner


def added(row: int, prompt: int, sampling: Sampling, samples: bool = True, **asks: Any) -> Batch:
    ids = tuple(range(prompt))
    pages = tuple(range(10 * row, 10 * row + 1 + prompt // PAGE_TOKENS))
    return Batch(
        row,
        ForwardMode.EXTEND,
        added_rows=(RowAdded(row, f"r{row}", sampling, prompt, key_of(ids), (3,), **asks),),
        appended_pages=(PagesAppended(row, pages),),
        extend_rows=(ExtendRow(row, 0, ids, samples),),
    )


DECODE = Batch(8, ForwardMode.DECODE, decode_rows=(0, 1))
MIXED = Batch(
    9,
    ForwardMode.MIXED,
    extend_rows=(ExtendRow(2, 6, (4, 5, 6), samples=True),),
    decode_rows=(0, 1),
)
CHANGED = Batch(
    10,
    ForwardMode.DECODE,
    replaced_pages=(PagesReplaced(0, 0, (30,)),),
    dropped_rows=(1, 2),
    appended_pages=(PagesAppended(0, (31, 32)),),
    decode_rows=(0,),
)
VERIFIED = Batch(
    11,
    ForwardMode.TARGET_VERIFY,
    draft_rows=(ExtendRow(0, 0, tuple(range(11)), samples=False),),
    verify_rows=(VerifyRow(0, 11, (4, NO_TOKEN, NO_TOKEN)),),
)
RESUMED = Batch(
    12,
    ForwardMode.DECODE,
    added_rows=(RowAdded(3, "r3", Sampling(0.0), 5, computed_tokens=5, last_token=7),),
    appended_pages=(PagesAppended(3, (40, 41)), PagesAppended(3, (42,))),
    decode_rows=(3,),
)


@dataclass(frozen=True)
class Asked:
    """What the rows of a run ask for."""

    sampling: Sampling
    logprobs: int = -1
    prompt_logprobs: int = -1


ASKED = {
    "greedy": Asked(Sampling(temperature=0.0)),
    "drawn": Asked(Sampling(seed=7)),
    "restricted": Asked(Sampling(top_p=0.9, top_k=20, min_p=0.1)),
    "penalised": Asked(Sampling(presence_penalty=0.1, frequency_penalty=0.2)),
    "repeated": Asked(Sampling(repetition_penalty=1.2)),
    "biased": Asked(Sampling(temperature=0.0, min_tokens=3, logit_bias=[(5, 2.0)])),
    "scored": Asked(Sampling(), logprobs=2),
    "prompt scored": Asked(Sampling(temperature=0.0), logprobs=0, prompt_logprobs=3),
}
QUICK = ("greedy",)


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """Torch prepares what each operator does with fake tensors when it meets them first."""
    check_that_nothing_is_waited_for(ASKED["greedy"])


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.process) for name in ASKED],
)
def test_steps_are_launched_without_waiting(name: str) -> None:
    """A prompt, two more, decode rows, a chunk beside them, rows that change and one resumed."""
    check_that_nothing_is_waited_for(ASKED[name])


@pytest.mark.process
@pytest.mark.parametrize("fused", [True, False])
def test_experts_are_computed_without_waiting(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "can_fuse", lambda weights: fused)
    check_that_nothing_is_waited_for(ASKED["greedy"], "dummy://qwen3-moe-tiny")
    check_that_nothing_is_waited_for(ASKED["greedy"], "dummy://gpt-oss-tiny")


@pytest.mark.process
def test_windows_norms_and_scales_of_gemma_are_computed_without_waiting() -> None:
    check_that_nothing_is_waited_for(ASKED["greedy"], "dummy://gemma3-tiny")


@pytest.mark.process
@pytest.mark.parametrize("name", ["mixtral", "phi3", "glm4", "olmo2", "granite"])
def test_other_families_are_computed_without_waiting(name: str) -> None:
    check_that_nothing_is_waited_for(ASKED["greedy"], f"dummy://{name}-tiny")


@pytest.mark.process
@pytest.mark.parametrize("name", ["drawn", "scored"])
def test_a_head_follows_and_drafts_without_waiting(name: str) -> None:
    check_that_nothing_is_waited_for(ASKED[name], head=True)


def check_that_nothing_is_waited_for(
    asked: Asked, model: str = "dummy://qwen3-tiny", *, head: bool = False
) -> None:
    scores: dict[str, Any] = {"logprobs": asked.logprobs, "prompt_logprobs": asked.prompt_logprobs}
    verified = msgspec.structs.replace(VERIFIED, draft_rows=()) if head else VERIFIED
    with runner_of(model, head=head) as runner:
        batches = [
            added(0, 9, asked.sampling, **scores),
            added(1, 3, asked.sampling, **scores),
            added(2, 6, asked.sampling, samples=False),
            DECODE,
            MIXED,
            CHANGED,
            *([] if asked.sampling.penalises else [verified]),
            RESUMED,
            Batch(13, ForwardMode.IDLE, dropped_rows=(0, 3)),
        ]
        launched = [runner.launch(batch) for batch in batches]
        with pytest.raises(HostSyncError):
            launched[0].land()
        assert launched[-1].land().token_ids == ()


def test_a_decode_step_of_graphs_is_launched_without_waiting() -> None:
    """From its rows' last tokens to their next ones, with pages that are new and rows that leave.
    What graphs capture runs while they are captured, where nothing may be waited for either."""
    from sluice_kernels.triton import operators

    kernels: dict[str, Any] = {
        "sample_rows": operators.sample_rows,
        "decode_inputs": operators.decode_inputs,
    }
    replayed: list[Callable[[], None]] = []

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        step()
        return lambda: replayed.append(step)

    with runner_of(backend=replace(TORCH, **kernels)) as runner:
        runner.capture((1, ROWS), PlannedAttention, capture, (1, ROWS))
        for row, prompt in enumerate((9, 3, 6)):
            runner.launch(added(row, prompt, Sampling(seed=row, top_p=0.9)))
        for batch in (DECODE, DECODE, CHANGED):
            replayed.clear()
            launched = runner.launch(batch)
            assert len(replayed) == 2, "layers, then sampling"
        with pytest.raises(HostSyncError):
            launched.land()


@pytest.mark.parametrize(
    "waiting",
    [lambda logits: logits.max().item(), lambda logits: logits.cpu()],
    ids=["item", "copy"],
)
def test_a_wait_in_a_step_is_found(
    waiting: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with runner_of() as runner:
        monkeypatch.setattr(runner, "_on_logits", lambda batch, logits: waiting(logits))
        with pytest.raises((HostSyncError, RuntimeError)):
            runner.launch(added(0, 3, Sampling(temperature=0.0)))
