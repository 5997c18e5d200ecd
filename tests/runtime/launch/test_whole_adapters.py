"""A whole engine follows a file of adapters: clients see them come, answer and go."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from sluice_contract.config.adapters import AdapterRef, render_adapters_file

from tests.runtime.launch.conftest import SETTINGS
from tests.runtime.launch.processes import HANG_SECONDS, get, program, running, until, write_config
from tests.runtime.random_adapter import write_random_adapter

pytestmark = pytest.mark.process


def say(file: Path, **folders: Path) -> None:
    """As the kubelet does it: the file is another one at once."""
    refs = [AdapterRef(name=name, uri=str(folder)) for name, folder in folders.items()]
    fresh = file.with_suffix(".new")
    fresh.write_text(render_adapters_file(refs))
    fresh.rename(file)


def names(url: str) -> list[str]:
    return [model["id"] for model in get(url, "/v1/models").json()["data"]]


def answer(url: str, model: str) -> httpx.Response:
    body = {"model": model, "prompt": "abc" * 9, "max_tokens": 12, "temperature": 0}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=HANG_SECONDS)


def test_adapters_come_and_go(tmp_path: Path) -> None:
    file, sql = tmp_path / "adapters.json", write_random_adapter(tmp_path / "sql", 5)
    say(file)
    config = write_config(tmp_path, **SETTINGS, adaptersFile=str(file))
    with running(program(config)) as process:
        url = process.ready_url()
        assert names(url) == ["tiny"]
        assert answer(url, "sql").status_code == 404
        say(file, sql=sql, law=tmp_path / "nowhere")
        until(lambda: names(url) == ["tiny", "sql"])
        assert "is no folder" in get(url, "/load").json()["adaptersFailed"]["law"]
        found = {name: answer(url, name).json() for name in ("tiny", "sql")}
        assert [found[name]["model"] for name in found] == ["tiny", "sql"]
        texts = {each["choices"][0]["text"] for each in found.values()}
        assert len(texts) == 2
        say(file)
        until(lambda: names(url) == ["tiny"])
        assert answer(url, "sql").status_code == 404
        assert process.end()[0] == 0
