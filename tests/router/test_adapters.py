"""Requests for an adapter go to engines that have it, while a roll-out brings it to the others."""

from __future__ import annotations

import aiohttp
import pytest

from tests.router import fakes


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
    assert len(other.calls) > 0
    assert (len(one.calls) > 0) == (asked == 2)
