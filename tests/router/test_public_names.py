"""The router uses public names of aiohttp alone: others move with patch releases."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import sluice_router
from sluice_router.listener import ServerProtocol

MODULES = sorted(Path(inspect.getfile(sluice_router)).parent.glob("*.py"))


def private_names(source: str, own: set[str]) -> list[str]:
    """Attributes that begin with one underscore, except of variables named in `own`."""
    attributes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return [
        ast.unparse(node)
        for node in attributes
        if node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in own)
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_no_module_reads_a_private_name_of_another_object(module: Path) -> None:
    assert private_names(module.read_text(), {"self", "cls"}) == []


def test_what_is_derived_from_aiohttp_has_no_private_name() -> None:
    assert private_names(inspect.getsource(ServerProtocol), set()) == []
