"""Quantised checkpoints agree with transformers on the numbers that they mean."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sluice_kernels import native
from sluice_kernels.packed import PackedMatrix
from sluice_runtime.model import layer_tensors, load
from sluice_runtime.model.files import resolve

from tests.runtime.agreement.cases import Case, check, random_requests
from tests.runtime.agreement.oracle import Oracle, PairOf
from tests.runtime.model.held import reached
from tests.runtime.model.quantised_checkpoints import (
    MATRICES,
    SCHEMES,
    write_mxfp4,
    write_quantised,
)

pytestmark = pytest.mark.xdist_group("transformers")

QUICK = ("fp8-blocks", "gptq")
OTHERS = [
    *((Case(chunk_size=16), scheme) for scheme in SCHEMES if scheme not in QUICK),
    (Case("llama", backend="torch"), "awq"),
    (Case("qwen2"), "gptq"),
    (Case("qwen3_moe", chunk_size=16), "awq-narrow"),
    (Case("qwen3_moe", chunk_size=16), "fp8-blocks"),
    (Case("qwen3_moe", chunk_size=16), "compressed-channel"),
    # Blocks that reach over two of the matrices which the checkpoint joins.
    (Case("phi3-partial-rope", chunk_size=16), "fp8-blocks"),
    (Case("glm4", chunk_size=16), "gptq"),
    (Case("mixtral", chunk_size=16), "awq"),
]
CASES = [
    *(pytest.param(Case(), scheme, id=scheme) for scheme in QUICK),
    *(
        pytest.param(case, scheme, id=f"{case.kind}-{scheme}", marks=pytest.mark.process)
        for case, scheme in OTHERS
    ),
]


@pytest.mark.parametrize(("case", "scheme"), CASES)
def test_answers_are_those_of_the_dequantised_model(
    pair_of: PairOf, tmp_path: Path, case: Case, scheme: str
) -> None:
    quantised, meant = tmp_path / "quantised", tmp_path / "meant"
    quantised.mkdir()
    meant.mkdir()
    write_quantised(pair_of(case.kind)[0], scheme, quantised, meant)
    check(case, quantised, Oracle(meant), random_requests(16, 120, 24))


PACKED = [
    ("qwen3", "compressed-channel"),
    *(
        pytest.param(kind, scheme, marks=pytest.mark.process)
        for kind, scheme in (
            ("qwen3", "gptq-no-zeros"),
            ("llama", "compressed-block"),
            ("qwen2", "gptq"),
            ("mixtral", "fp8-small-blocks"),
            ("mixtral", "awq"),
            # Its checkpoint joins matrices; theirs reorder queries and keys.
            ("phi3-partial-rope", "gptq-v2"),
            ("glm4", "awq"),
            ("olmo2", "modelopt"),
        )
    ),
]


@pytest.fixture
def packing_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stay packed, as on a GPU; the reference multiplies them."""
    monkeypatch.setattr(layer_tensors, "can_pack", lambda device: True)


@pytest.mark.usefixtures("packing_device")
@pytest.mark.parametrize(("kind", "scheme"), PACKED)
def test_packed_weights_answer_as_their_numbers_do(
    pair_of: PairOf, tmp_path: Path, kind: str, scheme: str
) -> None:
    quantised, meant = tmp_path / "quantised", tmp_path / "meant"
    quantised.mkdir()
    meant.mkdir()
    write_quantised(pair_of(kind)[0], scheme, quantised, meant)
    assert packed_bytes(quantised) > 0
    case = Case(kind, chunk_size=16, backend="torch")
    check(case, quantised, Oracle(meant), random_requests(16, 120, 24))


def packed_bytes(folder: Path) -> int:
    """Bytes of all packed matrices that the loaded model reaches."""
    decoder = load.load_model(resolve(str(folder)), "float32", 0, "torch")
    return sum(part.nbytes for matrix in reached(decoder, PackedMatrix) for part in matrix.parts)


@pytest.mark.usefixtures("packing_device")
@pytest.mark.process
def test_packed_experts_in_mxfp4_answer_as_their_numbers_do(
    pair_of: PairOf, tmp_path: Path
) -> None:
    quantised, meant = tmp_path / "quantised", tmp_path / "meant"
    quantised.mkdir()
    meant.mkdir()
    write_mxfp4(pair_of("gpt_oss")[0], quantised, meant)
    assert packed_bytes(quantised) > 0
    check(Case("gpt_oss"), quantised, Oracle(meant), random_requests(16, 120, 24))


@pytest.mark.process
def test_experts_in_mxfp4_answer_as_their_numbers_do(pair_of: PairOf, tmp_path: Path) -> None:
    quantised, meant = tmp_path / "quantised", tmp_path / "meant"
    quantised.mkdir()
    meant.mkdir()
    write_mxfp4(pair_of("gpt_oss")[0], quantised, meant)
    check(Case("gpt_oss"), quantised, Oracle(meant), random_requests(16, 120, 24))


def in_8_bits(weight: torch.Tensor) -> torch.Tensor:
    """Each row as whole multiples of a 127th of its largest number."""
    rows = []
    for row in weight:
        step = float(row.abs().max()) / 127
        rows.append(torch.tensor([round(number / step) * step for number in row.tolist()]))
    return torch.stack(rows)


@pytest.mark.skipif(native.load() is not None, reason="the kernels were not built")
@pytest.mark.parametrize(
    "case",
    [
        Case("qwen3-untied", weights="int8"),
        pytest.param(Case("qwen2", weights="int8"), marks=pytest.mark.process),
        pytest.param(Case("qwen3_moe", chunk_size=16, weights="int8"), marks=pytest.mark.process),
        pytest.param(Case("phi3-partial-rope", weights="int8"), marks=pytest.mark.process),
    ],
    ids=str,
)
def test_weights_of_8_bits_answer_as_their_numbers_do(
    pair_of: PairOf, tmp_path: Path, case: Case
) -> None:
    """Each row of a matrix is rounded; tables of embeddings, norms and routers are not."""
    model = pair_of(case.kind)[0]
    folder = shutil.copytree(model, tmp_path / "untied")
    meant = shutil.copytree(model, tmp_path / "meant")
    for target, rounded in ((folder, False), (meant, True)):
        tensors = load_file(model / "model.safetensors")
        # Tied ones have one table, of which the head is rounded alone.
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
        for name in tensors if rounded else ():
            if name.split(".")[-2] in (*MATRICES, "lm_head") and name.endswith("weight"):
                tensors[name] = in_8_bits(tensors[name])
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
        config = (model / "config.json").read_text()
        (target / "config.json").write_text(
            config.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
        )
    check(case, folder, Oracle(meant), random_requests(16, 120, 24))
