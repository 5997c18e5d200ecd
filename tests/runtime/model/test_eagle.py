"""A head is read whole and counted whole, and what is not one is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.engine.sizing.pool_size import LoadedModel, model_bytes
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.eagle import head_spec, load_head
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import DUMMIES, resolve

from tests.runtime import eagle_folder
from tests.runtime.eagle_folder import HEAD, TARGETS, Tensors, random_head, write
from tests.runtime.harness import engine_config, resolved_config

IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    return write(folder, TARGETS["qwen3"], eagle_folder.random_target("qwen3"))


def drafting(target: Path, head: Path | str) -> dict[str, Any]:
    speculation = {"method": "Eagle", "draft": {"uri": str(head)}}
    return {"uri": str(target), "max_running_requests": 2, "speculation": speculation}


def engine_of(target: Path, head: Path | str) -> Engine:
    config = resolved(engine_config(**drafting(target, head)))
    return build_engine(config, resolve(config.model.uri))


def without(*names: str) -> Tensors:
    return {name: tensor for name, tensor in random_head().items() if name not in names}


WRONG_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "a whole model": (
        {"architectures": ["LlamaForCausalLM"]},
        "architectures: ['LlamaForCausalLM'] is not allowed; allowed: ['LlamaForCausalLMEagle3'], "
        "an EAGLE-3 head",
    ),
    "two layers": (
        {"num_hidden_layers": 2},
        "num_hidden_layers: 2 is not allowed; allowed: 1",
    ),
    "another vocabulary": (
        {"vocab_size": 300},
        "vocab_size: 300 is not allowed; allowed: 259 (the model's)",
    ),
    "another size": (
        {"hidden_size": 32},
        "target_hidden_size: 32 is not allowed; allowed: 64 (the model's hidden_size)",
    ),
    "more than all tokens": (
        {"draft_vocab_size": 260},
        "draft_vocab_size: 260 is not allowed; allowed: at most 259 (the model's vocab_size)",
    ),
    "other norms": (
        {"norm_before_residual": True},
        "norm_before_residual: True is not allowed; allowed: False",
    ),
    "no states of the model": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        "eagle_config.use_aux_hidden_state: False is not allowed; allowed: true, as EAGLE-3 has it",
    ),
    "two states": (
        {"eagle_config": {IDS: [1, 3]}},
        f"eagle_config.{IDS}: [1, 3] is not allowed; allowed: 3 different layers of the model's, "
        "0 to 7",
    ),
    "states of layers that are not there": (
        {"eagle_config": {IDS: [1, 3, 8]}},
        f"eagle_config.{IDS}: [1, 3, 8] is not allowed; allowed: 3 different layers of the "
        "model's, 0 to 7",
    ),
    "states that may be counted in two ways": (
        {IDS: [1, 3, 5]},
        f"{IDS}: [1, 3, 5] is not allowed; allowed: absent; eagle_config.{IDS} instead",
    ),
    "a bias": (
        {"attention_bias": True},
        "attention_bias: True is not allowed; allowed: absent or False",
    ),
}


@pytest.mark.parametrize("case", WRONG_CONFIGS)
def test_another_config_is_refused_by_its_key(target: Path, tmp_path: Path, case: str) -> None:
    changed, said = WRONG_CONFIGS[case]
    head = write(tmp_path / "head", HEAD | changed, random_head())
    with pytest.raises(ModelLoadError) as refused:
        engine_of(target, head)
    assert str(refused.value) == f"speculation.draft.uri: config.json: {said}"


WRONG_TENSORS: dict[str, tuple[Tensors, str]] = {
    "a missing matrix": (
        without("fc.weight"),
        "{folder}: tensor fc.weight is missing; wanted shape [64, 192]",
    ),
    "no map": (without("d2t"), "{folder}: tensor d2t is missing; wanted shape [120]"),
    "a matrix of one input": (
        without() | {"midlayer.self_attn.q_proj.weight": torch.zeros(64, 64)},
        "{file}: tensor midlayer.self_attn.q_proj.weight has shape [64, 64]; config.json needs "
        "[64, 128]",
    ),
    "a map of other numbers": (
        without() | {"d2t": torch.zeros(120)},
        "{file}: tensor d2t has type F32; allowed: I64 as config.json describes it",
    ),
    "a map out of the vocabulary": (
        without() | {"d2t": torch.full((120,), 200)},
        "{file}: tensor d2t leads to tokens 200 to 319; allowed: 0 to 258",
    ),
    "more than a head": (
        without() | {"fc.bias": torch.zeros(64)},
        "tensor fc.bias in {file} is not part of LlamaForCausalLMEagle3",
    ),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_other_tensors_are_refused_by_name(target: Path, tmp_path: Path, case: str) -> None:
    tensors, said = WRONG_TENSORS[case]
    head = write(tmp_path / "head", HEAD, tensors)
    with pytest.raises(ModelLoadError) as refused:
        engine_of(target, head)
    places = {"folder": head, "file": head / eagle_folder.FILE}
    assert str(refused.value) == f"speculation.draft.uri: {said.format_map(places)}"


def test_a_model_that_scales_its_embeddings_has_no_head(tmp_path: Path) -> None:
    """It would have to scale them likewise."""
    files = resolve(str(write(tmp_path / "head", HEAD, random_head())))
    with pytest.raises(ModelLoadError, match="no head with Gemma3ForCausalLM"):
        head_spec(files, spec_from(DUMMIES["gemma3-tiny"]))


def test_a_head_that_is_no_folder_is_named(target: Path, tmp_path: Path) -> None:
    for head in (tmp_path / "none", "dummy://llama-tiny"):
        with pytest.raises(ModelLoadError, match=r"^speculation\.draft\.uri: "):
            engine_of(target, head)


@pytest.mark.parametrize(
    ("counted", "entered"), [(None, (2, 4, 5)), ([4, 0, 2], (1, 3, 5)), ([7, 1, 3], (2, 4, 8))]
)
def test_a_head_counts_the_layers_that_states_leave(
    tmp_path: Path, counted: list[int] | None, entered: tuple[int, ...]
) -> None:
    more = {"eagle_config": {IDS: counted}} if counted else {}
    head = write(tmp_path / "head", HEAD | more, random_head())
    assert head_spec(resolve(str(head)), spec_from(TARGETS["qwen3"])).taps == entered


def test_a_model_of_few_layers_needs_layers_that_are_told(tmp_path: Path) -> None:
    short = TARGETS["qwen3"] | {"num_hidden_layers": 4}
    target = write(tmp_path / "target", short, {})
    head = write(tmp_path / "head", HEAD, random_head())
    with pytest.raises(ModelLoadError, match=r"allowed: 3 different layers of the model's, 0 to 3"):
        engine_of(target, head)


@pytest.mark.parametrize("embedding", [True, False])
def test_its_weights_and_pages_are_part_of_the_plan(
    target: Path, tmp_path: Path, embedding: bool
) -> None:
    tensors = random_head(embedding=embedding)
    head = write(tmp_path / "head", HEAD, tensors)
    spec = spec_from(TARGETS["qwen3"])
    alone = model_bytes(resolved_config(str(target)), spec, 1)
    both = model_bytes(resolved_config(**drafting(target, head)), spec, 1)
    values = sum(tensor.numel() for name, tensor in tensors.items() if name not in ("d2t", "t2d"))
    assert both.weights - alone.weights == 4 * values
    assert both.token - alone.token == 4 * 2 * 2 * 16
    engine = engine_of(target, head)
    assert engine.pool.draft is not None
    assert engine.pool.draft.shape.bytes_per_token == both.token - alone.token
    assert engine.pool.draft.pages == engine.pool.pages
    loaded = load_head(head_spec(resolve(str(head)), spec), engine.model, engine.device.place)
    config = resolved_config(str(target))
    assert LoadedModel(config, engine.model, 4096, loaded).bytes_per_token == both.token
