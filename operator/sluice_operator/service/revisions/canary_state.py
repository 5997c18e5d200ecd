"""How far the canary of a revision is: a part of the revision's annotation `state`.

Pure. What was learnt in a step is kept as it was written; `service.rollout.step` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, cast, get_args

from sluice_operator.kube.kinds import Manifest

CanaryVerdict = Literal["promoted", "aborted", "worse", "late", "held"]
"""End of a canary's steps. Promoted: to all requests. Aborted by a person, found worse by the
operator, or late, as its engines were not ready in time: it gets no request. Held: found worse,
and stays where it is until a person decides."""
ENDED: Final = frozenset({"aborted", "worse", "late"})
"""Verdicts after which a revision gets no request any more."""


@dataclass(frozen=True)
class CanaryState:
    """How far the canary of a revision is."""

    step: int = 0
    """Index of its step."""
    verdict: CanaryVerdict | None = None
    """None while its steps go on."""
    decision: int = 0
    """Number of the person's decision that led here; 0: none has."""
    why: str = ""
    """The numbers by which the operator decided last, for people."""
    reached: int = 0
    """How many steps had all their engines ready once."""
    learnt: Mapping[str, Any] = field(default_factory=dict)
    """What was learnt in the step, as JSON."""
    seen: str = ""
    """`place` of the state that a person's decision was made about."""
    percent: int = 0
    """Share of the last step that was reached; 0: none was."""

    @property
    def place(self) -> str:
        """Step and verdict, for `seen`."""
        return f"{self.step} {self.verdict}"

    def to_json_dict(self) -> Manifest:
        """The fields that are set."""
        return {key: value for key, value in asdict(self).items() if value}

    def after(self, decision: CanaryState) -> CanaryState:
        """The state once a person's last decision is carried out, which is done once. It begins a
        step, but counts of routers go on. Without effect if the operator has decided meanwhile, as
        the person did not know that; an end always has one."""
        if decision.decision <= self.decision:
            return self
        if decision.seen != self.place and decision.verdict != "aborted":
            return replace(self, decision=decision.decision)
        reached, percent = (0, 0) if self.verdict in ENDED else (self.reached, self.percent)
        learnt = _counts_that_go_on(self.learnt)
        return replace(decision, seen="", reached=reached, learnt=learnt, percent=percent)

    def next_step(self, steps: int) -> CanaryState:
        """The state at the next one of so many steps, or promoted after the last one."""
        if self.step + 1 >= steps:
            return replace(self, verdict="promoted", why="")
        learnt = _counts_that_go_on(self.learnt)
        return replace(self, step=self.step + 1, verdict=None, why="", learnt=learnt)

    def steps_among(self, steps: Sequence[int]) -> list[int]:
        """Percents of all steps: `steps`, which may have been edited, and the share that was
        reached. That stays, unless each of `steps` is smaller."""
        is_kept = 0 < self.percent < max(steps)
        return sorted({*steps, self.percent} if is_kept else {*steps})

    def among(self, steps: Sequence[int]) -> CanaryState:
        """The state at `steps_among`. Where only larger steps are left it goes on with the first
        of them, and where only smaller ones are left it is at the last one."""
        if not self.percent:
            return self
        every = self.steps_among(steps)
        percent = min(self.percent, every[-1])
        last = every.index(percent)
        is_beyond = percent < min(steps) or self.step >= self.reached
        step = min(last + is_beyond, len(every) - 1)
        return replace(self, step=step, reached=last + 1, percent=percent)

    def noted(self, steps: Sequence[int]) -> CanaryState:
        """The state with the share that was reached of all `steps`."""
        percent = steps[min(self.reached, len(steps)) - 1] if self.reached else 0
        return replace(self, percent=percent)


FIRST_STEP: Final = CanaryState()


def canary_state(noted: object) -> CanaryState:
    """Canary's state from the readable part of an annotation."""
    content = noted if isinstance(noted, dict) else {}
    step, number, reached, percent = (
        value if isinstance(value, int) and value > 0 else 0
        for value in map(content.get, ("step", "decision", "reached", "percent"))
    )
    verdict, learnt = content.get("verdict"), content.get("learnt")
    why, seen = (
        value if isinstance(value, str) else "" for value in map(content.get, ("why", "seen"))
    )
    known = cast(CanaryVerdict, verdict) if verdict in get_args(CanaryVerdict) else None
    return CanaryState(
        step,
        known,
        number,
        why,
        reached,
        learnt if isinstance(learnt, dict) else {},
        seen,
        percent,
    )


def _counts_that_go_on(learnt: Mapping[str, Any]) -> Mapping[str, Any]:
    """Counts of routers as they were read last: what they count later belongs to the next step."""
    return {key: learnt[key] for key in ("seen",) if key in learnt}
