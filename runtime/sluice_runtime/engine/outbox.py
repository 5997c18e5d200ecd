"""What may be sent of each request: credit, withheld tokens, readers that are too slow.

A request whose credit is spent keeps running while its tokens wait here; beyond a bound it is
ended, so a reader that stopped reading holds neither pages nor memory for long. The terminal delta
takes all waiting tokens with it, so an overdraft never exceeds the bound. Knows no socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from sluice_runtime.messages import TokenDelta

MOST_WITHHELD_TOKENS: Final = 4096


@dataclass(slots=True)
class _Account:
    credit: int
    withheld: list[int] = field(default_factory=list)


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
        return self._pay(account, TokenDelta(request_id, []))

    def pass_on(self, delta: TokenDelta) -> TokenDelta | None:
        """The delta to send now, if any, with what was withheld before it."""
        account = self._accounts.get(delta.request_id)
        if account is None:
            return delta
        if delta.finish_reason is not None:
            del self._accounts[delta.request_id]
            return _with_tokens(delta, account.withheld) if account.withheld else delta
        if account.credit > 0 and not account.withheld:
            account.credit -= len(delta.token_ids)
            return delta
        return self._pay(account, delta)

    def overdrawn(self, request_id: str) -> bool:
        """Whether more tokens wait than a reader may leave."""
        account = self._accounts.get(request_id)
        return account is not None and len(account.withheld) > self._most_withheld

    def _pay(self, account: _Account, delta: TokenDelta) -> TokenDelta | None:
        waiting = [*account.withheld, *delta.token_ids]
        sent, account.withheld = waiting[: account.credit], waiting[account.credit :]
        account.credit -= len(sent)
        return msgspec.structs.replace(delta, token_ids=sent) if sent else None


def _with_tokens(delta: TokenDelta, before: list[int]) -> TokenDelta:
    return msgspec.structs.replace(delta, token_ids=[*before, *delta.token_ids])
