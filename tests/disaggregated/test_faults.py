"""Engines of two pools that die, restart, leave or are silent: the client gets the right answer or
a named error, and nothing is held afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import httpx
import pytest

from tests.disaggregated.asking import ask, ask_all, check, task, text
from tests.disaggregated.direct import ask_pair, error_of, life_of
from tests.disaggregated.engines import EngineProcess
from tests.disaggregated.proxy import proxy
from tests.disaggregated.service import Service, running_service
from tests.runtime.launch.processes import HANG_SECONDS, until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("disaggregated")]

LONG = text(6000, 1, logprobs=2)
"""A second or two of prefill, in about a hundred chunks."""
ENDLESS = text(100, 2, max_tokens=6000)
READ = "sluice_handover_read_bytes_total"
BACKENDS = ["Mooncake", pytest.param("TCP", marks=pytest.mark.full)]


@pytest.fixture(scope="module", params=BACKENDS)
def pools(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    settings: dict[str, Any] = {"chunkSize": 64, "prefixCache": False, "kvPoolTokens": 16384}
    settings["kvTransfer"] = {"backend": request.param}
    with running_service(tmp_path_factory.mktemp("service"), 2, 2, **settings) as service:
        yield service


@pytest.fixture
def service(pools: Service) -> Iterator[Service]:
    """Nothing is held when a test ends; engines that ended are there for the next."""
    yield pools
    pools.idle(*pools.ended())
    pools.mend()


@pytest.fixture(scope="module")
def expected(pools: Service) -> Any:
    answer = ask(pools.url, LONG)
    pools.idle()
    return answer


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as clients:
        yield clients


def transferring(service: Service, asked: Future[Any]) -> tuple[EngineProcess, EngineProcess]:
    """The pair of the one request that is asked, once some of its pages were read."""
    before = {id(engine): engine.metric(READ) for engine in service.decodes}
    found: list[list[EngineProcess]] = []

    def both_busy() -> bool:
        found[:] = busy(service.prefills), busy(service.decodes)
        return all(found)

    until(both_busy)
    (prefill,), (decode,) = found
    until(lambda: decode.metric(READ) > before[id(decode)])
    assert not asked.done(), "the prompt is too short for this machine"
    return prefill, decode


def busy(engines: list[EngineProcess]) -> list[EngineProcess]:
    return [engine for engine in engines if any(asdict(engine.load().figures.queues).values())]


def running(engines: list[EngineProcess]) -> list[EngineProcess]:
    """Those that compute a request, once there are some."""
    found: list[EngineProcess] = []

    def some() -> bool:
        found[:] = [engine for engine in engines if engine.load().figures.running_requests]
        return bool(found)

    until(some)
    return found


def test_a_prefill_engine_killed_in_a_transfer_costs_time_and_no_request(
    service: Service, clients: ThreadPoolExecutor, expected: Any
) -> None:
    asked = clients.submit(ask, service.url, LONG)
    prefill, _ = transferring(service, asked)
    prefill.signal(signal.SIGKILL)
    check(LONG, asked.result(), expected)
    assert service.router.metric('sluice_router_retries_total{reason="prefill"}') >= 1


def test_a_decode_engine_killed_in_a_transfer_costs_time_and_no_request(
    service: Service, clients: ThreadPoolExecutor, expected: Any
) -> None:
    asked = clients.submit(ask, service.url, LONG)
    _, decode = transferring(service, asked)
    decode.signal(signal.SIGKILL)
    check(LONG, asked.result(), expected)


def test_the_former_life_of_a_prefill_engine_is_refused_and_the_next_one_serves(
    service: Service, clients: ThreadPoolExecutor, expected: Any
) -> None:
    """It dies in a transfer, and comes back at the same address."""
    prefill, decode = service.prefills[0], service.decodes[0]
    former = life_of(prefill)
    asked = clients.submit(ask_pair, decode, former, LONG)
    transferring(service, asked)
    prefill.stop()
    status, code, message = error_of(asked.result())
    assert (status, code) == (503, "prefill_failed")
    # The link has the name by which it was asked for first, which may be the router's.
    assert former.name in message or prefill.url in message
    gone = ask_pair(decode, former, LONG)
    status, code, message = error_of(gone)
    assert (status, code) == (503, "prefill_unavailable")
    assert "p-0: cannot connect" in message
    prefill.restart()
    answers = ask_all(service.url, [task("copy", 200, seed) for seed in range(4)])
    for seed, answer in enumerate(answers):  # whatever life the router knows of
        check(task("copy", 200, seed), answer)
    status, code, message = error_of(ask_pair(decode, former, LONG))
    assert (status, code) == (503, "prefill_unavailable")
    assert f"OtherEpoch: epoch {former.epoch} is meant" in message
    check(LONG, ask_pair(decode, life_of(prefill), LONG).json(), expected)


def test_a_decode_engine_killed_in_an_answer_is_followed_by_another(
    service: Service, clients: ThreadPoolExecutor
) -> None:
    asked = text(100, 5, max_tokens=1500)
    drawn = {engine: engine.load().figures.generated_tokens_total for engine in service.decodes}
    streaming = clients.submit(ask, service.url, asked, stream=True)
    (decode,) = running(service.decodes)
    until(lambda: (decode.load().figures.generated_tokens_total or 0) > (drawn[decode] or 0) + 20)
    decode.signal(signal.SIGKILL)
    answer = streaming.result()
    assert answer["choices"][0]["text"] == ask(service.url, asked)["choices"][0]["text"]
    assert service.router.metric("sluice_router_streams_resumed_total") >= 1


@pytest.mark.parametrize("pool", ["prefills", pytest.param("decodes", marks=pytest.mark.full)])
def test_an_engine_that_is_asked_to_leave_finishes_what_it_has(
    service: Service, clients: ThreadPoolExecutor, expected: Any, pool: str
) -> None:
    def retries() -> float:
        return service.router.metric("sluice_router_retries_total")

    before = retries()
    asked = clients.submit(ask, service.url, LONG)
    prefill, decode = transferring(service, asked)
    leaving = prefill if pool == "prefills" else decode
    leaving.process.popen.terminate()
    check(LONG, asked.result(), expected)
    assert leaving.process.popen.wait(HANG_SECONDS) == 0
    assert retries() == before


@pytest.mark.full
def test_a_decode_engine_asked_to_leave_ends_its_streams_whole(
    service: Service, clients: ThreadPoolExecutor
) -> None:
    asked = text(100, 3, max_tokens=1500)
    streaming = clients.submit(ask, service.url, asked, stream=True)
    (decode,) = running(service.decodes)
    assert not streaming.done()
    decode.process.popen.terminate()
    answer = streaming.result()
    assert decode.process.popen.wait(HANG_SECONDS) == 0
    whole = ask(service.url, asked)
    assert answer["choices"][0]["text"] == whole["choices"][0]["text"]


@pytest.mark.parametrize("phase", ["transfer", "decode"])
def test_a_client_that_goes_leaves_nothing(
    service: Service, clients: ThreadPoolExecutor, phase: str
) -> None:
    request = LONG if phase == "transfer" else ENDLESS
    body = {**request.body, "stream": True}
    with httpx.Client(verify=False, timeout=HANG_SECONDS) as client:
        if phase == "decode":
            with client.stream("POST", service.url + request.path, json=body) as response:
                lines = response.iter_lines()  # kept: the connection closes with it
                next(lines)
                until(
                    lambda: any(
                        engine.load().figures.running_requests for engine in service.decodes
                    )
                )
        else:
            impatient = httpx.Timeout(HANG_SECONDS, read=0.4)
            with pytest.raises(httpx.ReadTimeout):
                client.post(service.url + request.path, json=body, timeout=impatient)
    tokens = [engine.metric("sluice_generated_tokens_total") for engine in service.decodes]
    service.idle()
    assert sum(tokens) < 20_000, "it was over, not aborted"


@pytest.mark.full
def test_a_full_queue_of_a_prefill_engine_is_429(
    tmp_path: Any, clients: ThreadPoolExecutor
) -> None:
    small = {"maxRunningRequests": 1, "maxQueuedRequests": 2}
    with running_service(tmp_path, prefill=small, chunkSize=64) as service:
        (prefill,), (decode,) = service.prefills, service.decodes
        ref = life_of(prefill)
        asked = [text(2000, seed) for seed in range(8)]
        direct = list(clients.map(lambda request: ask_pair(decode, ref, request), asked))
        assert {answer.status_code for answer in direct} == {200, 429}
        refused = next(answer for answer in direct if answer.status_code == 429)
        _, code, message = error_of(refused)
        assert code == "queue_full"
        assert "prefill engine p-0: the queue is full: 3 requests" in message
        assert int(refused.headers["retry-after"]) >= 1
        service.idle()


@pytest.mark.full
def test_a_decode_engine_without_pages_waits(service: Service, clients: ThreadPoolExecutor) -> None:
    """Each of these takes most of a pool."""
    asked = [text(5000, seed, max_tokens=400) for seed in range(7)]
    answers = [clients.submit(ask, service.url, request) for request in asked]
    until(lambda: any(engine.load().figures.queues.prealloc for engine in service.decodes))
    small = task("copy", 200, 9)
    check(small, ask(service.url, small))
    for answer in answers:
        assert answer.result()["usage"]["completion_tokens"] == 400


@pytest.mark.full
def test_through_a_slow_connection_it_takes_longer(service: Service, expected: Any) -> None:
    prefill, decode = service.prefills[0], service.decodes[0]
    life = life_of(prefill)
    with proxy(life.port) as slow:
        slow.delay_seconds = 0.2
        far = life.model_copy(update={"port": slow.port})
        check(LONG, ask_pair(decode, far, LONG).json(), expected)
        assert slow.passed_bytes > len(LONG.body["prompt"])


def test_a_reset_connection_ends_its_requests_by_name(service: Service) -> None:
    decode, life = service.decodes[0], life_of(service.prefills[0])
    before = decode.metric(READ)
    with proxy(life.port) as cut:
        far = life.model_copy(update={"port": cut.port})
        cut.passes_bytes = 2 * len(LONG.body["prompt"])  # the prompt, and credits for pages
        status, code, message = error_of(ask_pair(decode, far, LONG))
    assert decode.metric(READ) > before
    assert (status, code) == (503, "prefill_failed")
    assert "prefill engine p-0: " in message


@pytest.mark.full
@pytest.mark.parametrize("fault", ["stalled", "stopped"])
def test_silence_ends_a_request_within_its_time(
    service: Service, clients: ThreadPoolExecutor, fault: str
) -> None:
    """A request of the same decode engine whose prefill engine is well goes on meanwhile."""
    prefill, decode = service.prefills[0], service.decodes[0]
    life, well = life_of(prefill), life_of(service.prefills[1])
    with proxy(life.port) as mute:
        far = life.model_copy(update={"port": mute.port})
        asked = clients.submit(ask_pair, decode, far, LONG)
        assert transferring(service, asked) == (prefill, decode)
        if fault == "stopped":
            prefill.signal(signal.SIGSTOP)
        else:
            mute.stalled.set()
        other = task("copy", 200, 0)
        check(other, ask_pair(decode, well, other).json())
        assert not asked.done(), "the other one waited for the silent one"
        status, code, message = error_of(asked.result(timeout=30))
        prefill.signal(signal.SIGCONT)
    assert (status, code) == (503, "prefill_failed")
    assert "prefill engine p-0: " in message
    # Of an engine that is stopped, a read may be the first to fail.
    assert fault == "stopped" or "silent for 12 s" in message
