"""How these tests are dealt out to workers, and what the garbage collector need not look at."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

# How long an example takes is the machine's affair, which other workers share.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# Of `make mutate`, which asks whether an example fails, and not for the smallest one.
settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.generate])

GROUP = re.compile(r"@([^]@]+)$")
"""What pytest-xdist adds to the name of a test that is in a group."""


class FilesAndGroups(LoadGroupScheduling):
    """A worker is given a whole file, or all tests of a group.

    One by one, tests of a file would go to workers in turn: each would make the fixtures of the
    module, and wait for its next test more often than not.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """The group of a test; its file, where it has none."""
    group = GROUP.search(nodeid)
    return group[1] if group else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    if config.option.dist != "loadgroup":
        return None
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return FilesAndGroups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups come first, for they are long, then files of few tests, for these may be.

    So no worker has much left to do when there is nothing left for the others.
    """
    if not hasattr(config, "workerinput"):
        return
    units = Counter(unit_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[bool, int, str]:
        unit = unit_of(item.nodeid)
        return unit.endswith(".py"), units[unit], unit

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live as long as the run: a collection that visits them frees nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
