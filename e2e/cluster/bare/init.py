"""PID 1 of a bare node: mounts what the node needs, then starts its programs and keeps them
running. Runs alone (`python -I init.py NODE_FILE`), in fresh PID, mount and network namespaces.

When it ends, the kernel kills everything in its PID namespace and drops the mounts and the
network with it: that is how `down` leaves nothing. It knows nothing of Kubernetes.

Talks to the harness by one line each way: its PID as the host sees it, on standard output; then
`go` on standard input once the network is there. If the harness dies before that, it ends too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

GO = "go\n"
RESTART_SECONDS = 1.0
IDLE_SECONDS = 3600.0
SIGNALS = {signal.SIGCHLD, signal.SIGTERM}
# Mount point of cgroup v2 where there is no v1.
UNIFIED = Path("/sys/fs/cgroup")
# `daemons`, because a cgroup with children of its own must not hold processes in cgroup v2.
DAEMONS_CGROUP = "daemons"


@dataclass(frozen=True)
class Program:
    """One process to keep running; its output is appended to `log`."""

    name: str
    argv: list[str]
    log: str


class Supervisor:
    """Starts every program, reaps every orphan, starts again what ends."""

    def __init__(self, programs: list[Program], environment: dict[str, str]) -> None:
        self._programs = {program.name: program for program in programs}
        self._environment = environment
        self._due_seconds = dict.fromkeys(self._programs, 0.0)
        self._running: dict[int, str] = {}

    def run(self) -> None:
        """Runs until SIGTERM. The signals are blocked and waited for, so that none is missed."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        while True:
            received = signal.sigtimedwait(SIGNALS, self._start_due())
            if received is not None and received.si_signo == signal.SIGTERM:
                return
            self._reap()

    def _start_due(self) -> float:
        """Starts what is due; returns the seconds until the next start."""
        now = time.monotonic()
        for name in [name for name, due in self._due_seconds.items() if due <= now]:
            del self._due_seconds[name]
            self._running[self._start(self._programs[name])] = name
        return min((due - now for due in self._due_seconds.values()), default=IDLE_SECONDS)

    def _start(self, program: Program) -> int:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            program.argv[0],
            program.argv,
            self._environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, program.log, append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
        )

    def _reap(self) -> None:
        while (ended := _wait_for_any()) is not None:
            pid, code = ended
            name = self._running.pop(pid, None)
            if name is not None:
                print(f"{name} ended with {code}; starting it again", file=sys.stderr, flush=True)
                self._due_seconds[name] = time.monotonic() + RESTART_SECONDS


def _wait_for_any() -> tuple[int, int] | None:
    """PID and exit code of a child that has ended, if there is one."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def join_cgroup(name: str) -> None:
    """Moves this process out of the cgroups of the harness, in every hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, filesystem = line.partition(" - ")
        if filesystem.startswith(("cgroup ", "cgroup2 ")):
            base = Path(fields.split()[4])
            if base == UNIFIED:
                _delegate_controllers(base)
            (_make_cgroup(base, name) / "cgroup.procs").write_text("0")


def _make_cgroup(base: Path, name: str) -> Path:
    folder = base
    for part in (name, DAEMONS_CGROUP):
        parent, folder = folder, folder / part
        folder.mkdir(exist_ok=True)
        # A new cpuset of cgroup v1 is empty and takes no process until it is filled.
        if (folder / "cpuset.cpu_exclusive").exists():
            for setting in ("cpuset.cpus", "cpuset.mems"):
                (folder / setting).write_text((parent / setting).read_text())
    return folder


def _delegate_controllers(base: Path) -> None:
    """In cgroup v2 the kubelet wants every controller in its root; distributions differ in which
    ones they pass on."""
    passed_on = (base / "cgroup.subtree_control").read_text().split()
    for controller in set((base / "cgroup.controllers").read_text().split()) - set(passed_on):
        (base / "cgroup.subtree_control").write_text(f"+{controller}")


def mount_node(state: str, in_node: str) -> None:
    """The node's view of the files: own /proc, empty /run, the state directory, own /var."""
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for folder in (in_node, "/run/lock", "/run/netns"):
        os.mkdir(folder)
    _mount("--bind", state, in_node)
    for folder in ("lib", "log", "tmp"):
        os.makedirs(f"{in_node}/var/{folder}", exist_ok=True)
    for folder in ("lock", "run"):
        link = Path(in_node, "var", folder)
        if not link.is_symlink():
            link.symlink_to("/run/lock" if folder == "lock" else "/run")
    _mount("--bind", f"{in_node}/var", "/var")
    # Volumes mounted later must reach the containers that ask for it.
    _mount("--make-rshared", "/")


def _mount(*words: str) -> None:
    subprocess.run(["mount", "-n", *words], check=True)


def main() -> None:
    node = json.loads(Path(sys.argv[1]).read_text())
    join_cgroup(node["cgroup"])
    # The host's /proc is still there: this is the PID that the host knows us by.
    print(os.readlink("/proc/self"), flush=True)
    mount_node(node["state"], node["inNode"])
    if sys.stdin.readline() != GO:
        return
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    programs = [Program(**program) for program in node["programs"]]
    Supervisor(programs, node["environment"]).run()


if __name__ == "__main__":
    main()
