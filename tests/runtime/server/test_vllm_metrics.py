"""An engine's metrics under vLLM's names: the same figures, with the labels that its dashboards
choose by."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from sluice_runtime.server.metrics import EngineMetrics
from sluice_runtime.server.vllm_metrics import NAMES, PHASES
from sluice_runtime.wire.messages import FinishReason, Generate, Sampling, StepResult, TokenDelta

from tests.runtime.server.fake_engine import load

ARRIVAL = 100.0
LABELS = {"model_name": "m", "engine": "0"}


def _step(delta: TokenDelta, seconds: float) -> StepResult:
    return StepResult(1, "DECODE", ARRIVAL + seconds, 0.01, 0.001, [delta], load(3))


def scraped(*, vllm_names: bool) -> dict[str, dict[str, float]]:
    """Samples by name and by what their labels add to `LABELS`; of one answer of three tokens."""
    metrics = EngineMetrics(vllm_names=vllm_names)
    metrics.identify("m", "Mixed", None)
    metrics.opened(Generate("a", [1, 2], 8, Sampling(), arrival_seconds=ARRIVAL))
    metrics.stepped(_step(TokenDelta("a", (7,), cached_tokens=1, queue_seconds=0.5), 2.0))
    metrics.stepped(_step(TokenDelta("a", (7,)), 3.0))
    metrics.stepped(_step(TokenDelta("a", (7,), "stop"), 4.0))
    metrics.loaded(load(3))
    for outcome in ("stop", "tool_calls", "refused", "abort"):
        metrics.ended(outcome)
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                added = {k: v for k, v in sample.labels.items() if k not in LABELS}
                assert sample.labels == LABELS | added
                found.setdefault(sample.name, {})[",".join(added.values())] = sample.value
    return found


def test_figures_have_vllms_names() -> None:
    found = scraped(vllm_names=True)
    assert found["vllm:num_requests_running"] == {"": 3.0}
    assert found["vllm:prompt_tokens_total"] == {"": 2.0}
    assert found["vllm:prompt_tokens_cached_total"] == {"": 1.0}
    assert found["vllm:generation_tokens_total"] == {"": 3.0}
    assert found["vllm:time_to_first_token_seconds_sum"] == {"": 2.0}
    assert found["vllm:time_to_first_token_seconds_bucket"]["+Inf"] == 1.0
    assert found["vllm:inter_token_latency_seconds_count"] == {"": 2.0}
    assert found["vllm:e2e_request_latency_seconds_sum"] == {"": 4.0}
    finished = found["vllm:request_success_total"]
    assert finished == {"stop": 2.0, "length": 0.0, "abort": 1.0, "error": 0.0}


def test_the_phases_of_a_request_are_timed() -> None:
    found = scraped(vllm_names=True)
    sums = [found[f"{name}_sum"][""] for name, _ in PHASES]
    assert sums == [1.5, 2.0, 3.5, 1.0]


def test_tokens_of_one_step_are_one_gap() -> None:
    """Kept drafts come with a token of their step, as in vLLM, whose mean time of a token has them
    all."""
    metrics = EngineMetrics(vllm_names=True)
    metrics.opened(Generate("a", [1, 2], 8, Sampling(), arrival_seconds=ARRIVAL))
    ends: tuple[tuple[float, FinishReason | None], ...] = ((2.0, None), (3.0, None), (4.0, "stop"))
    for seconds, reason in ends:
        deltas = [TokenDelta("a", (7,)), TokenDelta("a", (8,)), TokenDelta("a", (9,), reason)]
        metrics.stepped(StepResult(1, "TARGET_VERIFY", ARRIVAL + seconds, 0, 0, deltas, load(3)))
    lines = metrics.render().decode().splitlines()
    for name in ("vllm:inter_token_latency_seconds", "sluice_inter_token_seconds"):
        (count,) = [line for line in lines if line.startswith(f"{name}_count")]
        (total,) = [line for line in lines if line.startswith(f"{name}_sum")]
        assert count.endswith(" 2.0")
        assert total.endswith(" 2.0")
    (mean,) = [line for line in lines if line.startswith(f"{PHASES[-1][0]}_sum")]
    assert float(mean.split()[-1]) == 2.0 / 8


def test_every_name_of_the_table_is_there_and_none_where_they_are_not_asked_for() -> None:
    names = scraped(vllm_names=True).keys()
    for _, name in NAMES:
        assert {name, f"{name}_total", f"{name}_sum"} & names, name
    assert scraped(vllm_names=False) == {}
