"""What holds of every decision, whatever is seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from operator import le
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineCondition, EngineFigures, HandoverQueues

from tests.autoscaler.building import (
    DECODE,
    MIXED,
    PREFILL,
    RATE,
    Service,
    engine,
    pool,
    seen,
    wanting,
)  # fmt: skip
from tests.examples import examples

TWO = (PREFILL, DECODE)
COUNTS = st.one_of(st.integers(0, 2000), st.integers())
FLOATS = st.one_of(st.floats(0, 1), st.floats())
CONDITIONS: st.SearchStrategy[EngineCondition] = st.sampled_from(
    ["ready", "ready", "ready", "unready", "draining", "failing"]
)


@st.composite
def any_engine(draw: st.DrawFn, role: Role) -> EngineSample:
    return EngineSample(
        name=draw(st.sampled_from("abcdef")) + role,
        role=role,
        epoch=draw(st.sampled_from("12")),
        condition=draw(CONDITIONS),
        age_seconds=draw(st.one_of(st.floats(0, 2), FLOATS)),
        max_running_requests=draw(COUNTS),
        figures=EngineFigures(
            queued_requests=draw(COUNTS),
            queued_tokens=draw(COUNTS),
            queued_work_seconds=draw(FLOATS),
            running_requests=draw(COUNTS),
            prefill_tokens_per_second=draw(st.one_of(st.none(), FLOATS)),
            marginal_prefill_tokens_per_second=draw(st.one_of(st.none(), FLOATS)),
            itl_seconds=draw(st.one_of(st.none(), FLOATS)),
            prompt_tokens_total=draw(COUNTS),
            finished_requests_total=draw(COUNTS),
            kv_pages_total=draw(COUNTS),
            kv_pages_free=draw(COUNTS),
            queues=HandoverQueues(prealloc=draw(COUNTS)),
        ),
    )


@st.composite
def any_sample(draw: st.DrawFn, replicas: dict[Role, int]) -> Sample:
    pods = st.integers(0, 3)
    pools = {
        role: PoolSample(role, number, draw(pods), draw(pods), draw(pods), draw(pods))
        for role, number in replicas.items()
    }
    engines = [draw(st.lists(any_engine(role), max_size=3)) for role in replicas]
    found = st.sampled_from([None, tuple(each for some in engines for each in some)])
    time = draw(st.one_of(st.floats(0, 1000), st.floats()))
    return Sample(time, pools, draw(found), draw(st.integers(0, 5)))


@st.composite
def any_settings(draw: st.DrawFn) -> ScalingSettings:
    roles = draw(st.sampled_from([(MIXED,), TWO]))
    pools = {}
    for role in roles:
        minimum = draw(st.integers(0, 3))
        pools[role] = PoolLimits(
            minimum, minimum + draw(st.integers(1, 9)), draw(st.integers(0, 2))
        )
    return ScalingSettings(
        pools,
        gpu_budget=draw(st.one_of(st.none(), st.integers(0, 20))),
        queue_seconds=draw(st.one_of(st.none(), st.floats(0.01, 10))),
        prefill_queue=draw(st.one_of(st.none(), st.integers(1, 9))),
        decode_queue=draw(st.one_of(st.none(), st.integers(1, 9))),
        ttft_seconds=draw(st.one_of(st.none(), st.floats(0.01, 10))),
        itl_seconds=draw(st.one_of(st.none(), st.floats(0.001, 1))),
        percentile=draw(st.sampled_from([50.0, 95.0, 99.0, 100.0])),
        idle_seconds=draw(st.sampled_from([0.0, 60.0])),
        on_metrics_loss=draw(st.sampled_from(["Hold", "Floor"])),
    )


@examples(25)
@given(any_settings(), st.data())
def test_whatever_is_seen_limits_and_budget_hold_and_every_number_is_a_number(
    wanted: ScalingSettings, data: st.DataObject
) -> None:
    replicas = {role: data.draw(st.integers(0, 6)) for role in wanted.pools}
    history = History()
    for _ in range(3):
        sample = data.draw(any_sample(replicas))
        decision = decide(wanted, history, sample)
        history = history.with_tick(Tick(sample, decision))
        check_limits(wanted, decision)
        check_budget(wanted, sample, decision)
        replicas = {role: each.desired for role, each in decision.pools.items()}
        for each in decision.pools.values():
            assert "nan" not in each.message, each.message
            assert each.reason
            assert each.message
            assert len(each.victims) <= max(0, each.current - each.desired)


def check_limits(wanted: ScalingSettings, decision: Decision) -> None:
    for role, limits in wanted.pools.items():
        each = decision.pools[role]
        assert each.desired <= max(limits.maximum, 0)
        short = wanted.gpu_budget is not None and limits.gpus
        assert each.desired >= limits.minimum or short


def check_budget(wanted: ScalingSettings, sample: Sample, decision: Decision) -> None:
    """Pods go later than they are asked to, and come at once: nothing grows beyond the budget."""
    if wanted.gpu_budget is None:
        return
    held = sum(
        (max(each.current, each.desired) + sample.pools[role].surplus) * wanted.pools[role].gpus
        for role, each in decision.pools.items()
    )
    grows = any(e.desired > e.current and wanted.pools[r].gpus for r, e in decision.pools.items())
    assert held <= wanted.gpu_budget or not grows


LOAD = {
    "queued_tokens": st.integers(0, 200_000), "queued_requests": st.integers(0, 200),
    "running_requests": st.integers(0, 256), "kv_used": st.floats(0, 1),
    "prealloc_requests": st.integers(0, 50), "itl_seconds": st.floats(0.001, 0.5),
    "prompt_tokens_total": st.integers(1000, 200_000),
}  # fmt: skip


@examples(40)
@given(
    st.sampled_from([MIXED, PREFILL, DECODE]),
    st.fixed_dictionaries(LOAD),
    st.sampled_from(sorted(LOAD)),
    st.floats(1, 5),
    st.integers(0, 12),
    st.booleans(),
)
def test_more_load_never_means_fewer_engines(
    role: Role, load: dict[str, Any], more: str, factor: float, quiet: int, promised: bool
) -> None:
    """`quiet`: looks before, without load. Running requests alone are none: where others wait for
    pages, more of them in the same pages are smaller ones, and so are those that wait. More prompts
    in the same time between tokens leave less of that to the answers."""
    if more == "running_requests":
        load |= {"prealloc_requests": 0}
    if more == "prompt_tokens_total":
        load |= {"running_requests": 0, "itl_seconds": None}
    slo: dict[str, Any] = {"ttft_seconds": 2.0, "itl_seconds": 0.1} if promised else {}
    wanted = wanting(role, maximum=100, prefill_queue=20, decode_queue=20, **slo)
    grown = load[more] * factor
    heavier = load | {more: min(1.0, grown) if more == "kv_used" else type(load[more])(grown)}
    found = [_after(wanted, role, quiet, each) for each in (load, heavier)]
    assert found[0] <= found[1]


def _after(wanted: ScalingSettings, role: Role, quiet: int, load: dict[str, Any]) -> int:
    history = History()
    idle = seen([engine("a", role, prompt_tokens_total=1000)], pool(role, 1), at=0.0)
    for index in range(quiet):
        sample = replace(idle, time_seconds=2.0 * index)
        history = history.with_tick(Tick(sample, decide(wanted, history, sample)))
    sample = seen([engine("a", role, **load)], pool(role, 1), at=2.0 * quiet)
    decided = decide(wanted, history, sample).pools[role].wanted
    assert decided is not None
    return decided


@examples(8)
@given(
    st.floats(0, 6),
    st.floats(0, 6),
    st.floats(0.01, 0.12),
    st.integers(1, 8),
    st.sampled_from([(MIXED,), TWO]),
)
def test_a_steady_load_is_met_by_a_steady_number_of_engines(
    arriving: float, pages: float, itl: float, replicas: int, roles: tuple[Role, ...]
) -> None:
    """In engines' worth. The time between tokens follows the load of an engine, as it does. At rest
    it is well below what is promised: the explanation tells of what is not."""
    wanted = wanting(*roles, maximum=30, ttft_seconds=2.0, itl_seconds=0.1)
    service = Service(wanted, dict.fromkeys(roles, replicas))
    decoding, computing = roles[-1], roles[0]
    sizes = []
    for _ in range(140):
        of_one = pages / max(1, service.replicas[decoding])
        loads: dict[Role, dict[str, Any]] = {computing: {"prompt_tokens": arriving * RATE}}
        loads[decoding] = loads.get(decoding, {}) | {
            "kv_used": pages, "running_requests": int(pages * 100),
            "itl_seconds": itl * (0.5 + min(1.0, of_one) / 2) if pages else None,
        }  # fmt: skip
        service.look(loads, seconds=4.0)
        sizes.append(tuple(service.replicas.values()))
    for before, after in pairwise(sizes[30:]):
        assert all(map(le, after, before)), f"what is known better takes fewer, never more: {sizes}"
    assert len(set(sizes[130:])) == 1, sizes
