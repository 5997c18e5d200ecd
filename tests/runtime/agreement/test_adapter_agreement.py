"""Rows of the model and of its adapters in one batch answer as PEFT does for each of them alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from sluice_contract.config.engine import AttentionBackend
from sluice_runtime.model import layer_tensors
from sluice_runtime.model.adapters import adapter_key
from sluice_runtime.wire.messages import Generate

from tests.runtime.agreement.adapters import ALL, ATTENTION, AdapterOracle, write_adapter
from tests.runtime.agreement.oracle import Oracle, PairOf, assert_agrees
from tests.runtime.harness import Run, engine_config, generate, run_engine
from tests.runtime.model.quantised_checkpoints import write_mxfp4, write_quantised

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("transformers")]

ADAPTERS: Mapping[str, dict[str, object]] = {
    "all": {},
    "attention": {"r": 8, "lora_alpha": 16, "use_rslora": True, "target_modules": ATTENTION},
    "one-layer": {"r": 2, "layers_to_transform": [1], "target_modules": ["down_proj", "v_proj"]},
}


@dataclass(frozen=True)
class Adapted:
    """A model with adapters, and who knows what each of them answers; "" is the model."""

    model: Path
    folders: Mapping[str, Path]
    oracles: Mapping[str, Oracle]

    def key(self, name: str) -> str:
        return adapter_key(name, self.folders[name]) if name else ""


@pytest.fixture(scope="module")
def adapted(pair_of: PairOf, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    model, oracle = pair_of("qwen3")
    folders = {
        name: write_adapter(model, tmp_path_factory.mktemp(name), seed, **settings)
        for seed, (name, settings) in enumerate(ADAPTERS.items())
    }
    oracles = {name: AdapterOracle(model, folder) for name, folder in folders.items()}
    return Adapted(model, folders, {"": oracle, **oracles})


def requests_of(adapted: Adapted, count: int, prefix: int = 0) -> dict[str, list[Generate]]:
    """By adapter, in turns; all prompts begin with the same `prefix` tokens."""
    draw = random.Random(5)
    shared = [draw.randrange(256) for _ in range(prefix)]
    found: dict[str, list[Generate]] = {name: [] for name in adapted.oracles}
    for index in range(count):
        name = list(found)[index % len(found)]
        prompt = [*shared, *(draw.randrange(256) for _ in range(draw.randint(1, 90)))]
        request = generate(f"r{index}", prompt, draw.randint(8, 24), adapter=adapted.key(name))
        found[name].append(request)
    return found


def in_turns(requests: Mapping[str, list[Generate]]) -> list[Generate]:
    everything = [request for own in requests.values() for request in own]
    return sorted(everything, key=lambda request: int(request.request_id[1:]))


def run(adapted: Adapted, requests: list[Generate], **settings: object) -> Run:
    overlap = bool(settings.pop("overlap", False))
    config = engine_config(
        str(adapted.model),
        dtype="float32",
        chunk_size=32,
        adapters=tuple({"name": n, "uri": str(path)} for n, path in adapted.folders.items()),
        **settings,
    )
    return run_engine(config, requests, overlap=overlap)


Check = Callable[..., Run]


@pytest.mark.parametrize(
    ("slots", "overlap", "backend"),
    [(8, False, "torch"), (8, True, "auto"), (1, False, "auto"), (2, True, "auto")],
)
def test_a_mixed_batch_answers_as_each_adapter_alone(
    adapted: Adapted, slots: int, overlap: bool, backend: AttentionBackend
) -> None:
    """With fewer slots than adapters they take turns."""
    requests = requests_of(adapted, 24)
    done = run(
        adapted,
        in_turns(requests),
        max_loras_per_batch=slots,
        overlap=overlap,
        attention_backend=backend,
    )
    assert done.cuts > 0
    assert done.modes["MIXED"] > 0
    for name, own in requests.items():
        assert assert_agrees(adapted.oracles[name], own, done) > 20


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("qwen3", "gptq"),
        ("qwen2", "awq"),
        ("llama", "fp8-small-blocks"),
        ("qwen3", "compressed-channel"),
        ("gpt_oss", "mxfp4"),
    ],
)
def test_packed_weights_take_adapters(
    kind: str, scheme: str, pair_of: PairOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_tensors, "can_pack", lambda device: True)
    quantised, meant = tmp_path / "quantised", tmp_path / "meant"
    quantised.mkdir()
    meant.mkdir()
    if scheme == "mxfp4":
        write_mxfp4(pair_of(kind)[0], quantised, meant)
    else:
        write_quantised(pair_of(kind)[0], scheme, quantised, meant)
    matrices = ATTENTION if kind == "gpt_oss" else ALL
    folder = write_adapter(meant, tmp_path, 1, target_modules=matrices)
    oracles = {"": Oracle(meant), "a": AdapterOracle(meant, folder)}
    adapted = Adapted(quantised, {"a": folder}, oracles)
    requests = requests_of(adapted, 8)
    done = run(adapted, in_turns(requests), attention_backend="torch")
    for name, own in requests.items():
        assert assert_agrees(adapted.oracles[name], own, done) > 5


def test_a_prefix_is_found_with_the_same_adapter_only(adapted: Adapted) -> None:
    requests = requests_of(adapted, 12, prefix=48)
    done = run(adapted, in_turns(requests), max_running_requests=1)
    for name, own in requests.items():
        assert assert_agrees(adapted.oracles[name], own, done) > 5
        first, *others = own
        assert done.cached[first.request_id] == 0
        assert all(done.cached[other.request_id] >= 48 for other in others)


def test_an_adapter_that_is_not_loaded_is_refused(adapted: Adapted) -> None:
    (request,) = [generate("r0", [1, 2], 4, adapter="other@00")]
    done = run(adapted, [request])
    (end,) = done.terminals["r0"]
    assert end.refusal == "unavailable"
    assert end.error is not None
    assert end.error.startswith("adapter other@00 is not loaded here; loaded: all@")


FUSED_MLP = ("gate_up_proj", "down_proj")


@pytest.mark.parametrize(
    ("kind", "matrices"),
    [
        ("qwen3_moe", ATTENTION),
        ("phi3-partial-rope", ("qkv_proj", "o_proj", *FUSED_MLP)),
        ("glm4-sharded", (*ATTENTION, *FUSED_MLP)),
        ("olmo2", ALL),
        ("granite", ALL),
    ],
)
def test_other_families_take_adapters(
    pair_of: PairOf, tmp_path: Path, kind: str, matrices: tuple[str, ...]
) -> None:
    """Of experts none; of matrices that a checkpoint joins, of all at once."""
    model, oracle = pair_of(kind)
    folder = write_adapter(model, tmp_path, 1, target_modules=matrices)
    adapted = Adapted(model, {"a": folder}, {"": oracle, "a": AdapterOracle(model, folder)})
    requests = requests_of(adapted, 8)
    done = run(adapted, in_turns(requests))
    for name, own in requests.items():
        assert assert_agrees(adapted.oracles[name], own, done) > 5


@pytest.mark.parametrize("method", ["NGram", "Draft"])
def test_rows_with_adapters_keep_only_drafts_that_are_theirs(adapted: Adapted, method: str) -> None:
    """The draft model has no adapter: it is right for the model's own rows, as far as it goes."""
    draft = {"draft": {"uri": str(adapted.model)}} if method == "Draft" else {}
    requests = requests_of(adapted, 12)
    done = run(adapted, in_turns(requests), speculation={"method": method, "tokens": 4, **draft})
    for name, own in requests.items():
        assert assert_agrees(adapted.oracles[name], own, done) > 10
    assert done.drafted_tokens > done.accepted_tokens > 3
