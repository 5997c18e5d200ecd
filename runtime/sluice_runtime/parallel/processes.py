"""The processes of ranks 1 and up: rank 0 starts them, sends them each step, and ends them.

When a rank dies, the others wait for it inside a kernel, where no exception can be raised. So the
thread that watches it ends the whole engine process, with a reason. Knows no torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import zmq
from sluice_contract.config.engine import render_engine_config
from sluice_contract.config.sizing import ResolvedConfig

from sluice_runtime.process import exits
from sluice_runtime.process.supervisor import Ending
from sluice_runtime.scheduler.batch import Batch

MEETING: Final = "meeting"
CONFIG: Final = "engine.json"
REASON: Final = "RankDied"
_END_SECONDS: Final = 5.0
"""Time that ranks get to end by themselves before they are killed. After an error in rank 0 they
are not told to end, and wait for rank 0."""

Socket = zmq.Socket[bytes]
OnDeath = Callable[[str], None]
"""Callback from another thread, with what happened to a rank; does not return in production."""


class StepMessage(msgspec.Struct, frozen=True):
    """Message from rank 0 to the others: a step to compute; None: there are no more."""

    batch: Batch | None


class Ranks:
    """The running processes of ranks 1 and up."""

    def __init__(self, folder: Path, sockets: Sequence[Socket], copiers: Sequence[Socket]) -> None:
        self.meeting = folder / MEETING
        self.copiers = copiers
        """REQ sockets, one for each rank, for copying pages; see `copies_for`."""
        self._sockets = sockets
        self._encoder = msgspec.msgpack.Encoder()

    def announce(self, batch: Batch | None) -> None:
        """Announces a step; call it in the order in which rank 0 launches them. None: the end."""
        message = self._encoder.encode(StepMessage(batch))
        for socket in self._sockets:
            socket.send(message, zmq.NOBLOCK)


def end_process(what: str) -> None:
    """Ends this process because a rank has died; the default of `started_ranks`."""
    os._exit(exits.give_up(REASON, what, exits.FAILED))


@contextmanager
def started_ranks(config: ResolvedConfig, on_death: OnDeath = end_process) -> Iterator[Ranks]:
    """Starts ranks 1 and up of `config.tensor_parallel_size`, as processes with this configuration.
    They end when this process does, even if it is killed."""
    size = config.tensor_parallel_size
    folder, context = Path(tempfile.mkdtemp(prefix="sluice-ranks-")), zmq.Context(io_threads=1)
    (folder / CONFIG).write_text(render_engine_config(config))
    ending = threading.Event()
    running: list[subprocess.Popen[bytes]] = []
    try:
        steps, copiers = (
            [_connected(context, kind, end(folder, rank)) for rank in range(1, size)]
            for kind, end in ((zmq.PUSH, _steps_end), (zmq.REQ, _copies_end))
        )
        ranks = Ranks(folder, steps, copiers)
        for rank in range(1, size):
            running.append(_started(folder, rank))
            name = f"rank {rank} of {size}"
            watch = (running[-1], name, ending, on_death)
            threading.Thread(target=_watch, args=watch, name=name, daemon=True).start()
        yield ranks
    finally:
        ending.set()
        _end(running)
        context.destroy(linger=0)
        shutil.rmtree(folder, ignore_errors=True)


def read_config(folder: Path) -> ResolvedConfig:
    """The configuration of a rank's process."""
    return ResolvedConfig.model_validate_json((folder / CONFIG).read_bytes())


def steps_for(folder: Path, rank: int) -> Iterator[Batch]:
    """Yields each step that rank 0 announces; for a rank's process."""
    decoder = msgspec.msgpack.Decoder(StepMessage)
    with zmq.Context(io_threads=1) as context, context.socket(zmq.PULL) as socket:
        socket.set_hwm(0)
        socket.bind(_steps_end(folder, rank))
        while (batch := decoder.decode(socket.recv()).batch) is not None:
            yield batch


@contextmanager
def copies_for(folder: Path, rank: int) -> Iterator[Socket]:
    """Socket (REP) for rank 0's requests to copy pages; for a rank's process."""
    with zmq.Context(io_threads=1) as context, context.socket(zmq.REP) as socket:
        socket.bind(_copies_end(folder, rank))
        yield socket


def _steps_end(folder: Path, rank: int) -> str:
    return f"ipc://{folder}/rank-{rank}.sock"


def _copies_end(folder: Path, rank: int) -> str:
    return f"ipc://{folder}/copies-{rank}.sock"


def _connected(context: zmq.Context[Socket], kind: int, endpoint: str) -> Socket:
    """Socket at the connecting end, which keeps messages until the rank has bound its end."""
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.connect(endpoint)
    return socket


def _started(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    module = "sluice_runtime.engine.rank"
    options = ("--folder", str(folder), "--rank", str(rank), "--parent", str(os.getpid()))
    return subprocess.Popen((sys.executable, "-m", module, *options), stdin=subprocess.DEVNULL)


def _watch(
    process: subprocess.Popen[bytes], name: str, ending: threading.Event, on_death: OnDeath
) -> None:
    code = process.wait()
    # Rank 0 refuses at its start whatever another rank refuses, and reports the reason itself.
    if code == exits.STARTUP:
        ending.wait(_END_SECONDS)
    if not ending.is_set():
        status = -code if code < 0 else code << 8
        on_death(f"{Ending(name, status)}; ranks compute together, so the engine ends")


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline_seconds = time.monotonic() + _END_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline_seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
