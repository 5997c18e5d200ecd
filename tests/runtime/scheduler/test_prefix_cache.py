"""The prefix tree by itself: match, lock, extend, evict in each order, flush."""

from __future__ import annotations

import typing

import pytest
from sluice_contract.config.engine import EvictionPolicy
from sluice_runtime.scheduler.admission_bounds import Locking, Unlocking
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.prefix_cache import Lock, Match, PrefixCache
from sluice_runtime.scheduler.prefix_node import Node, Tail, key_of

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to

PAGE = 4


def tokens(pages: str) -> list[int]:
    """A letter is a page of tokens."""
    return [ord(letter) * 10 + offset for letter in pages for offset in range(PAGE)]


class Tree(PrefixCache):
    """Pages are named by letters, and numbered as they come."""

    def __init__(self, *args: object) -> None:
        super().__init__(PAGE, *args)  # type: ignore[arg-type]
        self.made = 0

    def find(self, pages: str, namespace: str = "", most: int = 99) -> Match:
        return self.match(namespace, key_of(tokens(pages)), most)

    def hold(self, pages: str, namespace: str = "") -> tuple[Lock, list[int]]:
        """What a request does: match, lock, compute the rest, insert. Returns its duplicates."""
        lock = self.lock(self.find(pages, namespace))
        rest = pages[lock.pages :]
        return lock, self.grow(lock, rest)

    def grow(self, lock: Lock, pages: str) -> list[int]:
        ids = list(range(self.made, self.made + len(pages)))
        self.made += len(pages)
        return self.extend(lock, key_of(tokens(pages)), ids)

    def put(self, pages: str, namespace: str = "") -> None:
        self.unlock(self.hold(pages, namespace)[0])


def test_what_was_put_is_found_in_whole_pages() -> None:
    tree = Tree()
    tree.put("abcd")
    assert tree.find("abcd").page_ids() == [0, 1, 2, 3]
    assert tree.find("abxx").page_ids() == [0, 1]
    assert tree.find("xabc").page_ids() == []
    assert tree.find("abcdef").pages == 4
    half = key_of(tokens("abc")[:-1])
    assert tree.match("", half, 99).pages == 2, "the third page differs in its last token"


def test_a_prefix_is_shortened_and_found_before_it_is_packed() -> None:
    tree, ids = PrefixCache(PAGE, new_pages=1), tokens("abcdef")
    lock = tree.lock(tree.match("", b"", 0))
    tree.extend(lock, key_of(ids[:PAGE]), list(range(6)), Tail(ids, PAGE, len(ids)))
    tree.unlock(lock)
    assert tree.evict(2) == [4, 5]
    assert lock.node.tail is not None
    match = tree.match("", key_of(ids), 9)
    assert (match.pages, match.page_ids()) == (4, [0, 1, 2, 3])


@pytest.mark.parametrize("most", range(6))
def test_a_match_is_never_longer_than_allowed(most: int) -> None:
    tree = Tree()
    tree.put("abc")
    tree.put("abcde")
    assert tree.find("abcde", most=most).page_ids() == list(range(min(most, 5)))


def test_matching_changes_nothing() -> None:
    tree = Tree()
    tree.put("abcd")
    before = [(node.packed, node.used) for node in tree.nodes()]
    tree.find("abx")
    assert [(node.packed, node.used) for node in tree.nodes()] == before


def test_namespaces_share_nothing() -> None:
    tree = Tree()
    tree.put("abc", "one")
    assert tree.find("abc", "two").pages == 0
    tree.put("abc", "two")
    assert tree.find("abc", "one").page_ids() == [0, 1, 2]
    assert tree.find("abc", "two").page_ids() == [3, 4, 5]


def test_namespaces_without_prefixes_leave_nothing_behind() -> None:
    tree = Tree()
    tree.unlock(tree.lock(tree.find("abc", "empty")))
    tree.put("abc", "full")
    tree.evict(3)
    assert list(tree.nodes()) == []


def test_duplicates_are_named_so_that_they_can_be_replaced() -> None:
    tree = Tree()
    first = tree.lock(tree.find("abcd"))
    second = tree.lock(tree.find("abxy"))
    assert tree.grow(first, "abcd") == []
    assert tree.grow(second, "abxy") == [0, 1]
    assert tree.find("abxy").page_ids() == [0, 1, 6, 7]
    assert second.pages == 4


def test_a_chunk_after_the_other_grows_one_path() -> None:
    tree = Tree()
    lock = tree.lock(tree.find("abcdef"))
    for chunk in ("ab", "c", "def"):
        assert tree.grow(lock, chunk) == []
    assert tree.find("abcdef").page_ids() == [0, 1, 2, 3, 4, 5]
    assert (tree.protected_pages, tree.evictable_pages) == (6, 0)
    tree.unlock(lock)
    assert (tree.protected_pages, tree.evictable_pages) == (0, 6)


