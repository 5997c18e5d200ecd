"""No policy starves anyone: who has waited too long goes to the head of the order.

Those that waited too long keep the order of the queue, and admission stops at the first request
that does not fit. So a request waits at most for the bound, and then for those that joined the
queue before it and for those that were sent back in the middle of an answer, which began before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sluice_runtime.scheduler.policies.context import Policy, PolicyContext, Turn
from sluice_runtime.scheduler.request import Request

PASSED_OVER_SECONDS: Final = 30.0
"""Longest that a request is passed over. Under steady overload every queue is older than that, and
then every policy is first come, first served."""


def aged(
    policy: Policy, *, resumes_first: bool = True, bound_seconds: float = PASSED_OVER_SECONDS
) -> Policy:
    """`policy` with bounded waiting. `resumes_first`: requests that were sent back in the middle of
    an answer go before those that have not begun."""

    def order(waiting: Sequence[Request], context: PolicyContext) -> Iterator[Request]:
        overdue: list[Request] = []
        resumed: list[Request] = []
        others: list[Request] = []
        for request in waiting:
            if resumes_first and request.output_tokens:
                resumed.append(request)
            elif context.now - request.waiting_since_seconds > bound_seconds:
                overdue.append(request)
            else:
                others.append(request)
        yield from resumed
        yield from overdue
        yield from policy(others, context)

    return order


class AdmissionOrder:
    """One engine's order: its policy, and what the policy must know of what was admitted."""

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        self._policy = policy
        self._seed = seed
        self._turn = Turn()

    def __call__(
        self, waiting: Iterable[Request], context: Callable[[], PolicyContext]
    ) -> Iterator[Request]:
        """The waiting requests in order. Nothing is looked at before the first is asked for."""
        view = replace(context(), turn=self._turn, seed=self._seed)
        yield from self._policy(list(waiting), view)

    def admitted(self, request: Request) -> None:
        """To be told of every request that leaves the queue for the batch."""
        key = request.routing_key
        self._turn = Turn(key, self._turn.picks + 1 if key == self._turn.key else 1)
