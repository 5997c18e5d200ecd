"""An estimate of the engines that a trace keeps busy at each second, if steps are as long as the
promised ITL, and plans that have them ready in time. No bound: requests may be missed, and work may
wait.

At T seconds a step, an engine has T - base left for prompts and for reading context. With prompts,
only the step itself counts of the base: reading the weights hides behind them. With the
rows that a rate brings, that is linear in the requests: each takes (prompt + output x context read)
/ (1 - base / T) of an engine. The limits of pages and rows are linear, too; the greatest of the
three counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate

from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.step_times import StepTimes
from sluice_simulator.traces.request import Trace, TraceRequest


def engines_needed(
    trace: Trace, constants: Constants, roles: Sequence[Role]
) -> Mapping[Role, list[float]]:
    """Engines for each second of the trace; a request counts while its answer would run."""
    return {role: _of_role(trace, constants, role) for role in roles}


def smoothed(needed: Sequence[float], seconds: int) -> list[float]:
    """Mean over so many seconds around each second."""
    total = [0.0, *accumulate(needed)]
    before, after = seconds // 2, seconds - seconds // 2
    return [
        (total[min(len(needed), at + after)] - total[max(0, at - before)]) / seconds
        for at in range(len(needed))
    ]


def _of_role(trace: Trace, constants: Constants, role: Role) -> list[float]:
    times = StepTimes(constants)
    seconds = int(trace.seconds) + 2
    compute, pages, rows = [0.0] * seconds, [0.0] * seconds, [0.0] * seconds
    itl = constants.promise.itl_seconds
    hidden = role is Role.MIXED
    spare = times.prompts_within(itl, 0) / itl if hidden else 1 - times.base_seconds / itl
    for request in trace.requests:
        at = int(request.arrival_seconds)
        prompt = times.prompt_seconds(request.prompt_tokens, 0)
        if role is Role.PREFILL:
            compute[at] += prompt
            continue
        if role is Role.MIXED:
            compute[at] += prompt / spare
        life = max(1, round(request.output_tokens * itl))
        context_tokens = _held_tokens(request)
        read = request.output_tokens * context_tokens * times.context_seconds / spare
        kept = request.output_tokens * itl / life
        for second in range(at, min(seconds, at + life)):
            compute[second] += read / life
            pages[second] += kept * context_tokens / constants.kv_pool_tokens
            rows[second] += kept / constants.max_running_requests
    return [max(demands) for demands in zip(compute, pages, rows, strict=True)]


def _held_tokens(request: TraceRequest) -> float:
    """Mean number of tokens that an answer holds."""
    return request.prompt_tokens + request.output_tokens / 2


def planned_engines(
    needed: Sequence[float], mean_seconds: int, used: float, boot_seconds: float
) -> list[int]:
    """Number of engines for each second, if the mean need uses that share of each engine. They are
    started just in time, and kept over a pause that is shorter than a start."""
    mean = smoothed(needed, mean_seconds)
    engines = [max(1, math.ceil(need / used)) for need in mean]
    return _most_ahead(engines, math.ceil(boot_seconds) + 2)


def _most_ahead(values: Sequence[int], seconds: int) -> list[int]:
    """Maximum from each second to so many later."""
    best: deque[int] = deque()
    result = [0] * len(values)
    for at in range(len(values) - 1, -1, -1):
        while best and values[best[-1]] <= values[at]:
            best.pop()
        best.append(at)
        while best[0] > at + seconds:
            best.popleft()
        result[at] = values[best[0]]
    return result
