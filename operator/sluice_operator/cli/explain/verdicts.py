"""What follows from simulated arrangements: whether each step beyond the simplest pays, and when.

Pure. Rates are of two engines together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sluice_contract.wire.explain import Answer, Arrangement, ArrangementName

TOLD: Final = 1.1
"""A rate that is less than so many times another is no difference: rates are of a coarse grid."""

Reason = Literal["Pays", "Costs", "NoDifference"]


@dataclass(frozen=True)
class Verdict:
    """Whether something pays for this model, these requests and this promise."""

    subject: str
    """In a word, e.g. `chunking`."""
    reason: Reason
    message: str


def verdicts(answer: Answer) -> tuple[Verdict, ...]:
    """One for each comparison; none where nothing was simulated."""
    return tuple(_verdicts({arrangement.name: arrangement for arrangement in answer.arrangements}))


def _verdicts(arrangements: dict[ArrangementName, Arrangement]) -> Iterator[Verdict]:
    if not arrangements:
        return
    yield _verdict(
        "chunking",
        "with chunks",
        arrangements["chunked"],
        "with whole prompts",
        arrangements["whole"],
    )
    yield _verdict(
        "mixing", "with decode rows in the steps of prompts", arrangements["mixed"],
        "with steps of their own", arrangements["chunked"],
    )  # fmt: skip
    yield _verdict(
        "slo.itlMilliseconds", "with chunks chosen for the promise", arrangements["paced"],
        "with chunks of one size", arrangements["mixed"],
    )  # fmt: skip
    best = max(
        arrangements["paced"],
        arrangements["mixed"],
        key=lambda arrangement: arrangement.requests_per_second,
    )
    yield _verdict(
        "disaggregation", "with prefill and decode apart", arrangements["apart"],
        "with two mixed engines at their best", best,
    )  # fmt: skip


def _verdict(subject: str, how: str, new: Arrangement, else_how: str, old: Arrangement) -> Verdict:
    ours, theirs = new.requests_per_second, old.requests_per_second
    if ours == theirs == 0:
        text = f"neither {how} nor {else_how} is the promise kept at any rate that was tried"
        return Verdict(subject, "NoDifference", text)
    if ours > theirs * TOLD:
        begins = f"from {rate_text(theirs)} requests/s on, where it is no longer kept {else_how}"
        if theirs == 0:
            begins = f"at any load, as it is never kept {else_how}"
        return Verdict(subject, "Pays", f"{begins}; {how} it is kept up to {rate_text(ours)}")
    if ours * TOLD < theirs:
        kept = f"{how} the promise is kept up to {rate_text(ours)} requests/s"
        text = f"{kept}, {else_how} up to {rate_text(theirs)}"
        return Verdict(subject, "Costs", text)
    return Verdict(
        subject, "NoDifference", f"kept up to {rate_text(max(ours, theirs))} requests/s either way"
    )


def rate_text(rate: float) -> str:
    """Requests a second in three digits or, from a thousand on, to the request."""
    return f"{rate:,.0f}" if rate >= 999.5 else f"{rate:.3g}"
