"""The detector of host syncs finds those that there are, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tests.runtime.host_sync import GPU, FakeGpu, HostSyncError, fake_tensors, no_host_sync

WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool((x > 0).any()),
    "int": lambda x: int(x[0, 0]),
    "nonzero": lambda x: (x > 0).nonzero(),
    "index by a mask": lambda x: x[x > 0],
    "index by a number of the device": lambda x: x[torch.zeros((), dtype=torch.int64, device=GPU)],
    "index by a tensor of the host": lambda x: x[torch.tensor([1, 2])],
    "repeat_interleave": lambda x: x[0].repeat_interleave(x[0].long()),
    "bincount": lambda x: x[0].long().bincount(minlength=3),
    "cpu": lambda x: x.cpu(),
    "to the host": lambda x: x.to("cpu", non_blocking=True),
    "to the device": lambda x: torch.ones(8).to(GPU),
    "tensor": lambda x: torch.tensor([1, 2], device=GPU),
    "copy_": lambda x: x.copy_(torch.zeros(8, 4)),
    "sum with a tensor of the host": lambda x: x + torch.ones(4),
    "fetched too early": lambda x: FakeGpu().fetch([x])(),
}
GOES_ON: dict[str, Callable[[Tensor], object]] = {
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill_(x > 0, 0.0),
    "index by a tensor": lambda x: x[torch.arange(2, device=GPU)],
    "index_copy": lambda x: x.index_copy_(0, torch.arange(2, device=GPU), x[2:4]),
    "topk": lambda x: x.topk(3),
    "sort": lambda x: x.sort(-1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "number": lambda x: x * torch.tensor(2.0),
    "repeat_interleave": lambda x: x[0].repeat_interleave(x[0].long(), output_size=9),
    "upload": lambda x: x[FakeGpu().upload([np.arange(2)])[0]],
    "fetch": lambda x: FakeGpu().fetch([x]),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_found(name: str) -> None:
    with fake_tensors(), no_host_sync():
        x = torch.zeros(8, 4, device=GPU)
        with pytest.raises((HostSyncError, RuntimeError)):
            WAITS[name](x)


@pytest.mark.parametrize("name", GOES_ON)
def test_what_goes_on_passes(name: str) -> None:
    with fake_tensors(), no_host_sync(), torch.inference_mode():
        GOES_ON[name](torch.zeros(8, 4, device=GPU))
