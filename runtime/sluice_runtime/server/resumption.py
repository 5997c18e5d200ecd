"""What the router asks of an engine in a private call: where answers go on.

Pure; knows neither HTTP's bodies nor the engine.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sluice_contract import http_errors
from sluice_contract.http_errors import Mistake
from sluice_contract.wire.private_calls import (
    RESUME_MISMATCH,
    AnswerStart,
    CallHead,
    ChoiceSoFar,
    Resume,
    split_body,
)

from sluice_runtime.server.choice import BegunChoice, ChoiceReader, Drawn, replay
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.prompts import ChoicePlan
from sluice_runtime.wire.messages import TokenLogprob

MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
"""Besides the client's body; with logprobs a token takes up to 700."""


def opened_call(body: bytes, max_client_bytes: int) -> tuple[CallHead, bytes]:
    """Head and client's body of a private call.

    Raises:
        MistakenError: it has no head, or the client's is too long.
    """
    try:
        head, client_body = split_body(body)
    except ValueError as error:
        message = f"the first line: {error}; allowed: the head of a private call"
        raise MistakenError(Mistake(400, "invalid_value", message)) from None
    if len(client_body) > max_client_bytes:
        raise MistakenError(http_errors.body_too_large(max_client_bytes))
    return head, client_body


def prompt_hash(prompts: Sequence[Sequence[int]], adapter: str = "") -> str:
    """Of token ids, and of the adapter that goes on with them."""
    digest = hashlib.sha256(adapter.encode())
    for prompt in prompts:
        digest.update(array("Q", [len(prompt), *prompt]).tobytes())
    return digest.hexdigest()


def begun_choices(
    plans: Sequence[ChoicePlan],
    own: AnswerStart,
    resume: Resume | None,
    vocabulary_size: int,
    read: Callable[[ChoicePlan], ChoiceReader],
) -> list[BegunChoice]:
    """The choices where another engine left them, or new ones. `own`: what this engine would tell.

    Raises:
        MistakenError: 409, this engine would go on from something else; names what differs.
    """
    if resume is None:
        return [BegunChoice(read(plan)) for plan in plans]
    _check(plans, own, resume, vocabulary_size)
    most = resume.start.max_tokens
    limited = [
        replace(plan, max_tokens=min(plan.max_tokens, most[place]))
        for place, plan in enumerate(plans)
    ]
    return [_begun(place, read(plan), resume.choices[place]) for place, plan in enumerate(limited)]


def _check(
    plans: Sequence[ChoicePlan], own: AnswerStart, resume: Resume, vocabulary_size: int
) -> None:
    start = resume.start
    for key, theirs, ours, of in (
        ("answerIdentity", start.answer_identity, own.answer_identity, "the model as served here"),
        ("promptHash", start.prompt_hash, own.prompt_hash, "the prompts as this engine reads"),
    ):
        if theirs != ours:
            raise _mismatch(f"start.{key}", theirs or "an empty one", f"{ours}, of {of}")
    for key, given in (("start.maxTokens", start.max_tokens), ("choices", resume.choices)):
        if len(given) != len(plans):
            raise _mismatch(key, f"{len(given)} entries", f"{len(plans)}, one for each choice")
    for number, (plan, choice) in enumerate(zip(plans, resume.choices, strict=True)):
        _check_choice(f"choices[{number}]", plan, choice, vocabulary_size)


def _check_choice(place: str, plan: ChoicePlan, choice: ChoiceSoFar, vocabulary_size: int) -> None:
    wrong = next((one for one in choice.ids if not 0 <= one < vocabulary_size), None)
    if wrong is not None:
        raise _mismatch(f"{place}.ids", f"token id {wrong}", f"0 to {vocabulary_size - 1}")
    scores = len(choice.ids) if plan.logprobs >= 0 else 0
    if len(choice.scores) != scores:
        allowed = f"{scores}, for {len(choice.ids)} ids"
        raise _mismatch(f"{place}.scores", f"{len(choice.scores)} entries", allowed)


def _begun(place: int, reader: ChoiceReader, choice: ChoiceSoFar) -> BegunChoice:
    scores = [
        TokenLogprob(token, score.logprob, score.rank, score.top)
        for token, score in zip(choice.ids, choice.scores, strict=False)
    ]
    drawn = Drawn(choice.ids, scores, choice.cached, finished=choice.finished)
    begun = replay(reader, drawn)
    if begun is None or (choice.finished and choice.ids and not begun.complete):
        ends = "behind" if begun is None else "before"
        given = f"{len(choice.ids)} that end {ends} the answer's end"
        raise _mismatch(f"choices[{place}].ids", given, "those that were told")
    return begun


def _mismatch(key: str, given: str, allowed: str) -> MistakenError:
    message = f"resume.{key}: {given} is not allowed; allowed: {allowed}"
    return MistakenError(Mistake(409, RESUME_MISMATCH, message))
