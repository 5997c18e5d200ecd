"""The order in which requests are admitted, and who is sent back for whom, changes no answer."""

from __future__ import annotations

import msgspec
import pytest
from sluice_contract.config.engine import SloTargets
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.scheduler.policies import POLICIES
from sluice_runtime.wire.messages import Generate

from tests.runtime.agreement.cases import CLEAR_TOKENS, random_requests
from tests.runtime.agreement.oracle import PairOf, assert_agrees
from tests.runtime.harness import engine_config, run_engine

pytestmark = pytest.mark.xdist_group("transformers")


def more_and_more_urgent(count: int) -> list[Generate]:
    """Half are there at once and equal; of the others each is more urgent than all before it."""
    return [
        msgspec.structs.replace(
            one, priority=20 * max(0, index - count // 2), routing_key=f"key-{index % 3}"
        )
        for index, one in enumerate(random_requests(count, 100, 24))
    ]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(policy, marks=() if policy == "priority" else pytest.mark.process)
        for policy in POLICIES
    ],
)
def test_answers_do_not_depend_on_the_policy(pair_of: PairOf, policy: str, overlap: bool) -> None:
    folder, oracle = pair_of("qwen3")
    config = engine_config(
        str(folder),
        dtype="float32",
        chunk_size=32,
        kv_pool_tokens=1024,
        max_running_requests=4,
        scheduling_policy=policy,
        slo=SloTargets(ttft_milliseconds=1000) if policy == "slack" else None,
    )
    requests = more_and_more_urgent(16)
    run = run_engine(config, requests, hooks=EngineHooks(poison_freed_pages=True), overlap=overlap)
    assert assert_agrees(oracle, requests, run) > CLEAR_TOKENS
    assert (run.retractions > 0) == (policy == "priority")
