"""`down` where no cluster is says that there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.bare import node_process
from e2e.cluster.bare.layout import Layout
from e2e.cluster.providers import bare


@pytest.mark.parametrize("there", [False, True])
def test_down_says_whether_there_was_a_cluster(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    removed: list[Layout] = []
    monkeypatch.setattr(bare, "_require_root", lambda: None)
    monkeypatch.setattr(bare, "remove", removed.append)
    monkeypatch.setattr(node_process, "find_node", lambda layout: None)
    if there:
        (tmp_path / "mine").mkdir()
    bare.BareCluster("mine", tmp_path).down()
    said = capsys.readouterr().err
    assert ("There is no cluster mine" in said) is not there
    assert ("Removing the cluster mine" in said) is there
    assert len(removed) == 1, "what is left beside the folder goes as well"
