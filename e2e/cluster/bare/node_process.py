"""The running node of a bare cluster: find it, start it, end it. Root only.

The node is PID 1 of a PID namespace, so one process stands for all of it. It is found by the end
of its command line, never by a PID in a file, which another process may have by now.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from e2e.cluster.bare import init
from e2e.cluster.bare.layout import Layout
from e2e.cluster.errors import NotReadyError, ProcessDiedError

END_SECONDS = 30.0
NAMESPACES = ["--fork", "--kill-child", "--pid", "--mount", "--net", "--propagation", "slave"]


def init_argv(layout: Layout) -> list[str]:
    """The command line of the node's PID 1; no other process ends with these two arguments."""
    return [sys.executable, "-I", init.__file__, str(layout.node_file)]


def find_node(layout: Layout) -> int | None:
    """PID (on the host) of the node's PID 1, or None when it does not run."""
    return next((pid for pid in _find_all(layout) if _is_init(pid)), None)


def start_node(layout: Layout, connect: Callable[[int], None]) -> int:
    """Starts the node from `node.json`; `connect(pid)` is called to link its network before any
    of its programs runs. Returns its PID. Raises ProcessDiedError with its log."""
    layout.logs.mkdir(parents=True, exist_ok=True)
    log = layout.logs / "init.log"
    # With `setsid --fork` the node is the system's child, not ours, and has left our terminal.
    command = ["setsid", "--fork", "unshare", *NAMESPACES, *init_argv(layout)]
    with (
        log.open("ab") as stream,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            cwd="/",
            text=True,
        ) as starter,
    ):
        assert starter.stdin is not None
        assert starter.stdout is not None
        word = starter.stdout.readline().strip()
        if not word.isdigit():
            raise ProcessDiedError("the node", log)
        connect(int(word))
        starter.stdin.write(init.GO)
    return int(word)


def end_node(layout: Layout) -> None:
    """Kills the node and returns when all its processes are gone; harmless if it does not run."""
    while pids := _find_all(layout):
        for pid in pids:
            with suppress(ProcessLookupError):
                _kill(pid, layout)


def _kill(pid: int, layout: Layout) -> None:
    """Kills the node's PID 1, and waits until it is gone: the kernel first reaps every process in
    its namespace."""
    descriptor = os.pidfd_open(pid)
    try:
        # Checked again with the descriptor open: from now on the number cannot become another
        # process's.
        if not _belongs_to(pid, layout):
            return
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(END_SECONDS * 1000):
            raise NotReadyError(f"process {pid} is still there after {END_SECONDS:.0f} s")
    finally:
        os.close(descriptor)


def _find_all(layout: Layout) -> list[int]:
    """PIDs of the node's PID 1 and of `unshare`, which waits for it: both command lines end
    alike."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [pid for pid in pids if _belongs_to(pid, layout)]


def _belongs_to(pid: int, layout: Layout) -> bool:
    """Whether a process is the node's, by the script's name and the node's file: `up` may have run
    under another interpreter than `down`, or from a checkout with other folders."""
    script, node_file = ["", "", *_arguments(pid)][-2:]
    return Path(script).name == Path(init.__file__).name and node_file == str(layout.node_file)


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def _is_init(pid: int) -> bool:
    """Whether the process is PID 1 of a namespace below ours, by the line `NSpid: 4711 1` of its
    status."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("NSpid:") and line.split()[2:] == ["1"] for line in lines)
