"""Adapters that come and go in a file, while the engine serves."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from sluice_contract.config.adapters import AdapterRef, adapters_digest, render_adapters_file
from sluice_runtime.engine import adapter_loading
from sluice_runtime.engine.adapter_loading import MAX_WHY, AdapterLoader
from sluice_runtime.engine.adapters import AdapterTable
from sluice_runtime.model.adapters import Adapter, adapter_key, read_adapter_config
from sluice_runtime.wire.messages import AdaptersChanged, Sampling, StepResult

from tests.runtime.handover.engines import WAIT_SECONDS, RunningEngine, running
from tests.runtime.harness import generate
from tests.runtime.random_adapter import write_random_adapter

PROMPT = list(range(30))


class FakeTable(AdapterTable):
    """Reads nothing but the adapter's configuration."""

    def __init__(self) -> None:
        self.kept: dict[str, Adapter] = {}
        self.broken: Exception | None = None
        self.in_rows: set[str] = set()

    def has_row_of(self, key: str) -> bool:
        return key in self.in_rows

    def read(self, folder: Path) -> Adapter:
        if self.broken:
            raise self.broken
        return Adapter(read_adapter_config(folder).rank, {})

    def add(self, key: str, adapter: Adapter) -> None:
        self.kept[key] = adapter

    def forget(self, key: str) -> None:
        del self.kept[key]


