"""Credit bounds the tokens sent and withheld; none is lost or reordered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.engine.outbox import Outbox
from sluice_runtime.wire.messages import TokenDelta


def delta(*tokens: int, reason: str | None = None) -> TokenDelta:
    return TokenDelta("a", tokens, reason)  # type: ignore[arg-type]


def test_tokens_are_withheld_once_credit_is_spent_and_sent_with_the_next_grant() -> None:
    outbox = Outbox()
    outbox.open("a", 2)
    assert outbox.pass_on(delta(1)) == delta(1)
    assert outbox.pass_on(delta(2)) == delta(2)
    assert outbox.pass_on(delta(3)) is None
    assert outbox.pass_on(delta(4)) is None
    assert outbox.grant("a", 1) == delta(3)
    assert outbox.grant("a", 5) == delta(4)
    assert outbox.grant("a", 5) is None
    assert outbox.pass_on(delta(5)) == delta(5)


def test_released_tokens_use_up_credit() -> None:
    outbox = Outbox()
    outbox.open("a", 0)
    outbox.pass_on(delta(1))
    outbox.pass_on(delta(2))
    assert outbox.grant("a", 1) == delta(1)
    assert outbox.pass_on(delta(3)) is None
    assert outbox.grant("a", 1) == delta(2)


def test_the_last_delta_carries_all_withheld_tokens() -> None:
    outbox = Outbox()
    outbox.open("a", 1)
    outbox.pass_on(delta(1))
    outbox.pass_on(delta(2))
    assert outbox.pass_on(delta(3, reason="length")) == delta(2, 3, reason="length")
    assert outbox.grant("a", 5) is None


def test_a_reader_is_too_slow_beyond_the_bound() -> None:
    outbox = Outbox(max_withheld_tokens=2)
    outbox.open("a", 0)
    for token in (1, 2):
        outbox.pass_on(delta(token))
        assert not outbox.overdrawn("a")
    outbox.pass_on(delta(3))
    assert outbox.overdrawn("a")


def test_4096_tokens_may_be_withheld() -> None:
    outbox = Outbox()
    outbox.open("a", 0)
    outbox.pass_on(delta(*range(4096)))
    assert not outbox.overdrawn("a")
    outbox.pass_on(delta(0))
    assert outbox.overdrawn("a")


def test_a_request_without_an_account_passes() -> None:
    refused = delta(reason="error")
    assert Outbox().pass_on(refused) == refused


@given(
    credit=st.integers(0, 5),
    steps=st.lists(st.one_of(st.none(), st.integers(1, 4)), max_size=30),
)
def test_every_token_arrives_once_and_in_order(credit: int, steps: list[int | None]) -> None:
    """None: one more token is generated; a number: so much credit is granted."""
    outbox, made, granted = Outbox(), 0, credit
    got: list[int] = []
    outbox.open("a", credit)
    for step in steps:
        if step is None:
            made += 1
            sent = outbox.pass_on(delta(made))
        else:
            granted += step
            sent = outbox.grant("a", step)
        got += sent.token_ids if sent else ()
        assert len(got) <= granted
    last = outbox.pass_on(delta(made + 1, reason="stop"))
    assert last
    assert [*got, *last.token_ids] == list(range(1, made + 2))
