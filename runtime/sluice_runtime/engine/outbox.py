"""Flow control for each request: credit, withheld tokens, and readers that are too slow.

A request whose credit is spent keeps running, and its tokens are withheld here. Beyond a bound the
loop ends it, so that a client that stopped reading does not hold pages or memory for long. The last
delta of a request carries all withheld tokens, so credit is exceeded by the bound at most. Knows no
socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_runtime.wire.messages import TokenDelta, TokenLogprob

MAX_WITHHELD_TOKENS: Final = 4096


@dataclass(slots=True)
class _Account:
    credit: int
    withheld: tuple[int, ...] = ()
    scores: tuple[TokenLogprob, ...] = ()
    """Of the withheld tokens, if the request asked for logprobs."""

    def take(self, delta: TokenDelta, max_tokens: int | None = None) -> TokenDelta:
        """`delta` with the withheld tokens first and its own last, cut to `max_tokens`; the rest is
        withheld."""
        tokens, scores = self.withheld + delta.token_ids, self.scores + delta.logprobs
        sent = len(tokens) if max_tokens is None else max(max_tokens, 0)
        self.withheld, self.scores = tokens[sent:], scores[sent:]
        return msgspec.structs.replace(delta, token_ids=tokens[:sent], logprobs=scores[:sent])


class Outbox:
    """Holds one account for each live request."""

    def __init__(self, max_withheld_tokens: int = MAX_WITHHELD_TOKENS) -> None:
        self._max_withheld = max_withheld_tokens
        self._accounts: dict[str, _Account] = {}

    def open(self, request_id: str, credit: int) -> None:
        """A new request; an id in use keeps its account."""
        self._accounts.setdefault(request_id, _Account(credit))

    def grant(self, request_id: str, credit: int) -> TokenDelta | None:
        """Adds credit; returns the withheld tokens that it releases. Unknown ids are ignored."""
        account = self._accounts.get(request_id)
        if account is None:
            return None
        account.credit += credit
        if not account.withheld or account.credit <= 0:
            return None
        return self._pay(account, TokenDelta(request_id, ()))

    def pass_on(self, delta: TokenDelta) -> TokenDelta | None:
        """The delta to send now, if any, with the tokens that were withheld before it."""
        account = self._accounts.get(delta.request_id)
        if account is None:
            return delta
        if delta.finish_reason is not None:
            del self._accounts[delta.request_id]
            return account.take(delta) if account.withheld else delta
        if account.credit > 0 and not account.withheld:
            account.credit -= len(delta.token_ids)
            return delta
        return self._pay(account, delta)

    def overdrawn(self, request_id: str) -> bool:
        """Whether more tokens are withheld than allowed."""
        account = self._accounts.get(request_id)
        return account is not None and len(account.withheld) > self._max_withheld

    def _pay(self, account: _Account, delta: TokenDelta) -> TokenDelta | None:
        paid = account.take(delta, account.credit)
        account.credit -= len(paid.token_ids)
        return paid if paid.token_ids else None
