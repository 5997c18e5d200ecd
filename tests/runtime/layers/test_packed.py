"""Weights stay packed where there is a kernel for them, and join with those that are not."""

from __future__ import annotations

import pytest
import torch
from sluice_kernels.packed import Kind, PackedMatrix, dequantised
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.layers.dense import linear
from sluice_runtime.layers.packed import as_tensor, can_pack, joined
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.load import check_groups
from sluice_runtime.model.shard import Shard

from tests.kernels.packed_matrices import packed_matrix
from tests.published_configs import CONFIGS

GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "packs"),
    [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True), ((12, 0), True)],
)
def test_nvidia_gpus_that_multiply_bfloat16_keep_weights_packed(
    capability: tuple[int, int], packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert can_pack(GPU) is packs
    assert not can_pack(torch.device("cpu"))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not can_pack(GPU)


def test_without_a_gpu_nothing_stays_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not can_pack(GPU)


def test_ranks_share_whole_groups_and_without_one_are_refused() -> None:
    """gpt-oss has 90 groups of 32 inputs, an expert of Qwen3-30B-A3B-FP8 six of 128."""
    for ranks in (2, 4, 8):
        check_groups(spec_from(CONFIGS["openai/gpt-oss-120b"]), ranks)
    spec = spec_from(CONFIGS["Qwen/Qwen3-30B-A3B-FP8"])
    check_groups(spec, 4)
    with pytest.raises(InvalidConfigError) as caught:
        check_groups(spec, 8)
    assert str(caught.value) == (
        "tensorParallelSize: 8 is not allowed; allowed: one of 1, 2, 4, so that each rank has "
        "whole groups of 128 packed inputs (FP8 in blocks of 128x128)"
    )


def test_heads_whose_values_are_a_part_of_a_group_are_refused() -> None:
    spec = spec_from(
        {**CONFIGS["Qwen/Qwen3-30B-A3B-FP8"], "head_dim": 64, "num_attention_heads": 4}
    )
    check_groups(spec, 2)
    with pytest.raises(InvalidConfigError, match="one of 1, 2, so that"):
        check_groups(spec, 4)


def test_a_feed_forward_part_is_shared_in_whole_units() -> None:
    """The 2,880 inner values of gpt-oss over eight ranks, and two outputs for each of them."""
    for outputs in (1, 2):
        whole = (3, 2880 * outputs)
        parts = [Shard(rank, 8, unit=32).inner(whole, 1, outputs) for rank in range(8)]
        groups = [part.length // (32 * outputs) for part in parts]
        assert groups == [12, 12, 11, 11, 11, 11, 11, 11]
        ends = [part.begin + part.length for part in parts]
        assert [part.begin for part in parts] == [0, *ends[:-1]]
        assert ends[-1] == 2880 * outputs


def test_a_packed_product_is_that_of_its_numbers() -> None:
    matrix, bias, x = packed_matrix(Kind.INT4, 24, 64), torch.randn(24), torch.randn(5, 64)
    wanted = x @ dequantised(matrix).T + bias
    torch.testing.assert_close(linear(matrix, bias)(x), wanted)


def test_joined_with_a_matrix_that_is_not_packed_it_is_dequantised() -> None:
    """As where modules_to_not_convert names one of several."""
    matrix, plain = packed_matrix(Kind.FP8, 8, 32), torch.randn(4, 32).bfloat16()
    both = joined([matrix, plain])
    assert isinstance(both, torch.Tensor)
    assert both.dtype is torch.bfloat16
    assert torch.equal(both, torch.cat((as_tensor(matrix, torch.bfloat16), plain)))
    assert isinstance(joined([matrix, matrix]), PackedMatrix)
    assert joined([plain]) is plain
