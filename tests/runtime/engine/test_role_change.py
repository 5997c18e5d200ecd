"""When an engine may leave its role for another one: nothing that it has begun is left."""

from __future__ import annotations

import pytest
from sluice_contract.cluster.labels import Role
from sluice_runtime.engine.loop import EngineLoop
from sluice_runtime.wire.messages import Drain, TakeRole

from tests.runtime.engine.test_loop import FakeLink, ask, loop_on
from tests.runtime.scheduler.fake_runner import answer_to

NOW = TakeRole(Role.PREFILL, lame_duck_seconds=0, drain_seconds=0)


def run(loop: EngineLoop, turns: int = 300) -> tuple[Role | None, int]:
    """The role that it leaves for, and after how many turns."""
    left = iter(range(turns))
    role = loop.run(lambda: next(left, None) is None)
    return role, turns - len(list(left))


def test_it_ends_what_it_has_begun_and_refuses_what_comes_later() -> None:
    loop = loop_on(link := FakeLink())
    link.coming.append([ask("a", 5, 20), NOW, ask("late", 5, 3)])
    assert run(loop)[0] is Role.PREFILL
    assert link.answer("a") == answer_to(range(5), 20)
    ((reason, error),) = link.ends("late")
    assert (reason, "another role" in (error or "")) == ("error", True)


def test_routers_that_do_not_know_yet_may_send_more() -> None:
    loop = loop_on(link := FakeLink())
    lame_duck = TakeRole(Role.PREFILL, lame_duck_seconds=100, drain_seconds=0)  # a second a look
    link.coming += [[lame_duck], [ask("in time", 5, 3)]]
    role, turns = run(loop)
    assert (role, turns > 20) == (Role.PREFILL, True)
    assert link.answer("in time") == answer_to(range(5), 3)


def test_it_stays_while_other_engines_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_on(link := FakeLink())
    link.coming.append([NOW])
    monkeypatch.setattr(loop._role, "busy", True, raising=False)
    assert run(loop) == (None, 300)
    monkeypatch.setattr(loop._role, "busy", False)
    assert run(loop)[0] is Role.PREFILL


def test_an_engine_that_is_to_end_takes_no_other_role() -> None:
    loop = loop_on(link := FakeLink())
    link.coming.append([NOW, Drain()])
    assert run(loop) == (None, 300)