class FakeScheduler:
    """Has requests with the adapters in `busy`."""

    def __init__(self) -> None:
        self.folders: Mapping[str, str] = {}
        self.busy: set[str] = set()

    def take_adapters(self, folders: Mapping[str, str]) -> None:
        self.folders = folders

    def has_adapter(self, key: str) -> bool:
        return key in self.busy


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By adapter."""
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_random_adapter(folder / name, i) for i, name in enumerate(("sql", "law"))}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "adapters.json"
    say(path)
    return path


def say(file: Path, **folders: Path | str) -> None:
    """Writes the file."""
    refs = [AdapterRef(name=name, uri=str(folder)) for name, folder in folders.items()]
    file.write_text(render_adapters_file(refs))


def names(loader: AdapterLoader) -> list[str]:
    return [one.name for one in loader.adapters.loaded]


@pytest.fixture
def loader(file: Path) -> tuple[AdapterLoader, FakeTable, FakeScheduler]:
    table, scheduler = FakeTable(), FakeScheduler()
    made = AdapterLoader(table, ["base"], file)
    made.start([])
    assert made.take_change(scheduler) is not None
    assert made.take_change(scheduler) is None
    return made, table, scheduler


def test_an_adapter_goes_once_nobody_uses_it(
    loader: tuple[AdapterLoader, FakeTable, FakeScheduler], file: Path, folders: dict[str, Path]
) -> None:
    made, table, scheduler = loader
    say(file, **folders)
    assert made.look()
    assert not made.look()
    changed = made.take_change(scheduler)
    assert changed is not None
    assert changed.file == adapters_digest(file.read_bytes())
    keys = {name: adapter_key(name, folder) for name, folder in folders.items()}
    assert set(scheduler.folders) == set(table.kept) == set(keys.values())
    scheduler.busy = {keys["sql"]}
    say(file, law=folders["law"])
    assert made.look()
    assert made.take_change(scheduler) is not None
    assert set(scheduler.folders) == {keys["law"]}
    assert made.take_change(scheduler) is None
    assert keys["sql"] in table.kept, "its request goes on"
    scheduler.busy = set()
    assert made.take_change(scheduler) is None
    assert set(table.kept) == {keys["law"]}


def test_where_no_scheduler_decides_it_goes_once_no_row_has_it(
    file: Path, folders: dict[str, Path]
) -> None:
    table = FakeTable()
    made = AdapterLoader(table, ["base"], file)
    for there in (folders, {}):
        say(file, **there)
        assert made.look()
        made.take_change_beside_rows()
        table.in_rows = set(table.kept)
        made.take_change_beside_rows()
        assert len(table.kept) == 2
    table.in_rows = set()
    made.take_change_beside_rows()
    assert table.kept == {}


def test_one_that_comes_back_is_not_let_go(
    loader: tuple[AdapterLoader, FakeTable, FakeScheduler], file: Path, folders: dict[str, Path]
) -> None:
    made, table, scheduler = loader
    key = adapter_key("sql", folders["sql"])
    scheduler.busy = {key}
    for there in (folders, {}, folders):
        say(file, **there)
        assert made.look()
        assert made.take_change(scheduler) is not None
        assert made.take_change(scheduler) is None
    scheduler.busy = set()
    assert made.take_change(scheduler) is None
    assert key in table.kept


def test_what_cannot_be_loaded_is_named_and_tried_again(
    loader: tuple[AdapterLoader, FakeTable, FakeScheduler],
    file: Path,
    folders: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, _, scheduler = loader
    dora = write_random_adapter(tmp_path / "dora", 7)
    settings = json.loads((dora / "adapter_config.json").read_text())
    (dora / "adapter_config.json").write_text(json.dumps(settings | {"use_dora": True}))
    late = tmp_path / "late"
    say(file, sql=folders["sql"], dora=dora, late=late, base=folders["law"])
    assert made.look()
    made.take_change(scheduler)
    assert names(made) == ["sql"]
    failed = made.adapters.failed
    assert "use_dora: True is not allowed; allowed: absent or False" in failed["dora"]
    assert failed["late"] == (
        f"adapters: uri: '{late}' is no folder; allowed: one in PEFT's format"
    )
    assert failed["base"] == "name: 'base' is not allowed; allowed: one that is not in use"
    assert "adapter dora is not loaded" in caplog.text
    caplog.clear()
    assert not made.look(retries=True)
    assert not caplog.text
    write_random_adapter(late, 8)
    assert not made.look(), "until it is tried again"
    assert made.look(retries=True)
    made.take_change(scheduler)
    assert names(made) == ["sql", "late"]
    assert set(made.adapters.failed) == {"dora", "base"}


def test_what_nobody_has_thought_of_harms_no_other_adapter(
    loader: tuple[AdapterLoader, FakeTable, FakeScheduler], file: Path, folders: dict[str, Path]
) -> None:
    made, table, scheduler = loader
    say(file, sql=folders["sql"])
    made.look()
    table.broken = RuntimeError("no pinned memory")
    say(file, **folders)
    assert made.look()
    made.take_change(scheduler)
    assert names(made) == ["sql"]
    assert made.adapters.failed == {"law": "RuntimeError: no pinned memory"}
    table.broken = RuntimeError("x" * 10_000)
    assert made.look(retries=True)
    made.take_change(scheduler)
    assert len(made.adapters.failed["law"]) == MAX_WHY


def test_a_version_that_cannot_be_loaded_leaves_the_one_before(
    loader: tuple[AdapterLoader, FakeTable, FakeScheduler],
    file: Path,
    folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    made, table, scheduler = loader
    say(file, sql=folders["sql"])
    made.look()
    made.take_change(scheduler)
    former, late = made.adapters.loaded, tmp_path / "late"
    say(file, sql=late)
    assert made.look()
    assert not made.look(retries=True)
    made.take_change(scheduler)
    assert made.adapters.loaded == former
    assert made.adapters.failed["sql"].endswith("; the version before is served")
    write_random_adapter(late, 8)
    assert made.look(retries=True)
    made.take_change(scheduler)
    assert made.take_change(scheduler) is None
    assert list(scheduler.folders) == list(table.kept) == [adapter_key("sql", late)]
    assert made.adapters.failed == {}
    say(file, sql=tmp_path / "nowhere")
    assert made.look()
    say(file)
    assert made.look()
    made.take_change(scheduler)
    assert names(made) == []


@pytest.mark.parametrize("content", ["{", '{"adapters": [{"name": "a"}]}', None])
def test_a_file_that_cannot_be_read_changes_nothing(
    loader: tuple[AdapterLoader, FakeTable, FakeScheduler],
    file: Path,
    folders: dict[str, Path],
    content: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, _, scheduler = loader
    say(file, **folders)
    made.look()
    made.take_change(scheduler)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with caplog.at_level(logging.ERROR):
        assert not made.look(retries=True)
        assert not made.look(retries=True)
    assert caplog.text.count("adapters stay as they are") == 1
    assert made.take_change(scheduler) is None
    assert names(made) == list(folders)


def changed(engine: RunningEngine) -> AdaptersChanged:
    """The next time that the engine says so."""
    while True:
        message = engine.link.sent.get(timeout=WAIT_SECONDS)
        if isinstance(message, AdaptersChanged):
            return message


def tokens_to_the_end(engine: RunningEngine, name: str) -> list[int]:
    """The last tokens of an answer; at least one comes now."""
    found: list[int] = []
    while True:
        message = engine.link.sent.get(timeout=WAIT_SECONDS)
        for delta in message.deltas if isinstance(message, StepResult) else ():
            assert delta.request_id == name
            found += delta.token_ids
            if delta.finish_reason:
                return found[-50:]


@pytest.mark.process
def test_a_running_engine_follows_its_file(
    file: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_loading, "POLL_SECONDS", 0.02)
    refs = tuple({"name": name, "uri": str(folder)} for name, folder in folders.items())
    keys = {name: adapter_key(name, folder) for name, folder in folders.items()}
    asked = [generate(name, PROMPT, 12, adapter=key) for name, key in keys.items()]
    drawn = Sampling(temperature=1.0, seed=3)
    long = generate("long", PROMPT, 900, adapter=keys["sql"], sampling=drawn)
    with running("mixed", adapters=refs) as engine:
        expected = engine.answers(asked)
        whole = engine.answers([long])["long"].tokens
    assert expected["sql"].tokens != expected["law"].tokens
    with running("mixed", adapters_file=str(file), max_loras_per_batch=1) as engine:
        assert engine.ready.adapters.loaded == []
        refused = engine.answers(asked)["sql"].end
        assert refused.refusal == "unavailable"
        assert f"adapter {keys['sql']} is not loaded here" in str(refused.error)
        say(file, **folders)
        assert [one.key for one in changed(engine).adapters.loaded] == list(keys.values())
        for name, answer in engine.answers(asked).items():
            assert answer.tokens == expected[name].tokens
        engine.link.ask(long)
        say(file, law=folders["law"])
        assert [one.name for one in changed(engine).adapters.loaded] == ["law"]
        assert tokens_to_the_end(engine, "long") == whole[-50:], "its adapter goes after it"
        assert engine.answers(asked[:1])["sql"].end.refusal == "unavailable"
