"""Requests for an adapter go to engines that have it, while a roll-out brings it to the others."""

from __future__ import annotations

import aiohttp
import pytest
from sluice_contract.cluster.labels import Role
from sluice_router.engines import EngineState, with_adapter

from tests.router import fakes
from tests.router.test_pick import engine


@pytest.mark.parametrize(("model", "asked"), [("poems", 1), ("base", 2), ("prose", 2)])
async def test_engines_without_the_adapter_are_not_asked(model: str, asked: int) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as one,
        fakes.running_engine(fakes.answers_json) as other,
    ):
        other.load = fakes.load_report(adapters={"poems": "poems@01"})
        async with fakes.running_router(one.url, other.url) as router:
            for _ in range(2):  # by the second time the first report is known
                other.polled.clear()
                await other.polled.wait()
            async with aiohttp.ClientSession() as client:
                for _ in range(8):
                    body = {"model": model, "prompt": "a"}
                    async with client.post(router.url + "/v1/completions", json=body) as answer:
                        assert answer.status == 200
                async with client.get(router.metrics_url + "/load") as answer:
                    rows = (await answer.json())["engines"]
    assert [row["report"]["adapters"] for row in rows] == [{}, {}], "no load, and long"
    assert len(other.calls) > 0
    assert (len(one.calls) > 0) == (asked == 2)


def has(name: str, role: Role, key: str | None) -> EngineState:
    return engine(name, role=role, adapters={"poems": key} if key else {})


@pytest.mark.parametrize(
    ("prefill", "decode", "asked"),
    [
        (["1", "1"], ["1", None], "p0 p1 d0"),
        (["1", "2", "2"], ["1", "2"], "p1 p2 d1"),
        (["1"], ["2"], ""),
        ([None], ["1"], ""),
        ([None], [None], "p0 d0"),
    ],
    ids=["loading", "another version comes", "unlike", "in one pool", "the model"],
)
def test_both_engines_of_a_pair_have_the_same_one(
    prefill: list[str | None], decode: list[str | None], asked: str
) -> None:
    engines = [has(f"p{n}", Role.PREFILL, key) for n, key in enumerate(prefill)]
    engines += [has(f"d{n}", Role.DECODE, key) for n, key in enumerate(decode)]
    assert [one.endpoint.name for one in with_adapter(engines, "poems")] == asked.split()
