"""Requests made up from the OpenAPI document, right and wrong ones, sent to a server."""

from __future__ import annotations

from collections import Counter
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
BODYLESS_EXAMPLES = 2
"""There is little to make up for a route that takes nothing."""


def fuzz(
    url: str, model: str, examples: int, *, router: str | None = None
) -> Counter[tuple[str, int]]:
    """How often each path answered with each status. `url`: of an engine; `router`: who is asked
    in its place, for what routers serve.

    Fails on a 5xx other than 503, and on an answer that the document does not describe.
    """
    load_all_checks()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    seen: Counter[tuple[str, int]] = Counter()
    with requests.Session() as session:
        for result in schema.get_all_operations():
            assert isinstance(result, Ok)
            operation = result.ok()
            if router is not None and not operation.path.startswith("/v1/"):
                continue
            for mode in MODES if operation.body else MODES[:1]:
                cases = operation.as_strategy(mode)
                for case in _drawn(cases, model, examples if operation.body else BODYLESS_EXAMPLES):
                    response = case.call(base_url=router or url, session=session, timeout=60)
                    seen[operation.path, response.status_code] += 1
                    case.validate_response(response, checks=CHECKS)
                    assert response.status_code in (503, *range(500)), (case.body, response.text)
    return seen


def _drawn(cases: st.SearchStrategy[Any], model: str, examples: int) -> list[Any]:
    """The same cases every time."""
    drawn: list[Any] = []

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=cases,
        kept=st.sets(st.integers(0, 40), max_size=6),
        workable=st.booleans(),
        streams=st.booleans(),
    )
    def draw(case: Any, kept: set[int], workable: bool, streams: bool) -> None:
        if isinstance(case.body, dict) and workable:
            _make_workable(case.body, model, kept)
            if streams and "request_id" not in case.body:
                case.body["stream"] = True
        drawn.append(case)

    draw()
    return drawn


def _make_workable(body: dict[str, Any], model: str, kept: set[int]) -> None:
    """A prompt for the model served, with a few of the other fields as they were made up."""
    prompts = [{"role": "user", "content": "hi"}]
    needed: dict[str, Any] = {"model": model, "prompt": "hi", "messages": prompts, "input": "hi"}
    if "input" not in body:
        needed["text"] = "hi"
    if "messages" in body:
        needed["max_tokens"] = 5
    others = sorted(body.keys() - needed.keys() - {"input_ids", "request_id"})
    for number, name in enumerate(others):
        if number not in kept:
            del body[name]
    body.update({name: value for name, value in needed.items() if name in body})
    if body.keys().isdisjoint({"prompt", "messages", "input", "request_id"}):
        body.pop("input_ids", None)
        body["text"] = "hi"
