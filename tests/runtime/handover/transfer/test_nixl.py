"""NIXL beside the conformance suite: what it cannot do, which the suite asks of others, and what
keeps it from `protocol: tcp`. Over UCX's TCP, as there is no adapter."""

from __future__ import annotations

import base64
import importlib
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from sluice_runtime.errors import StartupError
from sluice_runtime.handover.transfer import nixl
from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    NotRegisteredError,
    OtherEpochError,
    TransferError,
    TransferTimeoutError,
)
from sluice_runtime.handover.transfer.nixl import NixlBackend, metadata_of
from sluice_runtime.handover.transfer.nixl_agent import NixlAgent

from tests.runtime.handover.transfer.memory_block import MARGIN
from tests.runtime.handover.transfer.peers import SIZE, Setting

TIMEOUT_SECONDS = 20.0


@pytest.fixture(scope="module")
def setting() -> Iterator[Setting]:
    made = Setting("NIXL")
    yield made
    made.close()


def test_without_an_adapter_rdma_is_an_error_and_no_other_wire_is_taken() -> None:
    with pytest.raises(StartupError, match=r"NIXL does not start .* UCX_TLS=rc on devices none:1"):
        NixlBackend("rc", "none:1")


@pytest.mark.parametrize("session", ["127.0.0.1:15000#00", "?#", "abc#1"])
def test_a_session_of_another_backend_is_refused(session: str) -> None:
    with pytest.raises(OtherEpochError, match="not a session of backend NIXL"):
        metadata_of(session)


@pytest.mark.process
def test_a_late_read_says_that_it_may_still_land_and_the_next_one_succeeds(
    setting: Setting,
) -> None:
    """Releasing its handle ends no read."""
    peer, backend, memory = setting.process(), setting.backend(), setting.block()
    backend.register(memory.address, SIZE)
    piece = MemoryPiece(peer.address, memory.address, SIZE)
    backend.read(peer.session, [piece], TIMEOUT_SECONDS)
    memory.fill(bytes(SIZE))
    peer.freeze()
    with pytest.raises(TransferTimeoutError, match=r"not done after 0\.5 s; it may") as caught:
        backend.read(peer.session, [piece], 0.5)
    assert caught.value.may_still_land
    peer.thaw()
    backend.read(peer.session, [piece], TIMEOUT_SECONDS)
    assert memory.bytes_at(0, SIZE) == peer.contents


@pytest.mark.process
def test_a_read_of_a_peer_that_another_thread_forgets_says_that_it_may_still_land(
    setting: Setting,
) -> None:
    peer, memory, agent = setting.process(), setting.block(), NixlAgent("reads", "tcp", "lo")
    agent.register(memory.address, SIZE)
    name = agent.connect(metadata_of(peer.session))
    peer.freeze()
    handle = agent.start_read(name, [MemoryPiece(peer.address, memory.address, SIZE)])
    assert not agent.is_done(handle)
    agent.forget(name)
    with pytest.raises(TransferError, match="forgotten meanwhile") as caught:
        agent.is_done(handle)
    assert caught.value.may_still_land
    with pytest.raises(NotRegisteredError):
        agent.start_read(name, [MemoryPiece(peer.address, memory.address, SIZE)])
    agent.close()


@pytest.mark.process
def test_whoever_reaches_ucx_by_tcp_reads_memory_that_is_not_registered(setting: Setting) -> None:
    """The reason why no configuration selects it: UCX's reads over TCP are requests to a peer that
    checks no address, so the reader says itself what is registered. A version in which this fails
    may be allowed `protocol: tcp`."""
    peer, backend, memory = setting.lasting, setting.backend(), setting.block()
    backend.register(memory.address, SIZE)
    memory.fill(b"x" * SIZE)
    outside = MemoryPiece(peer.address - MARGIN, memory.address, MARGIN)
    with pytest.raises(NotRegisteredError):
        backend.read(peer.session, [outside], TIMEOUT_SECONDS)
    registered = struct.pack("<QQ", peer.address, SIZE)
    metadata = metadata_of(peer.session)
    assert metadata.count(registered) == 1
    wider = metadata.replace(registered, struct.pack("<QQ", peer.address - MARGIN, SIZE))
    forged = setting.backend()
    forged.register(memory.address, SIZE)
    forged.read(f"{base64.b64encode(wider).decode()}#0", [outside], TIMEOUT_SECONDS)
    assert memory.bytes_at(0, MARGIN) == bytes(MARGIN)


@pytest.mark.process
def test_peers_that_were_not_read_for_longest_are_left(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl, "MAX_PEERS", 1)
    peers = [setting.lasting, setting.process(3)]
    backend, memory = setting.backend(), setting.block()
    backend.register(memory.address, SIZE)
    for peer in [*peers, *peers]:
        backend.read(
            peer.session, [MemoryPiece(peer.address, memory.address, SIZE)], TIMEOUT_SECONDS
        )
        assert memory.bytes_at(0, SIZE) == peer.contents


@pytest.mark.process
def test_its_thread_sleeps_while_nothing_is_read(setting: Setting) -> None:
    """With NIXL's own Python API it keeps a core busy."""
    setting.lasting_backend.session  # noqa: B018  (it is started)
    began, threads = time.process_time(), threading.active_count()
    time.sleep(1)  # nothing is awaited: what is measured is the processor's time meanwhile
    assert time.process_time() - began < 0.5
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("call", "takes"),
    [
        ("createBackend", "arg0: str, arg1: collections.abc.Mapping[str, str]"),
        ("registerMem", "descs: nixlRegDList, backends: collections.abc.Sequence["),
        ("getLocalMD", ""),
        ("loadRemoteMD", "arg0: str"),
        ("invalidateRemoteMD", "arg0: str"),
        (
            "createXferReq",
            "operation: nixl_xfer_op_t, local_descs: nixlXferDList, remote_descs: nixlXferDList, "
            "remote_agent: str, notif_msg: str = '', backend: collections.abc.Sequence[",
        ),
        ("postXferReq", "reqh: typing.SupportsInt | typing.SupportsIndex, notif_msg: str = ''"),
        ("getXferStatus", "arg0: typing.SupportsInt"),
        ("releaseXferReq", "arg0: typing.SupportsInt"),
    ],
)
def test_the_calls_that_are_used_are_those_of_the_wheel(call: str, takes: str) -> None:
    """Its compiled module is not its public API: another version has to pass here first."""
    module = importlib.import_module("nixl_cu13._bindings")
    says = getattr(module.nixlAgent, call).__doc__.replace(f"{module.__name__}.", "")
    assert says.startswith(f"{call}(self: nixlAgent{', ' if takes else ')'}{takes}")
