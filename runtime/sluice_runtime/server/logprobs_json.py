"""Scored tokens as the APIs spell them: one form for completions, one for chat, one for prompts.

Pure; plain values out, and JSON text in place of a token's: of a long prompt, objects for all its
tokens would take gigabytes, and writing them at once would hold up every stream of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sluice_runtime.server.token_text import ScoredToken, TokenText


def completion_logprobs(scores: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
    """Four lists side by side; `top_logprobs` always has the token itself, too."""
    if scores is None:
        return None
    return {
        "tokens": [score.token.key for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_written(_by_key(score)) for score in scores],
        "text_offset": [score.offset for score in scores],
    }


def chat_logprobs(scores: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
    """One object a token."""
    if scores is None:
        return None
    content = [
        _written(
            {
                **_named(score.token, score.logprob),
                "top_logprobs": [_named(token, logprob) for token, logprob in score.top],
            }
        )
        for score in scores
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(scores: Sequence[ScoredToken]) -> list[msgspec.Raw]:
    """One object a token, by token id: the token's own score and the best ones."""
    return [_written(None if score.logprob is None else _by_id(score)) for score in scores]


def _written(value: dict[str, Any] | None) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _by_key(score: ScoredToken) -> dict[str, float] | None:
    if score.logprob is None:
        return None
    return {token.key: logprob for token, logprob in score.top} | {score.token.key: score.logprob}


def _by_id(score: ScoredToken) -> dict[str, Any]:
    best = {
        str(token.token_id): _ranked(token, logprob, rank)
        for rank, (token, logprob) in enumerate(score.top, 1)
    }
    own = {str(score.token.token_id): _ranked(score.token, score.logprob, score.rank)}
    return own | best


def _ranked(token: TokenText, logprob: float | None, rank: int | None) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": token.text}


def _named(token: TokenText, logprob: float | None) -> dict[str, Any]:
    utf8 = None if token.utf8 is None else list(token.utf8)
    return {"token": token.text, "logprob": logprob, "bytes": utf8}
