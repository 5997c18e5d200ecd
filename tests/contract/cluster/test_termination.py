"""A termination message is JSON that fits Kubernetes' limit, whatever was to be said."""

from __future__ import annotations

import json
from operator import mul

from hypothesis import example, given
from hypothesis import strategies as st
from sluice_contract.cluster.termination import MAX_BYTES, TerminationMessage


@given(st.builds(mul, st.text(max_size=30), st.integers(1, 300)))
@example("\0" * 9000)
@example("é" * 5000)
def test_it_always_fits_and_parses(text: str) -> None:
    written = TerminationMessage(reason="ModelLoadFailed", message=text).to_bytes()
    assert len(written) <= MAX_BYTES
    assert json.loads(written)["reason"] == "ModelLoadFailed"


def test_a_short_message_is_kept_whole() -> None:
    written = TerminationMessage(reason="InvalidConfig", message='pageSize: 0 — "no"').to_bytes()
    assert TerminationMessage.model_validate_json(written).message == 'pageSize: 0 — "no"'
