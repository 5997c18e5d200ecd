"""Registry of the formats in which model families write their reasoning. The configuration sets the
format (`reasoningFormat`), or the model's chat template reveals it.
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
    """Whether every answer begins with reasoning, even without a begin marker."""

    def for_prompt(
        self, prompt: str, special_id: Callable[[str], int | None], continued: str | None = None
    ) -> AnswerReasoning | None:
        """How to separate reasoning in the answer to `prompt`; None if the prompt has ended the
        reasoning, as templates do with `enable_thinking: false`. `special_id`: returns a special
        token's id by name. `continued`: the beginning of the answer, if the prompt ends with
        one."""
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
    """The format that is `named`, else the known format that the chat template uses. None: the name
    is "none", or the template is unknown."""
    if named is not None:
        return next((form for form in FORMS if form.name == named), None)
    return next((form for form in FORMS if form.known_by(template)), None)
