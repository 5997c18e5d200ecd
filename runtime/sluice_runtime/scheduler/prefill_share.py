"""How a step is shared between a prompt that is cut and those that wait behind it.

The cut one keeps half of the step, less what it is ahead of others by, and one page at least. So
since it began others never had more tokens of its steps than it had itself. Knows no queue and no
pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice_runtime.scheduler.pages import pages_for
from sluice_runtime.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Share:
    """Of one step."""

    kept_tokens: int
    """The cut prompt's, whoever waits."""
    max_tokens: int
    """Others', if they are that light."""
    max_chunk_tokens: int
    """Of the step's budget that others could have in a step in which the cut one gets a page."""
    max_input_tokens: int
    """Others' in such a step, however light they are."""
    context_tokens: int
    """That the cut prompt's tokens attend to."""
    beginning_weight: float

    def weight(self, start: int) -> float:
        """What of the budget a token takes that attends to `start` others, where one of the cut
        prompt takes 1."""
        begins = self.beginning_weight
        return begins + (1 - begins) * start / self.context_tokens

    def ever_fits(self, start: int, tokens: int) -> bool:
        """Whether there are steps in which so many tokens have room beside the cut prompt."""
        light = tokens * self.weight(start) <= self.max_chunk_tokens
        return light and tokens <= self.max_input_tokens


def share_with(
    cut: Request, budget: int, input_tokens: int, page_size: int, beginning_weight: float
) -> Share:
    """`budget`: prompt tokens of the step, as many as the cut prompt could have alone;
    `input_tokens`: what all prompts together may have of it."""
    half = -(-(budget - cut.lead_tokens) // 2)
    kept = max(1, pages_for(half, page_size)) * page_size
    return Share(
        kept_tokens=kept,
        max_tokens=cut.lead_tokens + kept,
        max_chunk_tokens=budget - page_size,
        max_input_tokens=input_tokens - page_size,
        context_tokens=cut.computed_tokens,
        beginning_weight=beginning_weight,
    )
