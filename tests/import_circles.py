"""Import rule of the whole product: no module imports itself by way of others, types included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import grimp
from importlinter.application import output
from importlinter.domain.contract import Contract, ContractCheck


class NoCirclesContract(Contract):
    """Contract `no_circles`: the graph of modules is acyclic."""

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        imports = {
            module: graph.find_modules_directly_imported_by(module) for module in graph.modules
        }
        found = circle(imports)
        return ContractCheck(kept=not found, metadata={"circle": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        output.print_error(" imports ".join(check.metadata["circle"]))


def circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of modules, its first one repeated at the end; empty: there is none."""
    sorter = TopologicalSorter(imports)
    try:
        sorter.prepare()
    except CycleError as error:
        modules: list[str] = error.args[1]
        return modules[::-1]
    return []
