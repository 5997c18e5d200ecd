"""What the benchmark of the GPU kernels calls can be called so; without a GPU, on tensors that have
no data. flashinfer's functions are only bound, to the signatures of the version that is pinned."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu import kernels

CALLED = (
    "norm.rmsnorm",
    "apply_rope_with_cos_sin_cache_inplace",
    "append_paged_kv_cache",
    "sampling.softmax",
    "sampling.top_k_sampling_from_probs",
    "sampling.top_p_sampling_from_probs",
    "sampling.sampling_from_probs",
)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import flashinfer

    seen: list[str] = []

    def bound(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def call(*arguments: Any, **named: Any) -> Any:
            signature.bind(*arguments, **named)
            seen.append(name)
            return torch.empty_like(arguments[0])

        return call

    for path in CALLED:
        module, _, name = path.rpartition(".")
        owner = getattr(flashinfer, module) if module else flashinfer
        monkeypatch.setattr(owner, name, bound(path, getattr(owner, name)))
    return seen


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    with FakeTensorMode():
        yield


@pytest.mark.process
@pytest.mark.usefixtures("fake_gpu")
def test_every_way_of_every_figure_can_be_called(called: list[str]) -> None:
    names = []
    for figure in kernels.figures():
        names.append(figure.name)
        assert next(iter(figure.ways)) == "ours"
        assert figure.moved_bytes > 0
        for call in figure.ways.values():
            call()
    sampled = len(kernels.SAMPLED_ROWS) * len(kernels.RESTRICTIONS)
    stored, listed = len(kernels.MODELS) * len(kernels.TOKENS), len(kernels.SAMPLED_ROWS)
    assert len(set(names)) == len(names) == stored + listed + sampled
    assert called.count("sampling.softmax") == sampled
    normed = sum(normed for _, _, normed in kernels.MODELS.values()) * len(kernels.TOKENS)
    assert called.count("norm.rmsnorm") == 2 * normed
    assert called.count("append_paged_kv_cache") == len(kernels.MODELS) * len(kernels.TOKENS)


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.delenv("FLASHINFER_DISABLE_JIT", raising=False)
    assert kernels.main() == 1
    assert os.environ["FLASHINFER_DISABLE_JIT"] == "1"
    assert capsys.readouterr().out == "no CUDA device\n"
