"""What plain torch asks of its fused kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from sluice_runtime.layers.attention_torch import _extend
from torch import Tensor

HEADS, KV_HEADS, TOKENS, CONTEXT, DIM = 6, 2, 3, 7, 8


@pytest.mark.parametrize(
    ("device", "dtype", "masked", "grouped"),
    [
        ("cpu", torch.float32, True, True),
        ("meta", torch.bfloat16, False, True),
        ("meta", torch.bfloat16, True, False),
        ("meta", torch.float32, False, False),
    ],
)
def test_on_gpus_heads_are_repeated_where_no_fused_kernel_has_groups(
    device: str, dtype: torch.dtype, masked: bool, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []
    attend = F.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        asked.append((k.shape[1], options["enable_gqa"]))
        return attend(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    tokens = TOKENS if masked else CONTEXT
    queries = torch.zeros(tokens, HEADS, DIM, dtype=dtype, device=device)
    keys = torch.zeros(CONTEXT, KV_HEADS, DIM, dtype=dtype, device=device)
    mask = torch.zeros(tokens, CONTEXT, dtype=dtype, device=device) if masked else None
    assert _extend(queries, keys, keys, mask).shape == queries.shape
    assert asked == [(KV_HEADS if grouped else HEADS, grouped)]
