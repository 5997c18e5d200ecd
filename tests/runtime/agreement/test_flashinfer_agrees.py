"""Models with windows and sinks agree with transformers on flashinfer's wrappers, with graphs and
without. The kernels are in torch, and graphs are recordings.
"""

from __future__ import annotations

import pytest

from tests.runtime.agreement.cases import Case, check, random_requests
from tests.runtime.agreement.oracle import PairOf
from tests.runtime.layers.flashinfer_backend import engines_with_graphs

pytestmark = [pytest.mark.xdist_group("transformers"), pytest.mark.process]

CASES = [
    Case("gemma3_text", page_size=1, chunk_size=16, backend="torch"),
    Case("gpt_oss", page_size=1, chunk_size=16, backend="torch"),
    Case("gemma3_text", chunk_size=32, split=(32, 2), overlap=True, backend="torch"),
    Case("gpt_oss", chunk_size=32, split=(32, 1), overlap=True, backend="torch"),
    Case("gemma3_text", chunk_size=32, pool_tokens=256, overlap=True, backend="torch"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_agree(pair_of: PairOf, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    replays = engines_with_graphs(monkeypatch)
    lengths = (60, 120) if case.pool_tokens else (120, 24)
    run = check(case, *pair_of(case.kind), random_requests(16, *lengths))
    steps = run.graph_steps
    assert 0 < steps < sum(run.modes.values()), "steps by graphs, and steps without"
    assert len(replays) >= steps
