"""An EAGLE-3 head drafts what its published maths says, and answers do not depend on it.

The reference takes the model's hidden states from transformers, and computes the head in plain
torch over whole sequences: no pages, no chunks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from sluice_runtime.engine.build import EngineHooks, build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.scheduler.batch import NO_TOKEN
from sluice_runtime.scheduler.prefill_planner import Drafts
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.speculation import Speculation
from sluice_runtime.wire.messages import Generate
from torch import Tensor

from tests.pairwise import matrix
from tests.runtime import eagle_folder
from tests.runtime.agreement.test_speculation_agrees import (
    SETUPS,
    assert_drafts_are_right,
    ends,
    requests_of,
)
from tests.runtime.harness import Run, engine_config, generate, run_engine

pytestmark = pytest.mark.xdist_group("transformers")

TOLERANCE = 1e-4
"""Of the spread of logits: a draft may be another token than the reference's best by rounding."""


@dataclass(frozen=True)
class Drafted:
    """What was proposed behind `token_ids`."""

    token_ids: tuple[int, ...]
    drafts: tuple[int, ...]


def drafted_by(config: dict[str, Any], requests: Sequence[Generate]) -> list[Drafted]:
    """Runs them greedily, to their ends."""
    engine_of = resolved(engine_config(**config))
    hooks = EngineHooks(poison_freed_pages=True)
    engine = build_engine(engine_of, resolve(engine_of.model.uri), hooks)
    tokens = {request.request_id: list(request.prompt_ids) for request in requests}
    rows: dict[int, str] = {}
    drafted: list[Drafted] = []
    for request in requests:
        engine.scheduler.add(request)
    while (batch := engine.scheduler.next_batch(0.0)) is not None:
        rows |= {added.row: added.request_id for added in batch.added_rows}
        result = engine.runner.forward(batch)
        drafts = result.drafts_of(batch)
        for row, proposed in zip(batch.verify_rows, drafts, strict=True):
            drafted.append(Drafted(tuple(tokens[rows[row.row]]), proposed))
        for delta in engine.scheduler.process(batch, result, 0.0).deltas:
            tokens[delta.request_id] += delta.token_ids
    return drafted


def always(speculation: Speculation, running: Sequence[Request], _: object) -> Drafts:
    """Drafts 1 to 4 tokens for most rows of most steps, however bad they are."""
    draw = random.Random(sum(len(request.token_ids) for request in running))
    counts = {r: min(draw.randint(0, 4), r.remaining_tokens - 1) for r in running}
    return Drafts({r: (NO_TOKEN,) * n for r, n in counts.items() if n > 0}, {})


class Reference:
    """A model and its head."""

    def __init__(self, target: Path, config: dict[str, Any], head: eagle_folder.Tensors) -> None:
        from transformers import AutoModelForCausalLM, LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self._target: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64)
        floats = {name: tensor for name, tensor in head.items() if tensor.is_floating_point()}
        self._head = {name: tensor.double() for name, tensor in floats.items()}
        self._ids = torch.arange(len(head["d2t"])) + head["d2t"]
        self._rope: Any = LlamaRotaryEmbedding(LlamaConfig(**config))
        layers = self._target.config.num_hidden_layers
        own = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
        self._enters = sorted(i + 1 for i in own) if own else [2, layers // 2, layers - 3]

    @torch.inference_mode()
    def logits(self, drafted: Drafted) -> list[Tensor]:
        """Of each draft, given those before it; of tokens that the head knows."""
        ids, head = torch.tensor([drafted.token_ids]), self._head
        states = self._target.model(ids[:, :-1], output_hidden_states=True).hidden_states
        fused = torch.cat([states[i][0] for i in self._enters], dim=-1) @ head["fc.weight"].T
        embedding = head.get("embed_tokens.weight", self._target.model.embed_tokens.weight)
        following, logits = list(drafted.token_ids[1:]), []
        for draft in drafted.drafts:
            hidden = self._layer(embedding[torch.tensor(following)], fused)[-1:]
            normed = self._norm(hidden, "norm")
            logits.append((normed @ head["lm_head.weight"].T)[0])
            fused, following = torch.cat((fused, hidden)), [*following, draft]
        return logits

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._head[f"{name}.weight"]
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    def _times(self, x: Tensor, name: str) -> Tensor:
        return x @ self._head[f"midlayer.{name}.weight"].T

    def _layer(self, embedded: Tensor, fused: Tensor) -> Tensor:
        own = self._norm(embedded, "midlayer.input_layernorm")
        both = torch.cat((own, self._norm(fused, "midlayer.hidden_norm")), dim=-1)
        cos, sin = (part[0] for part in self._rope(both, torch.arange(len(both))[None]))

        def heads(name: str, rotated: bool) -> Tensor:
            x = self._times(both, f"self_attn.{name}_proj").view(len(both), -1, 16).transpose(0, 1)
            turned = torch.cat((-x[..., 8:], x[..., :8]), dim=-1)
            return x * cos + turned * sin if rotated else x

        query, key, value = heads("q", True), heads("k", True), heads("v", False)
        key, value = (part.repeat_interleave(2, dim=0) for part in (key, value))
        scores = query @ key.transpose(1, 2) / 4
        behind = torch.ones(len(both), len(both), dtype=torch.bool).triu(1)
        attended = scores.masked_fill(behind, float("-inf")).softmax(-1) @ value
        hidden = fused + self._times(attended.transpose(0, 1).flatten(1), "self_attn.o_proj")
        normed = self._norm(hidden, "midlayer.post_attention_layernorm")
        gated = F.silu(self._times(normed, "mlp.gate_proj")) * self._times(normed, "mlp.up_proj")
        return hidden + self._times(gated, "mlp.down_proj")

    def check(self, drafted: Drafted) -> None:
        """Each draft is the reference's best token, as far as that is clear."""
        for logits, draft in zip(self.logits(drafted), drafted.drafts, strict=True):
            assert draft in self._ids, "the head does not know it"
            given = logits[(self._ids == draft).nonzero()[0, 0]]
            allowed = TOLERANCE * (logits.max() - logits.min())
            assert logits.max() - given <= allowed, (len(drafted.token_ids), drafted.drafts)


LAYERS: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [4, 0, 2]}
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, False),
    "llama3-rope": ({"rope_scaling": eagle_folder.TARGETS["llama3"]["rope_scaling"]}, False),
    "own-embedding-other-layers": ({"eagle_config": LAYERS}, True),
}
"""Of the head: what its config.json sets, and whether it has an embedding."""


