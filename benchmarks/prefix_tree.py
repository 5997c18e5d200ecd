"""The prefix tree by itself: microseconds to match and to insert a prompt, page 1.

Two workloads: 256 unrelated prompts of 100 to 1,024 tokens, and conversations that share a system
prompt and grow turn by turn, whose paths are deep. With `--sglang FOLDER` (its unzipped wheel and
the modules that it imports) the same calls run on SGLang's RadixCache, and each figure has its
ratio. For both, keys are made and their garbage is collected before the clock starts, the collector
stays on, and a match finds the path without listing its pages. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sluice_runtime.scheduler.prefix_cache import PrefixCache
from sluice_runtime.scheduler.prefix_node import key_of

ROUNDS = 15
CONVERSATIONS = 16
TURNS = 32
SYSTEM_TOKENS = 512
TURN_TOKENS = 48


class Tree(Protocol):
    """One tree of one implementation; prompts are known by their number."""

    def insert(self, number: int) -> None: ...
    def match(self, number: int) -> int:
        """Number of tokens found for a prompt."""
        ...


class Ours:
    """Sluice's tree, called as the scheduler calls it: match, lock, extend behind the lock,
    unlock."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._tree = PrefixCache(1)
        self._keys = [key_of(prompt) for prompt in prompts]
        self._pages = [list(range(len(prompt))) for prompt in prompts]

    def insert(self, number: int) -> None:
        tree, key, pages = self._tree, self._keys[number], self._pages[number]
        lock = tree.lock(tree.match("", key, len(pages)))
        if found := lock.pages:
            key, pages = key[4 * found :], pages[found:]
        tree.extend(lock, key, pages)
        tree.unlock(lock)

    def match(self, number: int) -> int:
        return self._tree.match("", self._keys[number], 1 << 30).pages


def sglang(folder: str) -> Callable[[Sequence[Sequence[int]]], Tree]:
    """SGLang's tree behind the two calls of `Tree`."""
    sys.path += [folder, f"{folder}/../deps"]
    torch = importlib.import_module("torch")
    cache = importlib.import_module("sglang.srt.mem_cache.radix_cache")
    base = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")

    class Allocator:
        device = "cpu"

        def free(self, pages: Any) -> None:
            pass

    class Theirs:
        def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
            self._tree = cache.RadixCache.create_simulated(page_size=1, mock_allocator=Allocator())
            self._keys = [cache.RadixKey(array("q", prompt)) for prompt in prompts]
            self._pages = [torch.arange(len(prompt)) for prompt in prompts]

        def insert(self, number: int) -> None:
            key, pages = self._keys[number], self._pages[number]
            self._tree.insert(base.InsertParams(key=key, value=pages))

        def match(self, number: int) -> int:
            found = self._tree.match_prefix(base.MatchPrefixParams(key=self._keys[number]))
            return int(found.device_prefix_len)

    return Theirs


def unrelated() -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randint(0, 10_000) for _ in range(draw.randint(100, 1024))] for _ in range(256)]


def conversations() -> list[list[int]]:
    """Every turn of every conversation, in the order in which they come."""
    draw = random.Random(1)
    system = [draw.randint(0, 10_000) for _ in range(SYSTEM_TOKENS)]
    heads = [list(system) for _ in range(CONVERSATIONS)]
    prompts = []
    for _ in range(TURNS):
        for head in heads:
            head += [draw.randint(0, 10_000) for _ in range(TURN_TOKENS)]
            prompts.append(list(head))
    return prompts


@dataclass
class Times:
    """Microseconds for one prompt, as the median of the rounds."""

    insert: float
    match: float


def measure(
    makers: Sequence[Callable[[Sequence[Sequence[int]]], Tree]], prompts: Sequence[Sequence[int]]
) -> list[Times]:
    """Times of each maker's tree. The makers take turns, so that disturbances hit all of them."""
    inserts: list[list[float]] = [[] for _ in makers]
    matches: list[list[float]] = [[] for _ in makers]
    for _ in range(ROUNDS):
        for index, make in enumerate(makers):
            tree = make(prompts)
            gc.collect()
            inserts[index].append(_microseconds(tree.insert, len(prompts)))
            matches[index].append(_microseconds(tree.match, len(prompts)))
            assert tree.match(len(prompts) - 1) >= len(prompts[-1]) - 1
    return [
        Times(statistics.median(inserts[i]), statistics.median(matches[i]))
        for i in range(len(makers))
    ]


def _microseconds(call: Callable[[int], object], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        call(number)
    return 1e6 * (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sglang", help="folder of SGLang's wheel, unzipped")
    arguments = parser.parse_args()
    makers: list[Callable[[Sequence[Sequence[int]]], Tree]] = [Ours]
    if arguments.sglang:
        makers.append(sglang(arguments.sglang))
    for workload, prompts in (("unrelated", unrelated()), ("deep", conversations())):
        ours, *theirs = measure(makers, prompts)
        for call in ("match", "insert"):
            mine = getattr(ours, call)
            facts: dict[str, object] = {"unit": "us", "prompts": len(prompts)}
            if theirs:
                peer = getattr(theirs[0], call)
                facts |= {"sglang": round(peer, 2), "ratio": round(mine / peer, 3)}
            figure = {"figure": f"prefix_tree.{workload}.{call}", "value": round(mine, 2), **facts}
            print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
