"""What the benchmarks on GPUs stand beside. That they run: `tests/gpu_runs/test_pretended.py`."""

from __future__ import annotations

from benchmarks.gpu import limits, offline
from tests.gpu_runs.test_pretended import FIGURES


def test_the_offline_workload_is_the_published_one() -> None:
    prompts, answers = zip(*offline.lengths(), strict=True)
    assert (sum(prompts), sum(answers)) == (142_827, 133_966)


def test_limits_are_of_one_device_and_every_figure_with_a_limit_is_measured() -> None:
    assert limits.beside("offline", "NVIDIA A100-SXM4-80GB") == {}
    assert limits.beside("offline", "NVIDIA H100 80GB HBM3")["target"] == 20_000
    assert limits.beside("offline", "NVIDIA H200")["target"] == 27_000
    promised = set[str]().union(*FIGURES.values())
    assert limits.DEVICES["H200"].keys() <= promised
