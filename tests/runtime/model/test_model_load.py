"""Damaged, incomplete or foreign weights end in one line with file, tensor and shapes."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sluice_contract.config.kv_transfer import KvFingerprint, differences
from sluice_runtime.engine.build import build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.fingerprint import kv_fingerprint
from sluice_runtime.model import layer_tensors
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement
from sluice_runtime.model.load import load_model
from sluice_runtime.model.tokenizer import load_tokenizer

from tests.runtime.agreement.oracle import write_model
from tests.runtime.harness import engine_config
from tests.runtime.model.quantised_checkpoints import write_quantised

# It writes models with transformers, which one worker imports, and no other.
pytestmark = pytest.mark.xdist_group("transformers")

NORM = "model.layers.1.self_attn.k_norm.weight"
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("saved"), "qwen3")


@pytest.fixture(scope="module")
def saved_in_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("shards"), "qwen3-untied-sharded")


@pytest.fixture
def shards(saved_in_shards: Path, tmp_path: Path) -> Path:
    """A copy of the model in shards, which the test may change."""
    return shutil.copytree(saved_in_shards, tmp_path / "shards")


@pytest.fixture
def changed(saved: Path, tmp_path: Path) -> Callable[[Callable[[Tensors], object]], Path]:
    """A copy of the model with its tensors changed."""

    def change(how: Callable[[Tensors], object]) -> Path:
        tensors = load_file(saved / "model.safetensors")
        how(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text((saved / "config.json").read_text())
        return tmp_path

    return change


def load_line(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_model(resolve(str(folder)), "auto", 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_engines_started_before_and_after_the_folder_is_written_over_have_other_pages(
    changed: Callable[..., Path],
) -> None:
    def fingerprint(folder: Path) -> KvFingerprint:
        config = resolved(engine_config(str(folder)))
        engine = build_engine(config, resolve(str(folder)))
        with closing(engine.grammar_compiler):
            return kv_fingerprint("pvc", None, 1, engine.ready("epoch"))

    first = fingerprint(changed(lambda tensors: None))
    assert fingerprint(changed(lambda tensors: None)) == first
    second = fingerprint(changed(lambda tensors: tensors[NORM].mul_(0.5)))
    assert differences(first, second) == (f"weights: {first.weights} and {second.weights}",)


def test_a_missing_tensor(changed: Callable[..., Path]) -> None:
    line = load_line(changed(lambda tensors: tensors.pop(NORM)))
    assert f"{NORM} is missing" in line
    assert "[24]" in line


def test_a_tensor_of_another_shape(changed: Callable[..., Path]) -> None:
    folder = changed(lambda tensors: tensors.update({NORM: torch.ones(16)}))
    line = load_line(folder)
    for part in (NORM, "[16]", "[24]", str(folder / "model.safetensors")):
        assert part in line


def test_a_tensor_that_would_be_ignored(changed: Callable[..., Path]) -> None:
    bias = "model.layers.0.self_attn.q_proj.bias"
    line = load_line(changed(lambda tensors: tensors.update({bias: torch.ones(96)})))
    assert bias in line
    assert "Qwen3ForCausalLM" in line


def test_what_a_tied_checkpoint_repeats_is_harmless(changed: Callable[..., Path]) -> None:
    folder = changed(lambda tensors: tensors.update({"lm_head.weight": torch.ones(259, 64)}))
    assert load_model(resolve(str(folder)), "auto", 0)


def test_a_truncated_file(changed: Callable[..., Path]) -> None:
    folder = changed(lambda tensors: None)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert f"{path} is damaged" in load_line(folder)


def test_no_weights(changed: Callable[..., Path]) -> None:
    folder = changed(lambda tensors: None)
    (folder / "model.safetensors").unlink()
    assert f"{folder / 'model.safetensors'} is missing" in load_line(folder)


def test_a_shard_that_is_not_there(shards: Path) -> None:
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    shard = shards / index["weight_map"][NORM]
    shard.unlink()
    assert f"{shards}: {shard.name} is missing; model.safetensors.index.json names it" in (
        load_line(shards)
    )


def test_an_index_beside_a_file_that_it_does_not_name_is_stale(shards: Path) -> None:
    names = sorted(path.name for path in shards.glob("model-*.safetensors"))
    (shards / names[0]).rename(shards / "model.safetensors")
    for name in names[1:]:
        (shards / name).unlink()
    line = load_line(shards)
    assert f"{shards}: {names[0]}, {names[1]}, {names[2]} and 3 more are missing: " in line
    assert "model.safetensors.index.json is stale; allowed: the files that it names, or" in line


def test_shards_without_an_index(shards: Path) -> None:
    (shards / "model.safetensors.index.json").unlink()
    line = load_line(shards)
    assert f"{shards / 'model.safetensors'} is missing; model.safetensors.index.json is" in line
    assert "which says what is in model-00001-of-00006.safetensors, model-00002-of-" in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytorch_model.bin", "pytorch_model.bin is not read; allowed: model.safetensors (trans"),
        ("SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1.gguf is not read; allowed: model.safetensors (the re"),
        ("consolidated.00.pth", "consolidated.00.pth is not read"),
        ("consolidated.safetensors", "consolidated.safetensors is not read; allowed: model.safe"),
        ("tf_model.h5", "tf_model.h5 is not read"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_weights_of_another_format(
    changed: Callable[..., Path], name: str, text: str, alone: bool
) -> None:
    folder = changed(lambda tensors: None)
    (folder / "model.safetensors").rename(folder / name)
    missing = "model.safetensors is missing"
    if alone:
        (folder / "config.json").unlink()
        missing = "config.json: No such file or directory"
    assert f"{missing}; {text}" in load_line(folder)


def test_an_empty_folder(tmp_path: Path) -> None:
    assert load_line(tmp_path).endswith("No such file or directory; the folder is empty")


@pytest.mark.parametrize(
    "name", ["model-00002-of-00006.safetensors", "model.safetensors.index.json", "config.json"]
)
def test_a_pointer_of_git_lfs(shards: Path, name: str) -> None:
    (shards / name).write_bytes(POINTER)
    line = load_line(shards)
    assert f"{shards / name} is a pointer of Git LFS ({len(POINTER)} bytes), not the file" in line


def test_a_pointer_of_git_lfs_in_the_place_of_a_single_file_or_a_tokenizer(
    changed: Callable[..., Path],
) -> None:
    folder = changed(lambda tensors: None)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(POINTER)
    assert "model.safetensors is a pointer of Git LFS" in load_line(folder)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is a pointer of Git LFS"):
        load_tokenizer(resolve(str(folder)))


def test_a_damaged_shard_is_named_before_others_are_read(shards: Path) -> None:
    *_, last = sorted(shards.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1])
    told: list[int] = []
    with pytest.raises(ModelLoadError, match=f"{last} is damaged"):
        load_model(resolve(str(shards)), "auto", 0, on_read=lambda read, _: told.append(read))
    assert not told


def test_all_files_are_read_before_the_first_step(shards: Path) -> None:
    told: list[tuple[int, int]] = []
    load_model(resolve(str(shards)), "auto", 0, on_read=lambda *read: told.append(read))
    size = sum(path.stat().st_size for path in shards.glob("*.safetensors"))
    assert told == [(size, size)]


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b", "..", "", 7])
def test_an_index_leads_to_files_beside_it_only(shards: Path, name: object) -> None:
    path = shards / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][NORM] = name
    path.write_text(json.dumps(index))
    line = load_line(shards)
    assert f"{path}: weight_map names {name!r}" in line


@pytest.mark.parametrize(
    ("scheme", "packs", "held"),
    [
        ("modelopt", False, "FP8, 0 MiB read; dequantised as torch.float32"),
        ("modelopt", True, "FP8, 0 MiB read; packed, the others as torch.float32"),
        (
            "fp8-blocks",
            True,
            "FP8 in blocks of 64x40, 0 MiB read; inputs are not in whole groups of a multiple of "
            "32, so dequantised as torch.float32",
        ),
    ],
)
def test_the_log_says_how_quantised_weights_are_held(
    scheme: str,
    packs: bool,
    held: str,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(layer_tensors, "can_pack", lambda device: packs)
    caplog.set_level(logging.INFO, "sluice.engine")
    folder = write_quantised(saved, scheme, tmp_path)
    load_model(resolve(str(folder)), "float32", 0, "torch")
    assert f"weights: {held}" in [record.getMessage() for record in caplog.records]


def test_the_log_counts_matrices_of_which_a_part_is_left_out(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layer_tensors, "can_pack", lambda device: True)
    caplog.set_level(logging.INFO, "sluice.engine")
    path = write_quantised(saved, "compressed-channel", tmp_path) / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["ignore"] = ["self_attn.k_proj", "layers.0.mlp.down_proj"]
    path.write_text(json.dumps(config))
    load_model(resolve(str(tmp_path)), "float32", 0, "torch")
    parts = f"qkv in {config['num_hidden_layers']} layers, down in 1 layers"
    line = f"; not packed, as config.json lists parts: {parts}"
    assert any(record.getMessage().endswith(line) for record in caplog.records)


def test_random_weights_depend_on_the_seed_alone() -> None:
    one, same, other = (
        load_model(resolve("dummy://llama-tiny"), "bfloat16", seed) for seed in (1, 1, 2)
    )
    assert one.dtype is torch.bfloat16
    # The head is read last, after all layers.
    x = torch.ones(1, one.spec.hidden_size, dtype=torch.bfloat16)
    logits, same_logits, other_logits = (model.head(x) for model in (one, same, other))
    torch.testing.assert_close(logits, same_logits)
    assert (logits - other_logits).norm() > 0.1 * logits.norm()


def test_a_new_file_of_that_name_is_not_seen(saved: Path, tmp_path: Path) -> None:
    """How a model is replaced under a running engine: by a rename."""
    copy, new = tmp_path / "model.safetensors", tmp_path / "new"
    copy.write_bytes((saved / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    model = load_model(resolve(str(tmp_path)), "auto", 0)
    before = model.embedding.clone(), model.norm.clone()
    new.write_bytes(b"\xff" * copy.stat().st_size)
    new.replace(copy)
    assert torch.equal(model.embedding, before[0])
    assert torch.equal(model.norm, before[1])


def test_large_tensors_stay_in_the_mapped_file(saved: Path) -> None:
    model = load_model(resolve(str(saved)), "auto", 0)
    ranges = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(saved / "model.safetensors"))
    ]
    at = model.embedding.data_ptr()
    assert any(int(begin, 16) <= at < int(end, 16) for begin, end in ranges)


def test_scales_of_keys_and_values_need_pages_of_8_bits(
    changed: Callable[[Callable[[Tensors], object]], Path],
) -> None:
    """As ever: of a checkpoint that is not quantised, what is not read is refused."""

    def calibrate(tensors: Tensors) -> None:
        for prefix in {name.partition(".q_proj")[0] for name in tensors if ".q_proj" in name}:
            tensors |= {f"{prefix}.{kind}_scale": torch.tensor([0.5]) for kind in "kv"}

    files = resolve(str(changed(calibrate)))
    with pytest.raises(ModelLoadError, match=r"self_attn\.[kv]_scale in .* is not part of"):
        load_model(files, "auto", 0)
    scales = load_model(files, "auto", 0, placement=Placement(pages="fp8_e4m3")).kv_scales
    assert scales is not None
    assert scales.keys.unique().tolist() == scales.values.unique().tolist() == [0.5]
