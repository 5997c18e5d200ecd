"""A real HTTP server over a fake engine, in the test's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import openai
import pytest
import pytest_asyncio
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_runtime.errors import UnavailableError
from sluice_runtime.model import files as model_files
from sluice_runtime.model.chat_template import load_chat_template
from sluice_runtime.model.tokenizer import load_tokenizer
from sluice_runtime.server.app import make_app
from sluice_runtime.server.engine_client import EngineClient
from sluice_runtime.server.http import Gate, HttpServer, listen, url_of
from sluice_runtime.server.metrics import EngineMetrics
from sluice_runtime.server.prompts import ModelText
from sluice_runtime.server.sampling_plan import Defaults
from sluice_runtime.server.service import Clocks, Identity, Service
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.transport import ApiLink

from tests.patience import PATIENCE_SECONDS
from tests.runtime.server.fake_engine import EOS, FakeEngine

MODEL = "echo"
MAX_BODY_BYTES = 64 * 1024


@dataclass
class Server:
    """What a test holds in its hands."""

    url: str
    service: Service
    engine: FakeEngine
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI


@pytest.fixture
def endpoint() -> Iterator[str]:
    with private_endpoint() as value:
        yield value


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server() -> AsyncIterator[Server]:
    """One server for the tests of a module, which run in one event loop."""
    with private_endpoint() as endpoint:
        async with running_server(endpoint) as server:
            yield server


@pytest.fixture
def server(module_server: Server) -> Iterator[Server]:
    """The module's server, with an engine that has heard nothing yet."""
    engine = module_server.engine
    engine.heard.clear()
    yield module_server
    engine.paused.clear()
    engine.queued = 0
    engine.joined_at = None
    engine.refuse_with = None
    engine.refusal = None


@asynccontextmanager
async def running_server(
    endpoint: str, role: Role = Role.MIXED, key: bytes | None = None, *, required: bool = False
) -> AsyncIterator[Server]:
    """A server and its engine, ready; both end with the context."""
    link = ApiLink(endpoint)
    service = service_over(link, role, key, required=required)
    engine = FakeEngine(endpoint)
    engine.start()
    reading = asyncio.create_task(service.client.run())
    listener = listen("127.0.0.1", 0)
    http_server = HttpServer(make_app(service))
    serving = asyncio.create_task(http_server.serve([listener]))
    url = url_of(listener)
    await until(lambda: service.ready)
    async with (
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        yield Server(url, service, engine, http, sdk)
    service.client.end_streams(UnavailableError("the test is over"))
    http_server.should_exit = True
    await serving
    await asyncio.to_thread(engine.stop)
    reading.cancel()
    link.close()


def service_over(
    link: ApiLink, role: Role = Role.MIXED, key: bytes | None = None, *, required: bool = False
) -> Service:
    """The parts of an API process with the text of a dummy model. The engine sends a token once the
    one before it was read, so that each has an event of its own."""
    metrics = EngineMetrics()
    client = EngineClient(link, time.monotonic, metrics, credit_tokens=1)
    identity = Identity(
        MODEL,
        role,
        MAX_BODY_BYTES,
        started_unix=1,
        handover_keys=(lambda: (key,)) if key else None,
        kv_transfer=None if role is Role.MIXED else KvTransfer(),
        requires_signature=required,
    )
    service = Service(identity, client, Gate(), metrics, Clocks(time.monotonic, time.time))
    files = model_files.resolve("dummy://qwen3-tiny")
    service.text = ModelText(
        load_tokenizer(files), load_chat_template(files), Defaults(eos_token_ids=(EOS,))
    )
    return service


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Returns when `condition` holds; a test that would wait longer fails."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (the condition is in another thread)
            await asyncio.sleep(0.002)
