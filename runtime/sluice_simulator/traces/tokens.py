"""Makes token ids for a trace's prompts, which hit the prefix cache where the trace's prompts
would.

The scheduler only needs to know which prompts have common beginnings. All tokens of a block are
made from its id, so equal blocks have equal tokens; a prompt without blocks has its own tokens.
"""

from __future__ import annotations

from typing import Final

from sluice_simulator.traces.request import BLOCK_TOKENS, TraceRequest

END_OF_ANSWER: Final = 1
"""The token that ends an answer."""
ANSWER_BASE: Final = 2
"""First token id of answers: request number plus this, below 2**28, so answers differ from prompts
and from each other."""
PROMPT_BASE: Final = 1 << 28
"""First token id of prompts without blocks: request number plus this."""
BLOCK_BASE: Final = 1 << 29
"""First token id of blocks: block id plus this; all stay below 2**31."""
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
    """The one token id of which the request's answer consists."""
    return ANSWER_BASE + index


def request_number(request_id: str) -> int:
    """A request's number in its trace, from its id; in a prefill engine the id is longer."""
    return int(request_id.partition("#")[0])
