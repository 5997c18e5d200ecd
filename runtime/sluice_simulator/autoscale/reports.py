"""An engine's load report, as the router passes it on to a policy."""

from __future__ import annotations

from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.replica import Replica


def report(replica: Replica, now: float, constants: Constants) -> EngineSample:
    """What the engine says at `now`; policies see it `report_age_seconds` later."""
    rate = replica.pace.prefill_tokens_per_second
    waiting, running = len(replica.waiting), replica.rows
    decode = replica.role is Role.DECODE
    return EngineSample(
        name=replica.name,
        role=replica.role,
        epoch=replica.name,
        condition="draining" if replica.draining else "ready",
        age_seconds=constants.report_age_seconds,
        queued_requests=waiting,
        queued_tokens=replica.queued_tokens,
        queued_work_seconds=replica.queued_tokens / rate if rate else 0.0,
        running_requests=running + (replica.coming if decode else 0),
        max_running_requests=constants.max_running_requests,
        kv_used=replica.kv_used(now),
        bootstrap_requests=waiting if replica.role is Role.PREFILL else 0,
        prealloc_requests=waiting if decode else 0,
        transfer_requests=replica.coming if decode else 0,
        prefill_tokens_per_second=rate,
        itl_seconds=replica.itl_seconds(now),
        prompt_tokens_total=replica.received_tokens,
        generated_tokens_total=replica.generated_tokens,
        finished_requests_total=replica.finished,
    )
