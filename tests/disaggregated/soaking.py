"""Clients that ask for as long as a soak takes, and what processes hold that must not grow."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, Final

import httpx

from tests.disaggregated.asking import Request, ask_all, check, task, texts
from tests.disaggregated.engines import EngineProcess
from tests.disaggregated.service import Service
from tests.runtime.launch.processes import HANG_SECONDS, descendants

LENGTHS: Final = (32, 128, 256, 512)
SEEDS: Final = range(30)
DRAWN: Final = range(30, 38)
"""Seeds of the questions whose answers are drawn."""
ABORTED: Final = 0.2
"""Share of the requests that their client gives up."""


@dataclass
class Tally:
    """What the clients saw."""

    right: int = 0
    aborted: int = 0
    wrong: list[str] = field(default_factory=list)
    """Also errors, and streams that end early."""
    pool_use: list[float] = field(default_factory=list)
    """Share of the decode engines' pages that requests hold, at one time after the other."""
    progressed: threading.Condition = field(default_factory=threading.Condition)

    def record(self, outcome: str | None) -> None:
        """None: it was given up; empty: right; else what is wrong."""
        with self.progressed:
            if outcome is None:
                self.aborted += 1
            elif outcome:
                self.wrong.append(outcome)
            else:
                self.right += 1
            self.progressed.notify_all()

    def wait_for_more(self, requests: int) -> None:
        """Until so many more were answered right, or one was not."""
        with self.progressed:
            target = self.right + requests
            done = self.progressed.wait_for(lambda: self.right >= target or self.wrong, 60)
        assert done, "requests hang"

    @property
    def mean_pool_use(self) -> float:
        return mean(self.pool_use)


def questions(plain: EngineProcess) -> list[Request]:
    """Greedy and drawn ones, as completions and as chats, with the answers of an engine that does
    nothing of what a soak is about."""
    asked = [task("copy", length, seed) for length in LENGTHS for seed in SEEDS]
    asked += [task("copy", length, seed, chat=True) for length in LENGTHS for seed in SEEDS[::3]]
    for seed, length in product(DRAWN, LENGTHS):
        request = task("copy", length, seed, temperature=1.5, top_p=0.98, ignore_eos=True)
        asked.append(Request(f"drawn-{request.name}", request.path, {**request.body, "seed": seed}))
    answers = ask_all(plain.url, asked, clients=8)
    for request, answer in zip(asked, answers, strict=True):
        check(request, answer)
    pairs = zip(asked, answers, strict=True)
    return [replace(request, answer=texts(answer)[0]) for request, answer in pairs]


@contextmanager
def load(service: Service, clients: int, asked: Sequence[Request]) -> Iterator[Tally]:
    """Clients that ask one of these questions after the other until the block ends."""
    tally, stopping = Tally(), threading.Event()
    threads = [
        threading.Thread(target=_ask, args=(service.url, number, asked, tally, stopping))
        for number in range(clients)
    ]
    threads.append(threading.Thread(target=_watch, args=(service.decodes, tally, stopping)))
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def _ask(
    url: str, number: int, questions: Sequence[Request], tally: Tally, stopping: threading.Event
) -> None:
    rng = random.Random(number)
    with httpx.Client(verify=False, timeout=HANG_SECONDS) as client:
        while not stopping.is_set():
            asked = rng.choice(questions)
            gives_up = rng.randrange(40) if rng.random() < ABORTED else None
            try:
                tally.record(_outcome(client, url, asked, gives_up))
            except httpx.HTTPError as error:
                tally.record(f"{asked.name}: {error!r}")


def _outcome(client: httpx.Client, url: str, asked: Request, gives_up: int | None) -> str | None:
    """As `Tally.record` takes it. `gives_up`: after so many lines."""
    body = {**asked.body, "stream": True}
    text, last = "", ""
    with client.stream("POST", url + asked.path, json=body) as response:
        if response.status_code != 200:
            return f"{asked.name}: {response.status_code} {response.read().decode()}"
        for number, line in enumerate(filter(None, response.iter_lines())):
            if number == gives_up:
                return None
            last = line.removeprefix("data: ")
            if last != "[DONE]":
                text += _piece(json.loads(last))
    if last != "[DONE]":
        return f"{asked.name}: ended with {last}"
    return "" if text == asked.answer else f"{asked.name}: {text!r} for {asked.answer!r}"


def _piece(event: dict[str, Any]) -> str:
    """Text of one event; an error has none."""
    choice = event.get("choices", [{}])[0]
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def _watch(decodes: list[EngineProcess], tally: Tally, stopping: threading.Event) -> None:
    while not stopping.wait(0.5):
        for engine in decodes:
            try:
                report = engine.load()
            except (httpx.HTTPError, ValueError):
                continue
            free = report.figures.kv_pages_free + report.figures.kv_pages_evictable
            tally.pool_use.append(1 - free / report.figures.kv_pages_total)


@dataclass(frozen=True)
class Held:
    """What a process and its children hold."""

    threads: int
    files: int
    mebibytes: float

    def grown(self, since: Held, files: int) -> str | None:
        """What is more than it was, by more than chance. `files`: how many more are open by
        chance."""
        if self.threads > since.threads + 2:
            return f"threads: {since.threads}, then {self.threads}"
        if self.files > since.files + files:
            return f"open files: {since.files}, then {self.files}"
        if self.mebibytes > since.mebibytes * 1.1 + 32:
            return f"MiB: {since.mebibytes:.0f}, then {self.mebibytes:.0f}"
        return None


def held_by(pid: int) -> Held:
    folders = [Path(f"/proc/{each}") for each in (pid, *descendants(pid))]
    statuses = "".join((folder / "status").read_text() for folder in folders)
    return Held(
        sum(len(list((folder / "task").iterdir())) for folder in folders),
        sum(len(list((folder / "fd").iterdir())) for folder in folders),
        sum(map(int, re.findall(r"VmRSS:\s+(\d+)", statuses))) / 1024,
    )
