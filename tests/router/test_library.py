"""aiohttp's inner names: all that the router uses are listed, and a missing one ends the start."""

from __future__ import annotations

import ast
import inspect
import tomllib
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from sluice_router import connections, library, relay
from sluice_router.__main__ import main

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OWNERS = {
    web: library.MODULE_NAMES,
    web.RequestHandler: library.CONNECTION_NAMES,
    web.StreamResponse: library.RESPONSE_NAMES,
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in OWNERS.items() for name in names]
)
def test_a_missing_name_ends_the_start_with_a_line_and_a_status_of_its_own(
    owner: type,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for place in inspect.getmro(owner) if isinstance(owner, type) else (owner,):
        if name in vars(place):
            monkeypatch.delattr(place, name)
    monkeypatch.setattr(aiohttp, "__version__", "3.99.0")
    config = tmp_path / "router.json"
    config.write_text("{}")  # refused with another status, were the library accepted
    assert main(["--config", str(config)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("router: aiohttp 3.99.0 has no ")
    assert name in line
    assert line.endswith("; allowed: >=3.14.4,<3.15")


@pytest.mark.parametrize(
    ("ours", "theirs", "listed"),
    [
        (connections.Connection, web.RequestHandler, library.CONNECTION_NAMES),
        (relay._Response, web.StreamResponse, library.RESPONSE_NAMES),
    ],
)
def test_every_inner_name_that_is_used_is_listed(
    ours: type, theirs: type, listed: tuple[str, ...]
) -> None:
    nodes = list(ast.walk(ast.parse(inspect.getsource(ours))))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    names |= {node.name for node in nodes if isinstance(node, ast.AsyncFunctionDef)}
    private = {name for name in names & set(dir(theirs)) if name.startswith("_")}
    assert {name for name in private if not name.startswith("__")} == set(listed)


def test_packages_ask_for_the_versions_that_the_router_allows() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert f"aiohttp{library.ALLOWED}" in extras["router"]
