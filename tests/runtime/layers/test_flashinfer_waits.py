"""Planning and running attention on a GPU waits for nothing, and gives wrappers what does not make
them wait: numbers of the host in pinned memory, page numbers on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers import attention_flashinfer, flashinfer_graphs
from sluice_runtime.layers.attention import GraphRows, LayerKind, RowNumbers, TokenLayout
from sluice_runtime.layers.attention_flashinfer import FlashinferAttention
from sluice_runtime.layers.flashinfer_graphs import GraphWrappers
from sluice_runtime.layers.flashinfer_library import Target
from sluice_runtime.layers.flashinfer_workspace import HeadShape, graph_workspace_bytes
from sluice_runtime.layers.rope import Angles
from torch import Tensor

from tests.runtime.host_sync import GPU, fake_tensors

ON_HOST = ("qo_indptr", "indptr", "paged_kv_indptr", "last_page_len", "paged_kv_last_page_len",
           "global_override_indptr_cpu")  # fmt: skip
ON_DEVICE = ("indices", "paged_kv_indices")
HOPPER = Target(GPU, (9, 0), 132, "auto")


class Wrapper:
    """Takes plans and runs, and looks at where their tensors are."""

    def __init__(self, workspace: Tensor, **_: Any) -> None:
        self.workspace = workspace
        self.planned: list[str] = []

    def plan(self, **arguments: Any) -> None:
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                assert value.device.type == ("cpu" if name in ON_HOST else "cuda"), name
                assert name in (*ON_HOST, *ON_DEVICE)
                assert value.dtype == torch.int32
        self.planned.append("plan")

    def reset_workspace_buffer(self, **_: Any) -> None:
        """Nothing is kept."""

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        assert {x.device.type for x in (q, out, *paged_kv_cache)} == {"cuda"}
        return out


class Library:
    BatchPrefillWithPagedKVCacheWrapper = BatchDecodeWithPagedKVCacheWrapper = Wrapper

    @staticmethod
    def fast_decode_plan(wrapper: Wrapper, **arguments: Any) -> None:
        wrapper.plan(**arguments)
        wrapper.planned[-1] = "fast"


LIBRARY: Any = Library()
"""In place of flashinfer: it has what the steps here call."""


class Event:
    def record(self) -> None:
        """Of a copy."""

    def synchronize(self) -> None:
        """Of a copy that the device has made: see `attention_flashinfer`."""


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention_flashinfer, flashinfer_graphs):
        monkeypatch.setattr(module, "copy_event", lambda _: Event())
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)


def step(counts: list[int], contexts: list[int], extends: int) -> TokenLayout:
    """Without a content on the device."""
    begins, rows = np.append(0, np.cumsum(counts)), np.arange(len(counts))

    def there(*size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64, device=GPU)

    tokens, r = int(begins[-1]), len(counts)
    numbers = RowNumbers(rows, begins, np.array(contexts))
    return TokenLayout(
        there(tokens),
        there(tokens),
        there(8, 9),
        there(r),
        there(r + 1),
        there(r),
        extends,
        numbers,
    )


STEPS = {
    "prefill": ([40, 7], [40, 30], 2),
    "decode": ([1, 1, 1], [4, 16, 17], 0),
    "mixed": ([40, 1, 1], [60, 5, 9], 1),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_planned_and_run_without_waiting(name: str) -> None:
    with fake_tensors():
        pool = PagePool(KvShape(2, 2, 64, torch.bfloat16), 64, 16, GPU)
        where = step(*STEPS[name])
        angles = Angles(*torch.zeros(2, len(where.pages), 32, device=GPU))
        attention = FlashinferAttention(HOPPER, LIBRARY)(pool, where, angles)
        qkv = torch.zeros(len(where.pages), 8 + 4, 64, dtype=torch.bfloat16, device=GPU)
        for layer in range(2):
            assert attention.attend(layer, qkv, None).shape == (len(qkv), 8, 64)


def test_a_graphs_step_is_planned_without_waiting() -> None:
    """The first plan goes through the wrapper, later ones leave its buffers alone."""
    with fake_tensors():
        pool = PagePool(KvShape(2, 2, 64, torch.bfloat16), 64, 16, GPU)
        indptr, others = (torch.zeros(n, dtype=torch.int32, device=GPU) for n in (9, 8))
        kinds = LayerKind(None), LayerKind(32)
        wrappers = GraphWrappers(LIBRARY, HOPPER, kinds, pool, 8)
        wrapper = wrappers.wrapper(GraphRows(indptr, others, others))
        planned = torch.zeros(9, dtype=torch.int32), torch.ones(8, dtype=torch.int32)
        wrapper.plan(*planned)
        wrapper.plan(*planned)
    planned_by: list[Any] = [wrapper.wrappers[kind]._wrapper for kind in kinds]
    assert [planned.planned for planned in planned_by] == [["plan", "fast"]] * 2


@pytest.mark.parametrize(
    "kinds", [(LayerKind(),), (LayerKind(), LayerKind(32)), (LayerKind(sinks=True),)], ids=str
)
def test_wrappers_of_all_kinds_share_a_workspace_that_is_enough_for_each(
    kinds: tuple[LayerKind, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_flashinfer, "module_arguments", lambda *_: None)
    with fake_tensors():
        pool = PagePool(KvShape(2, 8, 128, torch.bfloat16), 64, 16, GPU)
        rows = GraphRows(*(torch.zeros(n, dtype=torch.int32, device=GPU) for n in (513, 8, 512)))
        made = GraphWrappers(LIBRARY, HOPPER, kinds, pool, 16).wrapper(rows)
        wrappers: list[Any] = [wrapper._wrapper for wrapper in made.wrappers.values()]
    (size,) = {len(wrapper.workspace) for wrapper in wrappers}
    shape, plain = HeadShape(16, 8, 128), kinds == (LayerKind(),)
    assert size == graph_workspace_bytes(shape, 132, 512, 9, plain=plain)
