"""Which prefixes go first: each order by what it says, and all by the same rules."""

from __future__ import annotations

import typing

import pytest
from sluice_contract.config.engine import EvictionPolicy
from sluice_runtime.scheduler.eviction import EVICTIONS

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to
from tests.runtime.scheduler.test_prefix_cache import Tree


def evicted(tree: Tree) -> str:
    """The letters of the tree's pages, in the order in which they go."""
    order, left = "", {letter for node in tree.nodes() for letter in letters(node.key)}
    while tree.evict(1):
        rest = {letter for node in tree.nodes() for letter in letters(node.key)}
        order, left = order + "".join(left - rest), rest
    return order


def letters(key: bytes) -> str:
    return "".join(chr(token // 10) for token in memoryview(key).cast("i")[::4])


def use(tree: Tree, pages: str, times: int) -> None:
    for _ in range(times):
        tree.unlock(tree.lock(tree.find(pages)))


def test_every_order_of_the_configuration_is_there_and_none_else() -> None:
    assert list(EVICTIONS) == list(typing.get_args(EvictionPolicy))


@pytest.mark.parametrize(
    ("name", "order"), [("lru", "acb"), ("lfu", "bca"), ("fifo", "abc"), ("slru", "bac")]
)
def test_each_order_has_another_victim(name: str, order: str) -> None:
    """`a` came first and was used most, `b` was used last and by one request, `c` came last."""
    tree = Tree(EVICTIONS[name])
    tree.put("a")
    use(tree, "a", 2)
    long, _ = tree.hold("b")
    tree.put("c")
    use(tree, "c", 1)
    tree.unlock(long)
    assert evicted(tree) == order


def test_a_prefix_keeps_its_uses_when_it_is_split() -> None:
    tree = Tree(EVICTIONS["lfu"])
    tree.put("ab")
    use(tree, "a", 3)
    tree.put("x")
    use(tree, "x", 2)
    assert evicted(tree) == "bxa", "four have used `a`, three `x`"


@pytest.mark.parametrize("name", EVICTIONS)
def test_a_prefix_outlives_what_follows_it_in_every_order(name: str) -> None:
    tree = Tree(EVICTIONS[name])
    tree.put("abc")
    use(tree, "abc", 3)
    use(tree, "a", 1)
    assert evicted(tree) == "cba"


@pytest.mark.parametrize(("name", "cached"), [("lru", 0), ("fifo", 0), ("lfu", 16), ("slru", 16)])
def test_the_engine_evicts_as_configured(name: str, cached: int) -> None:
    """A prompt that two have used, then as many that come once as fill the pool."""
    bench = Bench(settings_of(pool_tokens=64, prefix_cache=True, eviction=name))
    shared = list(range(200, 220))
    for index in range(2):
        bench.add(request(f"shared-{index}", shared, 2))
        bench.run()
    for index in range(4):
        once = [50 * index + offset for offset in range(20)]
        bench.add(request(f"once-{index}", once, 2))
        bench.run()
    bench.add(request("again", shared, 2))
    bench.run()
    assert bench.cached["again"] == cached
    assert bench.answers["again"] == answer_to(shared, 2)