def test_a_lock_covers_the_exact_path() -> None:
    tree = Tree()
    tree.put("abcd")
    lock = tree.lock(tree.find("abx"))
    assert (tree.protected_pages, tree.evictable_pages) == (2, 2)
    assert sorted(tree.evict(99)) == [2, 3]
    assert tree.find("abcd").page_ids() == [0, 1]
    tree.unlock(lock)
    assert sorted(tree.evict(99)) == [0, 1]


def test_a_path_that_is_split_below_a_lock_stays_locked() -> None:
    tree = Tree()
    whole, _ = tree.hold("abcd")
    other, duplicates = tree.hold("abx")
    assert duplicates == []
    tree.unlock(other)
    assert tree.evict(99) == [4]
    assert tree.find("abcd").pages == 4
    tree.unlock(whole)
    assert len(tree.evict(99)) == 4


def test_least_recently_used_goes_first_and_only_as_much_as_is_wanted() -> None:
    tree = Tree()
    tree.put("abc")
    tree.put("xyz")
    tree.unlock(tree.lock(tree.find("abc")))
    assert tree.evict(2) == [4, 5], "from the end of the older one"
    assert tree.find("xyz").pages == 1
    assert tree.evict(2) == [3, 2]
    assert tree.evict(99) == [0, 1]
    assert tree.evictable_pages == 0


def test_a_match_of_which_something_was_evicted_may_not_be_locked_any_more() -> None:
    tree = Tree()
    tree.put("abc")
    found = tree.find("abc")
    assert tree.has(found)
    tree.evict(1)
    assert not tree.has(found)


def test_of_two_that_were_used_once_the_older_goes_first() -> None:
    tree = Tree()
    tree.put("ab")
    tree.put("xy")
    assert tree.evict(3) == [0, 1, 3]


def test_a_leaf_that_came_to_be_locked_is_not_evicted() -> None:
    """It was a candidate while it was unlocked."""
    tree = Tree()
    tree.put("ab")
    lock = tree.lock(tree.find("ab"))
    assert tree.evict(99) == []
    assert tree.find("ab").pages == 2
    tree.unlock(lock)
    assert len(tree.evict(99)) == 2


def test_a_prefix_outlives_what_follows_it() -> None:
    tree = Tree()
    for whole in ("sysa", "sysb", "sysc"):
        tree.put(whole)
    tree.evict(3)
    assert tree.find("sys").pages == 3


def test_another_order_can_be_plugged_in() -> None:
    def last_made(node: Node) -> int:
        return -node.page_ids[0]

    tree = Tree(last_made)
    tree.put("ab")
    tree.put("xy")
    assert sorted(tree.evict(2)) == [2, 3]


def test_evictable_is_not_counted_twice_when_a_match_is_locked() -> None:
    """Two requests of one prefix take its pages from the evictable ones once."""
    tree = Tree()
    tree.put("abcd")
    locking = Locking()
    short, whole = tree.find("abx"), tree.find("abcd")
    assert (locking.cost(short), locking.cost(whole)) == (2, 4)
    locking.add(short)
    assert (locking.cost(short), locking.cost(whole)) == (0, 2)
    tree.lock(whole)
    assert Locking().cost(tree.find("abcd")) == 0


def test_what_locks_would_give_back_counts_shared_pages_with_the_last_one() -> None:
    tree = Tree()
    first, _ = tree.hold("abc")
    second, _ = tree.hold("abxy")
    unlocking = Unlocking()
    assert unlocking.add(first) == 1
    assert unlocking.add(second) == 4
    tree.unlock(first)
    assert Unlocking().add(second) == 4


def test_what_someone_else_is_going_to_lock_is_not_given_back() -> None:
    tree = Tree()
    lock, _ = tree.hold("abcd")
    assert Unlocking(tree.find("abx")).add(lock) == 2
    assert Unlocking(tree.find("x")).add(lock) == 4


def test_flush_frees_what_is_unlocked_and_hides_the_rest() -> None:
    tree = Tree()
    tree.put("xy")
    lock, _ = tree.hold("abc")
    tree.put("abcd")
    assert sorted(tree.flush()) == [0, 1, 5]
    assert (tree.evictable_pages, tree.protected_pages) == (0, 3)
    assert tree.find("abc").pages == 0
    assert tree.grow(lock, "de") == []
    assert lock.pages == 3, "a flushed path grows no more"
    assert sorted(tree.unlock(lock)) == [2, 3, 4]
    assert tree.protected_pages == 0
    tree.put("abc")
    assert tree.find("abc").pages == 3


def test_forgetting_takes_out_what_no_one_else_uses() -> None:
    tree = Tree()
    shared, _ = tree.hold("ab")
    broken, _ = tree.hold("abcd")
    assert sorted(tree.forget(broken)) == [2, 3]
    assert tree.find("abcd").pages == 2
    assert sorted(tree.forget(shared)) == [0, 1]
    assert (tree.evictable_pages, tree.protected_pages) == (0, 0)


def evicted(tree: Tree) -> str:
    """The letters of the tree's pages, in the order in which they go."""
    order, left = "", {letter for node in tree.nodes() for letter in letters(node.packed)}
    while tree.evict(1):
        rest = {letter for node in tree.nodes() for letter in letters(node.packed)}
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
