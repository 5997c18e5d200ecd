"""What may be sent of each request: credit, withheld tokens, readers that are too slow.

A request whose credit is spent keeps running while its tokens wait here; beyond a bound it is
ended, so a reader that stopped reading holds neither pages nor memory for long. The terminal delta
takes all waiting tokens with it, so an overdraft never exceeds the bound. Knows no socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_runtime.messages import TokenDelta, TokenLogprob

MOST_WITHHELD_TOKENS: Final = 4096


@dataclass(slots=True)
class _Account:
    credit: int
    withheld: tuple[int, ...] = ()
    scores: tuple[TokenLogprob, ...] = ()
    """Of what is withheld, if the request asked for any."""

    def take(self, delta: TokenDelta, most_tokens: int | None = None) -> TokenDelta:
        """`delta` with the first of what waits, its own tokens last; the rest waits on."""
        tokens, scores = self.withheld + delta.token_ids, self.scores + delta.logprobs
        sent = len(tokens) if most_tokens is None else max(most_tokens, 0)
        self.withheld, self.scores = tokens[sent:], scores[sent:]
        return msgspec.structs.replace(delta, token_ids=tokens[:sent], logprobs=scores[:sent])


class Outbox:
    """One account a live request."""

    def __init__(self, most_withheld_tokens: int = MOST_WITHHELD_TOKENS) -> None:
        self._most_withheld = most_withheld_tokens
        self._accounts: dict[str, _Account] = {}

    def open(self, request_id: str, credit: int) -> None:
        """A new request; an id in use keeps its account."""
        self._accounts.setdefault(request_id, _Account(credit))

    def grant(self, request_id: str, credit: int) -> TokenDelta | None:
        """More credit, and what it sets free; unknown ids are ignored."""
        account = self._accounts.get(request_id)
        if account is None:
            return None
        account.credit += credit
        if not account.withheld or account.credit <= 0:
            return None
        return self._pay(account, TokenDelta(request_id, ()))

    def pass_on(self, delta: TokenDelta) -> TokenDelta | None:
        """The delta to send now, if any, with what was withheld before it."""
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
        """Whether more tokens wait than a reader may leave."""
        account = self._accounts.get(request_id)
        return account is not None and len(account.withheld) > self._most_withheld

    def _pay(self, account: _Account, delta: TokenDelta) -> TokenDelta | None:
        paid = account.take(delta, account.credit)
        account.credit -= len(paid.token_ids)
        return paid if paid.token_ids else None
