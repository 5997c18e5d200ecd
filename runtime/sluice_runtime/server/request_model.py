"""What all request bodies and their parts share: strict types, unknown fields refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def without_nul(text: str) -> str:
    """`text`; tokenizers and C libraries end at NUL."""
    if "\0" in text:
        raise ValueError("text without the character NUL")
    return text


Text = Annotated[str, AfterValidator(without_nul)]


class RequestModel(BaseModel):
    """Base of request bodies and their parts."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)
