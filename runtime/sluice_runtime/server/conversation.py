"""Renders a conversation by the model's chat template, and finds out what the template changed or
left out.

A template may refuse turns that the API accepts, or show only part of them. Then the conversation
is tried with other turns (`turns`). Content that is still not in the prompt is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice_runtime.errors import InvalidRequestError, TemplateFailedError, TemplateRefusedError
from sluice_runtime.server.prompt_check import CALLS, PromptCheck, kinds_of
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.turns import SYSTEM_IN_USER, TOOLS_AS_TEXT, Turn, mended

if TYPE_CHECKING:  # slow to import
    from sluice_runtime.model.chat_template import ChatTemplate


@dataclass(frozen=True)
class RenderedChat:
    """The prompt of a conversation."""

    prompt: str
    changes: tuple[str, ...] = ()
    """Changes made for the template, and content that it does not show, as names of fields."""


@dataclass(frozen=True)
class _Attempt:
    prompt: str
    unseen: list[str]
    steps: list[str]


@dataclass(frozen=True)
class ConversationRenderer:
    """Renders a chat's messages with one template."""

    template: ChatTemplate
    reasoning_end: str
    """Marker that ends the reasoning in an assistant's message; empty: there is none."""
    unix_seconds: float
    strict: bool
    """Whether a conversation is refused if the template does not accept and show it unchanged."""
    too_long: Callable[[str], bool]
    """Whether a prompt is too long and will be refused, so that it need not be examined."""

    def render(
        self, request: ChatRequest, tools: Sequence[Mapping[str, Any]] | None
    ) -> RenderedChat:
        """The prompt. `tools`: tools in the form that the template gets.

        Raises:
            TemplateRefusedError: the template refuses the conversation in every form of its turns.
            TemplateFailedError: the template cannot be evaluated.
            InvalidRequestError: the server is strict, and the template does not show everything.
        """
        turns = [self._turn(message.for_template()) for message in request.messages]
        check = PromptCheck(turns, self.reasoning_end)
        attempt = self._best_attempt(request, turns, tools, check)
        changes = [f"messages[].{step}" for step in attempt.steps]
        changes += list(dict.fromkeys(_field(kind) for kind in attempt.unseen))
        calls_shown = CALLS not in attempt.unseen
        if tools and not (
            self.template.shows_tools
            and check.shows_tools(attempt.prompt, tools, calls_shown=calls_shown)
        ):
            changes.append("tools")
        if self.strict and changes:
            raise InvalidRequestError(
                f"{changes[0]}: the model's chat template does not show all of it (strictRequests)",
                changes[0].partition("[")[0],
            )
        return RenderedChat(attempt.prompt, tuple(changes))

    def _turn(self, turn: Turn) -> Turn:
        """The turn, with role developer changed to system if the template does not know it."""
        if turn["role"] == "developer" and "developer" not in self.template.source:
            return {**turn, "role": "system"}
        return turn

    def _best_attempt(
        self,
        request: ChatRequest,
        turns: Sequence[Turn],
        tools: Sequence[Mapping[str, Any]] | None,
        check: PromptCheck,
    ) -> _Attempt:
        refusal: TemplateRefusedError | TemplateFailedError | None = None
        best: _Attempt | None = None
        for candidate, steps in _candidates(turns, only_given=self.strict):
            if best is not None and not _may_help(best, steps):
                continue
            try:
                prompt = self._prompt(request, candidate, tools)
            except (TemplateRefusedError, TemplateFailedError) as error:
                refusal = refusal or error
                continue
            if self.too_long(prompt):
                return _Attempt(prompt, [], steps)
            missing = check.unseen(prompt)
            hidden = self.template.hidden(with_tools=bool(tools))
            missing += hidden & kinds_of(candidate) - set(missing)
            if best is None or len(missing) < len(best.unseen):
                best = _Attempt(prompt, missing, steps)
            if not missing or check.spent:
                break
        if best is None:
            assert refusal is not None
            raise refusal
        return best

    def _prompt(
        self,
        request: ChatRequest,
        turns: Sequence[Turn],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        return self.template.render(
            turns,
            tools,
            template_options(request),
            unix_seconds=self.unix_seconds,
            add_generation_prompt=request.add_generation_prompt is not False,
            continues_final=bool(request.continue_final_message),
        )


def _candidates(
    turns: Sequence[Turn], *, only_given: bool
) -> Iterable[tuple[Sequence[Turn], list[str]]]:
    yield turns, []
    if not only_given:
        yield from mended(turns)


def _may_help(best: _Attempt, steps: Sequence[str]) -> bool:
    """Whether steps may improve on the best attempt. Results of calls and system turns are not
    changed if the template shows them. If it shows results but not calls, the calls are reported:
    transformers would make this prompt too."""
    missing = set(best.unseen)
    if TOOLS_AS_TEXT in steps and "tool" not in missing:
        return False
    return SYSTEM_IN_USER not in steps or bool(missing & {"system", "developer"})


def _field(kind: str) -> str:
    return "messages[].tool_calls" if kind == CALLS else "messages[].content"


def template_options(request: ChatRequest) -> Mapping[str, Any]:
    """The request's values for variables that the template reads."""
    effort = request.reasoning_effort
    own = {} if effort is None else {"reasoning_effort": effort}
    return own | (request.chat_template_kwargs or {})
