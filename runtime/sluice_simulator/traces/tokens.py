"""Token ids that stand for a trace's prompts: they hit the prefix cache where the trace does.

The scheduler only needs to know which prompts begin alike. A block's tokens are its id, so equal
blocks are equal tokens; a prompt without blocks has its own tokens.
"""

from __future__ import annotations

from typing import Final

from sluice_simulator.traces.request import BLOCK_TOKENS, TraceRequest

END_OF_ANSWER: Final = 1
"""The token that ends an answer."""
ANSWER_BASE: Final = 2
"""Answers differ from all prompts, and from each other: ANSWER_BASE + request, up to 2**28."""
PROMPT_BASE: Final = 1 << 28
"""Prompts without blocks: PROMPT_BASE + request."""
BLOCK_BASE: Final = 1 << 29
"""Blocks: BLOCK_BASE + id; all stay below 2**31."""
MAX_BLOCKS: Final = (1 << 31) - BLOCK_BASE


def prompt_ids(request: TraceRequest, index: int) -> list[int]:
    """`request.prompt_tokens` ids; `index` is the request's number in its trace."""
    if not request.block_ids:
        return [PROMPT_BASE + index] * request.prompt_tokens
    ids: list[int] = []
    for block in request.block_ids:
        ids += [BLOCK_BASE + block % MAX_BLOCKS] * BLOCK_TOKENS
    del ids[request.prompt_tokens :]
    return ids


def answer_id(index: int) -> int:
    """The token that the request's answer is made of."""
    return ANSWER_BASE + index


def request_number(request_id: str) -> int:
    """The number in its trace of a request, which a prefill engine calls by a longer name."""
    return int(request_id.partition("#")[0])
