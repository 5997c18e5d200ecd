"""Instructor's cases. Its mode JSON gives the schema to the model alone, which is too small."""

from __future__ import annotations

import asyncio
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field

from tests.clients.cases import KEY, MODEL, run


class City(BaseModel):
    """A city."""

    kind: Literal["town", "city"]
    founded: int = Field(ge=0, le=2100)


WHERE = [{"role": "user", "content": "Where?"}]
MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")


def client(url: str, mode: str) -> instructor.Instructor:
    sdk = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    return instructor.from_openai(sdk, mode=getattr(instructor.Mode, mode))


def fills_models(url: str) -> None:
    for mode in MODES:
        create = client(url, mode).create
        city = create(model=MODEL, messages=WHERE, response_model=City, max_retries=0)
        assert isinstance(city, City), mode


def streams_partial_models(url: str) -> None:
    create = client(url, "TOOLS").create_partial
    *_, last = create(model=MODEL, messages=WHERE, response_model=City, max_retries=0)
    City.model_validate(last.model_dump())


def answers_asynchronously(url: str) -> None:
    sdk = openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0)
    create = instructor.from_openai(sdk).create
    asked = create(model=MODEL, messages=WHERE, response_model=City, max_retries=0)
    assert isinstance(asyncio.run(asked), City)


run("Instructor", [fills_models, streams_partial_models, answers_asynchronously])