WHOLE: dict[str, Any] = {"chunk_size": -1}
CUT: dict[str, Any] = {"chunk_size": 24, "page_size": 8, "attention_backend": "torch"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "variant", "settings"),
    [
        ("llama3", "plain", WHOLE),
        ("llama3", "llama3-rope", CUT),
        ("llama3", "own-embedding-other-layers", WHOLE),
        ("qwen3", "plain", CUT),
        ("qwen3", "own-embedding-other-layers", CUT),
    ],
    ids=str,
)
def test_drafts_are_those_of_the_published_maths(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    variant: str,
    settings: dict[str, Any],
) -> None:
    monkeypatch.setattr(Speculation, "plan", always)
    more, embedding = VARIANTS[variant]
    config, tensors = eagle_folder.HEAD | more, eagle_folder.random_head(embedding=embedding)
    model = eagle_folder.TARGETS[kind], eagle_folder.random_target(kind)
    target = eagle_folder.write(tmp_path / "target", *model)
    head = eagle_folder.write(tmp_path / "head", config, tensors)
    draw = random.Random(1)
    requests = [
        generate(f"r{i}", [draw.randrange(256) for _ in range(draw.randint(2, 70))], 24)
        for i in range(8)
    ]
    speculation = {"method": "Eagle", "tokens": 4, "draft": {"uri": str(head)}}
    common = {"uri": str(target), "dtype": "float32", "speculation": speculation}
    drafted = drafted_by(common | settings, requests)
    assert len(drafted) > 60
    reference = Reference(target, config, tensors)
    for proposed in drafted:
        reference.check(proposed)


def run(target: Path, requests: list[Generate], *, overlap: bool = False, **settings: Any) -> Run:
    defaults = {"dtype": "float32", "chunk_size": 64}
    config = engine_config(str(target), **(defaults | settings))
    hooks = EngineHooks(poison_freed_pages=True)
    return run_engine(config, requests, hooks=hooks, overlap=overlap)


PAGES: list[dict[str, Any]] = [*SETUPS[:2], SETUPS[2] | {"page_size": 4}]
"""In the last, a request is sent back though most answers end soon."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "overlap"),
    matrix(PAGES, [False, True], others=pytest.mark.full, together=1),
    ids=str,
)
def test_a_head_drafts_from_pages_that_were_cached_cut_or_sent_back(
    tmp_path: Path, settings: dict[str, Any], overlap: bool
) -> None:
    target, speculation = eagle_folder.right_pair(tmp_path)
    requests = requests_of(50, 90)
    without = run(target, requests, **settings)
    drafting = run(target, requests, overlap=overlap, speculation=speculation, **settings)
    assert drafting.tokens == without.tokens
    assert ends(drafting) == ends(without)
    assert drafting.accepted_tokens > 200
    assert_drafts_are_right(drafting, len(requests), settings)


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "kind", "overlap"),
    matrix(SETUPS, ["llama3", "qwen3"], [False, True], others=pytest.mark.full, together=1),
    ids=str,
)
def test_answers_are_those_without_a_head(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    kind: str,
    overlap: bool,
) -> None:
    """It is nearly always wrong, and drafts as long as it does not have to pay."""
    monkeypatch.setattr("sluice_runtime.scheduler.speculation.LEAST_CHANCE", 0.0)
    monkeypatch.setattr("sluice_runtime.scheduler.speculation.LIKELY", 0.0)
    model = eagle_folder.TARGETS[kind], eagle_folder.random_target(kind)
    target = eagle_folder.write(tmp_path / "target", *model)
    head = eagle_folder.write(tmp_path / "head", eagle_folder.HEAD, eagle_folder.random_head())
    speculation = {"method": "Eagle", "tokens": 4, "draft": {"uri": str(head)}}
    requests = requests_of(50, 90)
    without = run(target, requests, **settings)
    drafting = run(target, requests, overlap=overlap, speculation=speculation, **settings)
    assert drafting.tokens == without.tokens
    assert ends(drafting) == ends(without)
    assert drafting.drafted_tokens > 100
