"""Affinity: which requests have the same key, and that the load stays even whatever the keys."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_router.engines import Endpoint, EngineState, Phase, ReceivedReport
from sluice_router.pick import (
    MARGINS,
    MAX_PARSED_BYTES,
    Affinity,
    AffinityReason,
    Choice,
    Draw,
    affinity_of,
    pick,
    pick_pair,
    preferred,
)

from tests.examples import examples
from tests.router.affinity_model import simulate
from tests.router.fakes import load_report

NOW = 1000.0
SYSTEM = {"role": "system", "content": "You are brief. " * 400}


def key(body: dict[str, Any], routing_key: str | None = None) -> bytes | None:
    affinity = affinity_of(routing_key, json.dumps({"model": "m", **body}).encode())
    return affinity and affinity.key


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"messages": [SYSTEM, *turns], **fields}


def test_all_turns_of_a_conversation_have_one_key_and_another_has_another() -> None:
    first = key(chat("hello"))
    assert first is not None
    assert key(chat("hello", "Hi!", "and?")) == key(chat("hello", seed=7, stream=True)) == first
    assert key(chat("goodbye")) != first


def test_completions_have_the_key_of_their_beginning() -> None:
    text = "once " * 400
    first = key({"prompt": text})
    assert key({"prompt": text + "upon"}) == first
    assert key({"prompt": "twice" + text}) != first
    assert key({"prompt": list(range(900))}) == key({"prompt": list(range(901))})


def test_responses_have_the_key_of_their_instructions_and_first_turns() -> None:
    instructions = "You are brief. " * 400
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi!"}]
    first = key({"instructions": instructions, "input": turns[:1]})
    assert first is not None
    assert key({"instructions": instructions, "input": turns, "stream": True}) == first
    assert key({"instructions": "Shout. " * 400, "input": turns}) != first
    text = key({"instructions": instructions, "input": "hello"})
    assert text is not None
    assert text != key({"instructions": instructions, "input": "goodbye"})
    assert key({"input": "once " * 400}) == key({"input": "once " * 400 + "upon"}) is not None


def test_a_short_prompt_prefers_no_engine() -> None:
    assert key({"prompt": "hello"}) is None
    assert key({"messages": [{"role": "user", "content": "hello"}]}) is None
    assert key({"instructions": "Be brief.", "input": "hello"}) is None
    assert key({}) is None


def test_a_salt_is_part_of_the_key() -> None:
    assert key(chat("hello", cache_salt="a")) != key(chat("hello", cache_salt="b"))
    assert key(chat("hello", cache_salt="a")) != key(chat("hello"))


def test_a_session_has_its_own_key_whatever_it_asks() -> None:
    assert key(chat("hello"), "s1") == key({"prompt": "short"}, "s1") != key(chat("hello"))
    affinity = affinity_of("s1", b"no JSON")
    assert affinity is not None
    assert affinity.reason == "SameSession"
    assert affinity.margin > MARGINS["SamePrefix"]


@pytest.mark.parametrize("fields", [{}, {"seed": 1}])
def test_a_long_body_is_not_parsed(fields: dict[str, int]) -> None:
    long = "word " * (MAX_PARSED_BYTES // 5)
    assert key({**fields, "prompt": long}) == key({**fields, "prompt": long + "more"})
    assert key({**fields, "prompt": long}) != key({**fields, "prompt": "other" + long})
    assert key({"prompt": long}) == key({"seed": 2, "prompt": long})


@examples(40)
@given(
    st.binary()
    | st.builds(
        lambda value, name: json.dumps({name: value}).encode(),
        st.recursive(st.none() | st.text() | st.integers(), st.lists),
        st.sampled_from(["prompt", "messages", "cache_salt"]),
    )
)
def test_what_no_engine_would_accept_harms_nothing(body: bytes) -> None:
    affinity_of(None, body)


def engine(name: str, role: Role = Role.MIXED, **load: Any) -> EngineState:
    load = {"bootstrap_port": 8998 if role is Role.PREFILL else None} | load
    report = ReceivedReport(load_report(role=role, **load), NOW, own_inflight=0)
    return EngineState(Endpoint(name, f"http://{name}", role, Phase.READY), received=report)


def affinity(number: int = 0, reason: AffinityReason = "SamePrefix") -> Affinity:
    return Affinity(number.to_bytes(4, "big"), reason, MARGINS[reason])


def test_an_engine_that_leaves_takes_only_its_own_keys_along() -> None:
    engines = [engine(f"e{number}") for number in range(8)]
    keys = [affinity(number) for number in range(800)]
    before = [preferred(one, engines).endpoint.name for one in keys]
    after = [preferred(one, engines[:-1]).endpoint.name for one in keys]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != "e7")
    assert max(Counter(before).values()) < 2 * 800 / 8


def choice(engines: list[EngineState], wanted: Affinity, **more: Any) -> Choice:
    return pick(engines, NOW, Draw(0.0, 0.0, 0.0), stale_seconds=5.0, affinity=wanted, **more)


def loaded(wanted: Affinity, running: int, elsewhere: int) -> tuple[str, str]:
    """Whether the preferred of two engines is taken, and why."""
    engines = [engine("a"), engine("b")]
    first = preferred(wanted, engines).endpoint.name
    counts = {name: running if name == first else elsewhere for name in ("a", "b")}
    found = choice([engine(name, running_requests=count) for name, count in counts.items()], wanted)
    assert found.engine is not None
    taken = "preferred" if found.engine.endpoint.name == first else "other"
    return taken, found.reason


def test_the_preferred_engine_is_taken_within_the_margin() -> None:
    assert loaded(affinity(), 4, 0) == ("preferred", "SamePrefix")
    assert loaded(affinity(), 5, 0) == ("other", "LessLoaded")
    session = affinity(reason="SameSession")
    assert loaded(session, 15, 0) == ("preferred", "SameSession")


def test_no_request_waits_for_a_full_engine_while_another_could_have_it() -> None:
    session = affinity(reason="SameSession")
    assert loaded(session, 16, 15) == ("other", "LessLoaded")
    assert loaded(session, 20, 16) == ("preferred", "SameSession")
    assert loaded(session, 33, 16) == ("other", "LessLoaded")


def test_one_that_failed_or_was_tried_is_not_preferred() -> None:
    engines = [engine(f"e{number}") for number in range(4)]
    first = preferred(affinity(), engines)
    second = preferred(affinity(), [one for one in engines if one is not first])
    assert choice(engines, affinity(), tried={first.key}).engine == second
    broken = [replace(e, failed_until_seconds=NOW + 1) if e is first else e for e in engines]
    assert choice(broken, affinity()).engine == second


def test_of_a_pair_the_prefill_engine_is_preferred_and_decode_goes_by_load() -> None:
    prefills = [engine(f"p{number}", Role.PREFILL) for number in range(6)]
    decodes = [engine(f"d{number}", Role.DECODE, running_requests=number) for number in range(2)]
    for number in range(20):
        wanted = affinity(number)
        draws = (Draw(0.1, 0.5, 0.9), Draw(0.1, 0.5, 0.9))
        found = pick_pair([*prefills, *decodes], NOW, draws, stale_seconds=5.0, affinity=wanted)
        assert found.prefill == preferred(wanted, prefills)
        assert found.decode == decodes[0]
        assert found.reason == "SamePrefix"


WEIGHTS = list(accumulate(1 / (rank + 1) ** 1.1 for rank in range(600)))
KEYS: dict[str, Callable[[Random], int]] = {
    "even": lambda source: source.randrange(300),
    "skewed": lambda source: source.choices(range(600), cum_weights=WEIGHTS)[0],
    "one": lambda source: 1,
}
HALF, BUSY = 35.0, 48.0
"""Requests a second of which the model's engines are half, and four fifths, full."""


@pytest.mark.parametrize("keys", ["even", pytest.param("skewed", marks=pytest.mark.process)])
@pytest.mark.parametrize("reason", MARGINS)
def test_more_prefixes_are_found(keys: str, reason: AffinityReason) -> None:
    without = simulate(KEYS[keys], None, per_second=HALF)
    found = simulate(KEYS[keys], reason, per_second=HALF)
    assert found.hit_rate > without.hit_rate + 0.2
    assert found.mean < without.mean


@pytest.mark.process
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("per_second", [HALF, BUSY])
@pytest.mark.parametrize(("reason", "factor"), [("SamePrefix", 1.75), ("SameSession", 2.1)])
def test_no_engine_has_much_more_than_its_share(
    keys: str, per_second: float, reason: AffinityReason, factor: float
) -> None:
    """Also if all requests prefer the same engine."""
    found = simulate(KEYS[keys], reason, per_second=per_second)
    assert found.mean >= 0.5
    assert max(found.shares) < factor * found.mean
