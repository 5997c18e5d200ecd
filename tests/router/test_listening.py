"""Where a router can be reached."""

from __future__ import annotations

import aiohttp
import pytest
from sluice_contract.config.router import RouterConfig, RouterServer

from tests.router import fakes


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_in_a_pod_it_listens_on_the_pods_address_and_on_loopback(address: str) -> None:
    """`kubectl port-forward` connects to the loopback of the pod."""
    config = RouterConfig(
        engines=("http://127.0.0.1:1",),
        server=RouterServer(port=0, metrics_port=0, lame_duck_seconds=0),
    )
    async with (
        fakes.running_from(config, {"POD_IP": "127.0.0.2"}) as router,
        aiohttp.ClientSession() as client,
    ):
        url = router.url.replace("127.0.0.1", address)
        async with client.get(url + "/health") as response:
            assert response.status == 200
