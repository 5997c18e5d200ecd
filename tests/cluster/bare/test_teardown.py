"""A removal that is interrupted leaves nothing that looks like a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.cluster.bare import teardown
from e2e.cluster.bare.state import claim_layout, known_layout


def test_an_interrupted_removal_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path) -> None:
        (path / "data").unlink()
        raise KeyboardInterrupt

    layout = claim_layout(tmp_path, "gone")
    for name in ("data", "more"):
        (layout.state / name).write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(teardown, "end", lambda _: None)
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            teardown.remove(layout)
    assert known_layout(tmp_path, "gone") is None
    again = claim_layout(tmp_path, "gone")
    teardown.finish_removal(again)
    assert [path.name for path in tmp_path.iterdir()] == ["gone"]
    assert [path.name for path in again.state.iterdir()] == ["number"]
