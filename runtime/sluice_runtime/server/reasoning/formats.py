"""How model families write their reasoning: a registry; the format is recognised by the model's
chat template or set in the configuration (`reasoningFormat`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice_contract.config.engine import ReasoningFormat

from sluice_runtime.server.reasoning.parser import ReasoningParser


@dataclass(frozen=True)
class ReasoningForm:
    """One format: reasoning stands between two markers, before the answer."""

    name: ReasoningFormat
    families: str
    """Model families that use it."""
    begin: str
    end: str
    known_by: Callable[[str], bool]
    """Whether a chat template uses this format."""
    always: bool = False
    """Whether an answer is reasoning from its beginning, even where no marker begins it."""

    def for_prompt(
        self, prompt: str, special_id: Callable[[str], int | None], continued: str | None = None
    ) -> AnswerReasoning | None:
        """How the answer to `prompt` has its reasoning; None if the prompt has ended it, as
        templates do with `enable_thinking: false`. `special_id`: a special token's id by name.
        `continued`: the part of the answer that the prompt ends with, if it is not empty."""
        written = prompt.rstrip()
        is_open = continued is not None and continued.rfind(self.begin) > continued.rfind(self.end)
        if written.endswith(self.end) or (continued and not is_open):
            return None
        tokens = {special_id(marker): marker for marker in (self.begin, self.end)}
        return AnswerReasoning(
            self,
            begun=self.always or is_open or written.endswith(self.begin),
            shown_tokens={token: text for token, text in tokens.items() if token is not None},
        )


@dataclass(frozen=True)
class AnswerReasoning:
    """How the reasoning of an answer is separated from the rest."""

    form: ReasoningForm
    begun: bool
    """Whether the answer is reasoning from its first token."""
    shown_tokens: Mapping[int, str]
    """Special tokens that are decoded as text, with their text."""

    def parser(self) -> ReasoningParser:
        """A new parser, for one choice."""
        return ReasoningParser(self.form.begin, self.form.end, begun=self.begun)


FORMS: Final = (
    ReasoningForm(
        name="deepseek-r1",
        families="DeepSeek-R1 and models distilled from it",
        begin="<think>",
        end="</think>",
        known_by=lambda template: "</think>" in template and "｜Assistant｜" in template,
        always=True,
    ),
    ReasoningForm(
        name="qwen3",
        families="Qwen3, QwQ",
        begin="<think>",
        end="</think>",
        known_by=lambda template: "</think>" in template,
    ),
    ReasoningForm(
        name="mistral",
        families="Magistral",
        begin="[THINK]",
        end="[/THINK]",
        known_by=lambda template: "[THINK]" in template,
    ),
)


def reasoning_format_of(
    template: str, named: ReasoningFormat | None = None
) -> ReasoningForm | None:
    """The format that a chat template uses, if known, or the one that is `named`; "none": none."""
    if named is not None:
        return next((form for form in FORMS if form.name == named), None)
    return next((form for form in FORMS if form.known_by(template)), None)
