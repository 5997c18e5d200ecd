"""The reference page of the HTTP API names all there is."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from sluice_runtime.server.app import routes_of
from sluice_runtime.server.generate_request import GenerateRequest
from sluice_runtime.server.protocol import (
    AbortRequest,
    ChatRequest,
    CompletionRequest,
)
from sluice_runtime.server.responses.request import ResponsesRequest
from sluice_runtime.server.sampling_plan import MAX_ANSWER_SCORES, MAX_SCORED_VALUES


def test_the_reference_page_names_every_field_and_every_route() -> None:
    page = Path("docs/reference/api.md").read_text()
    fields = {
        field.alias or name
        for kind in (
            CompletionRequest,
            ChatRequest,
            ResponsesRequest,
            GenerateRequest,
            AbortRequest,
        )
        for name, field in kind.model_fields.items()
    }
    assert {name for name in fields if f"`{name}`" not in page} <= {"request_id"}
    paths = {path.replace("{name}", "NAME") for path in routes_of(Mock()).openapi()["paths"]}
    assert {path for path in paths if path not in page} == set()


def test_the_reference_page_tells_how_many_scores_a_request_may_have() -> None:
    page = Path("docs/reference/api.md").read_text()
    assert f"{MAX_SCORED_VALUES:,} values" in page
    assert f"{MAX_ANSWER_SCORES:,} values" in page
