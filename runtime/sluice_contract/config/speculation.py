"""Speculation settings: what drafts an answer's tokens, and how many at once."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from sluice_contract.base import ContractModel

SpeculationMethod = Literal["NGram", "Draft", "Eagle"]
DEFAULT_DRAFT_TOKENS: Final = 4


class DraftRef(ContractModel):
    """Which model drafts."""

    uri: str = Field(
        min_length=1,
        max_length=1024,
        description="Where its weights are.",
    )


class SpeculationSettings(ContractModel):
    """Settings for tokens that are drafted ahead and verified together in one step."""

    method: SpeculationMethod = Field(
        description="Where drafts come from: what followed the last tokens when they were there "
        "before (NGram), a model (Draft), or an EAGLE-3 head.",
    )
    draft: DraftRef | None = Field(
        default=None, description="Small model of the same vocabulary, or the head."
    )
    tokens: int = Field(
        default=DEFAULT_DRAFT_TOKENS,
        ge=1,
        le=16,
        description="Most drafts of a request in one step; fewer, or none, where more do not pay.",
    )

    @model_validator(mode="after")
    def _of_a_draft(self) -> Self:
        if (self.draft is None) == (self.method != "NGram"):
            raise ValueError("draft.uri with methods Draft and Eagle, and with no other")
        return self
