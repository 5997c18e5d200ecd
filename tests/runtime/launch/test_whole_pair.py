"""A prefill and a decode engine as whole programs: answers, deaths of either, and a drain."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sluice_contract.engine_http import REQUEST_ID_HEADER
from sluice_contract.handover import PREFILL_HEADER, PrefillRef, signed_header
from sluice_contract.load import LoadReport

from e2e.cluster.ports import free_port
from tests.runtime.launch.processes import (
    HANG_SECONDS,
    Process,
    get,
    program,
    running,
    status,
    until,
    write_config,
)

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("whole-pair")]
KEY = "a key of a service, long enough for all"
POOL_TOKENS = 16384


@dataclass
class Pair:
    """Both programs, and the address of each; the prefill engine can be started anew."""

    stack: ExitStack
    folder: Path
    bootstrap_port: int
    backend: str

    def __post_init__(self) -> None:
        self.start_prefill()
        self.decode = self._started("decode")
        self.prefill_url, self.url = self.prefill.ready_url(), self.decode.ready_url()

    def start_prefill(self) -> None:
        self.prefill = self._started("prefill")

    def _started(self, role: str) -> Process:
        folder = self.folder / role
        folder.mkdir(exist_ok=True)
        (folder / "key").write_text(KEY)
        config = write_config(
            folder,
            role=role,
            kvPoolTokens=POOL_TOKENS,
            handoverKeyFile=str(folder / "key"),
            kvTransfer={"backend": self.backend, "bootstrapPort": self.bootstrap_port},
        )
        return self.stack.enter_context(running(program(config)))

    def load(self, url: str) -> LoadReport:
        return LoadReport.model_validate_json(get(url, "/load").content)

    def headers(self, name: str) -> dict[str, str]:
        report = self.load(self.prefill_url)
        assert report.bootstrap_port
        ref = PrefillRef(host="127.0.0.1", port=report.bootstrap_port, epoch=report.epoch)
        signed = signed_header(KEY.encode(), ref, name, time.time())
        return {REQUEST_ID_HEADER: name, PREFILL_HEADER: signed}

    def ask(self, name: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = {"model": "tiny", "prompt": "x" * 500, "max_tokens": 5, "temperature": 0} | fields
        return httpx.post(
            f"{self.url}/v1/completions",
            json=body,
            headers=headers or self.headers(name),
            timeout=HANG_SECONDS,
        )

    def all_free(self, url: str) -> bool:
        report = self.load(url)
        pages = POOL_TOKENS // 16
        queues = report.queues.model_dump().values() if report.queues else ()
        free = report.kv_pages_free + report.kv_pages_evictable == pages
        return free and not any(queues) and not report.running_requests


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, tmp_path, free_port(), request.param)


@pytest.mark.parametrize("pair", ["TCP", "Mooncake"], indirect=True)
def test_a_pair_answers_and_outlives_the_deaths_of_its_prefill_engine(pair: Pair) -> None:
    expected = pair.ask("first").json()["choices"][0]
    assert expected["finish_reason"] == "length"
    assert pair.ask("again").json()["choices"][0] == expected
    headers = {name: pair.headers(name) for name in map("r{}".format, range(12))}
    with ThreadPoolExecutor(len(headers)) as clients:
        asked = [
            clients.submit(pair.ask, name, signed, prompt=[number] * 3000, max_tokens=3)
            for number, (name, signed) in enumerate(headers.items())
        ]
        until(lambda: bool((queues := pair.load(pair.url).queues) and queues.transfer))
        os.kill(pair.prefill.child("sluice_runtime.engine"), signal.SIGKILL)
        answers = [one.result() for one in asked]
    assert {answer.status_code for answer in answers} <= {200, 503}
    failed = [answer.json()["error"] for answer in answers if answer.status_code == 503]
    assert failed
    # Whoever got pages after the death never reached the engine.
    assert {error["code"] for error in failed} <= {"prefill_failed", "prefill_unavailable"}
    until(lambda: pair.all_free(pair.url))
    pair.prefill.popen.wait(HANG_SECONDS)
    pair.start_prefill()  # on the same bootstrap port, with another epoch
    pair.prefill_url = pair.prefill.ready_url()
    assert pair.ask("old-life", headers["r0"]).status_code in (403, 503)
    assert pair.ask("after").json()["choices"][0] == expected
    until(lambda: pair.all_free(pair.prefill_url))


@pytest.mark.parametrize("pair", ["TCP"], indirect=True)
def test_the_death_of_a_decode_engine_frees_all_pages_of_its_prefill_engine(pair: Pair) -> None:
    headers = {name: pair.headers(name) for name in map("r{}".format, range(12))}
    with ThreadPoolExecutor(len(headers)) as clients:
        asked = [
            clients.submit(pair.ask, name, signed, prompt=[number] * 3000)
            for number, (name, signed) in enumerate(headers.items())
        ]
        until(lambda: not pair.all_free(pair.prefill_url))
        os.kill(pair.decode.child("sluice_runtime.engine"), signal.SIGKILL)
        for one in asked:
            assert one.exception() or one.result().status_code in (200, 503)
    until(lambda: pair.all_free(pair.prefill_url))
    assert get(pair.prefill_url, "/health_generate").status_code == 200


@pytest.mark.parametrize("pair", ["TCP"], indirect=True)
def test_a_prefill_engine_that_drains_first_finishes_what_was_asked_of_it(pair: Pair) -> None:
    headers = {name: pair.headers(name) for name in map("r{}".format, range(8))}
    with ThreadPoolExecutor(len(headers)) as clients:
        asked = [
            clients.submit(pair.ask, name, signed, prompt=[number] * 2000)
            for number, (name, signed) in enumerate(headers.items())
        ]
        # The others come while it still takes rooms: it is leaving, and the router may not know.
        until(lambda: sum(pair.load(pair.prefill_url).queues.model_dump().values()) > 0)
        pair.prefill.popen.terminate()
        answers = [one.result() for one in asked]
    assert [answer.status_code for answer in answers] == [200] * 8
    assert pair.prefill.popen.wait(HANG_SECONDS) == 0
    assert status(pair.url, "/health") == 200
