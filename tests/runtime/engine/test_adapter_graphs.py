"""Decode steps that are replayed graphs add what each row's adapter adds, and nothing to others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sluice_runtime.engine.build import build_engine
from sluice_runtime.engine.prepare import capture_graphs
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.adapters import adapter_key
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import Generate

from tests.runtime.harness import Recorder, Run, drive, engine_config, generate
from tests.runtime.layers.flashinfer_backend import engines_on_flashinfer
from tests.runtime.random_adapter import write_random_adapter
from tests.runtime.recorded_graph import capture


def answers(folders: dict[str, Path], rounds: list[list[Generate]], graphs: int) -> Run:
    """Of one round after the other; decode steps of up to `graphs` rows are replayed."""
    config = resolved(
        engine_config(
            "dummy://qwen3-tiny",
            attention_backend="torch",
            dtype="float32",
            max_running_requests=4,
            max_loras_per_batch=2,
            adapters=tuple({"name": n, "uri": str(path)} for n, path in folders.items()),
        )
    )
    engine, run = build_engine(config, resolve(config.model.uri)), Run()
    with closing(engine.grammar_compiler), closing(engine.executor(overlap=False)) as device:
        capture_graphs(engine, graphs, lambda: capture)
        assert (engine.runner._graphs is not None) == (graphs > 0)
        for requests in rounds:
            drive(engine.scheduler, device, run, Recorder(run), requests, ())
    return run


@pytest.mark.process
def test_replayed_steps_take_the_adapters_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines_on_flashinfer(monkeypatch)
    folders = {name: write_random_adapter(tmp_path / name, i) for i, name in enumerate("abc", 5)}
    keys = {"": "", **{name: adapter_key(name, folder) for name, folder in folders.items()}}

    def round_of(number: int, names: list[str]) -> list[Generate]:
        prompt = range(number, number + 8)
        return [
            generate(f"{number}-{index}", prompt, 5, adapter=keys[name])
            for index, name in enumerate(names)
        ]

    mixes = [["a", "", "b"], ["", ""], ["c", "a"], ["", "b", ""], [""]]
    rounds = [round_of(number, names) for number, names in enumerate(mixes)]
    expected = answers(folders, rounds, 0)
    assert len({tuple(expected.tokens[name]) for name in ("0-0", "0-1", "0-2")}) == 3
    assert answers(folders, rounds, 4).tokens == expected.tokens
