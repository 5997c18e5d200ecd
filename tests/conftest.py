"""Which tests are collected, how they are dealt out to workers, what they may cost."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final

import certifi
import pytest
from _pytest.runner import runtestprotocol
from xdist.remote import Producer
from xdist.scheduler import EachScheduling, LoadGroupScheduling, Scheduling
from xdist.workermanage import WorkerController

from tests.cpu_limit import CpuLimit
from tests.examples import register_profiles
from tests.levels import levels_named, levels_of, may_have_tests

TESTS = Path(__file__).parent
register_profiles()

SHARES: Final = (
    ("fetch", "runtime/server"),
    ("autoscaler", "cluster", "gpu_runs", "router", "runtime/scheduler", "simulator"),
    ("benchmarks", "kernels", "model", "runtime", "runtime/server/test_chat_template.py"),
    ("",),
)
"""Files and folders of `tests` that each of as many workers takes, with `--dist each`: it imports
no other, and so no library that only those need. The longest name decides. They take about as long;
the first two wait half of the time."""

GROUP = re.compile(r"@([^]@]+)$")
"""What pytest-xdist adds to the name of a test that is in a group."""


class FilesAndGroups(LoadGroupScheduling):  # type: ignore[misc]  # it has no types
    """A worker is given a whole file, or all tests of a group.

    One by one, tests of a file would go to workers in turn: each would make the fixtures of the
    module, and wait for its next test more often than not.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


class Shares(EachScheduling):  # type: ignore[misc]  # it has no types
    """A worker runs all that it has collected, which is a share of the tests: see `SHARES`."""

    def schedule(self) -> None:
        session = self.config.pluginmanager.get_plugin("session")
        assert session is not None
        session.testscollected = sum(map(len, self.node2collection.values()))
        super().schedule()


def unit_of(nodeid: str) -> str:
    """The group of a test; its file, where it has none."""
    group = GROUP.search(nodeid)
    return group[1] if group else nodeid.partition("::")[0]


def share_of(file: Path) -> int:
    """The worker that takes a test file, with `--dist each`."""
    name = file.relative_to(TESTS).as_posix() if file.is_relative_to(TESTS) else ""
    fitting = {
        len(prefix): worker
        for worker, prefixes in enumerate(SHARES)
        for prefix in prefixes
        if not prefix or f"{name}/".startswith(f"{prefix}/")
    }
    return fitting[max(fitting)]


def _share(config: pytest.Config) -> int | None:
    """The worker whose share of the files this process takes; None: it takes all."""
    share: int | None = getattr(config, "workerinput", {}).get("share")
    return share


def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["share"] = None
    if node.config.option.dist == "each":
        if node.workerinput["workercount"] != len(SHARES):
            raise pytest.UsageError(f"--dist each: allowed with {len(SHARES)} workers (-n)")
        node.workerinput["share"] = int(node.workerinput["workerid"].removeprefix("gw"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    if config.option.dist == "each":
        return Shares(config, log)
    if config.option.dist != "loadgroup":
        return None
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return FilesAndGroups(config, log)


@pytest.fixture(scope="session", autouse=True)
def one_authority(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[None]:
    """Clients of unit tests speak plain HTTP, and each would spend 20 ms on reading the authorities
    of the Internet: they read one."""
    if any(map(levels_of, request.session.items)):
        yield
        return
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(first + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuLimit())
    starts_workers = config.option.numprocesses and not hasattr(config, "workerinput")
    # With another -m a worker starts one for itself once a test needs it.
    if starts_workers and config.option.markexpr.startswith("apiserver"):
        from tests.operator.harness.plane import SharedPlane

        config.pluginmanager.register(SharedPlane())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without a test that is asked for a file is not imported, nor a folder's conftest.py."""
    is_folder = collection_path.is_dir()
    if not (is_folder or collection_path.match("test_*.py")):
        return None
    files = collection_path.rglob("test_*.py") if is_folder else [collection_path]
    share = _share(config)
    if share is not None:
        files = (file for file in files if share_of(file) == share)
    return None if any(may_have_tests(file, config.option.markexpr) for file in files) else True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Of a unit test that passes a worker reports the call alone: three reports of each test take a
    twentieth of the time of all."""
    if _share(item.config) is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def check_levels(items: list[pytest.Item]) -> None:
    """A level that a file does not spell out would be overlooked by `pytest_ignore_collect`."""
    for item in items:
        if TESTS in item.path.parents and not levels_of(item) <= levels_named(item.path):
            raise pytest.UsageError(f"{item.path}: write pytest.mark.LEVEL in the file itself")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups come first, for they are long, then files of few tests, for these may be.

    So no worker has much left to do when there is nothing left for the others.
    """
    if not hasattr(config, "workerinput"):
        return
    share = _share(config)
    if share is not None:  # files that the command line names are not ignored
        items[:] = [item for item in items if share_of(item.path) == share]
    units = Counter(unit_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[bool, int, str]:
        unit = unit_of(item.nodeid)
        return unit.endswith(".py"), units[unit], unit

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live as long as the run: a collection that visits them frees nothing.

    Tests import more of them, which a full collection visits in half a second: it is seldom.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()
