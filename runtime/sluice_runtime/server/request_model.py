"""What all request bodies and their parts share: strict types, unknown fields refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator


def without_nul(text: str) -> str:
    """`text`; tokenizers and C libraries end at NUL."""
    if "\0" in text:
        raise ValueError("text without the character NUL")
    return text


Text = Annotated[str, AfterValidator(without_nul)]


class RequestModel(BaseModel):
    """Base of request bodies and their parts."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _with_one_unknown_key(cls, value: Any) -> Any:
        """Of many unknown keys one is enough to be refused; a finding for each takes long."""
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(key for key in value if key not in known)
        return {key: value[key] for key in value.keys() & known} | {unknown: value[unknown]}
