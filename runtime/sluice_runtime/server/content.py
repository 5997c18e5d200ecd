"""The content of messages: text, and parts that the model does not see, such as images, files, and
items of other servers' tools.

An unseen part in the history is replaced by a text and named in a response header: clients resend
the history with every turn, so a refusal would end the conversation. In the user's turn to be
answered, an unseen part is refused. Chats, responses and messages share this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator
from sluice_contract.log_lines import shown_json

from sluice_runtime.server.fields import LIST, STRING, RequestModel, by_type, is_strict

MAX_TYPE_CHARACTERS: Final = 64
GAP: Final = "\n\n"
"""Separator between texts that were written separately."""
UNSEEN: Final = Tag("not seen")
"""Tag of unseen parts. Tags of several words are never shown in refusals."""
_USERS: Final = ("user", "system", "developer")
_NUMBER: Final = re.compile(r"\d+")
_CONTENTS: Final = (
    ("image", "images"), ("screenshot", "images"), ("audio", "audio"), ("video", "video"),
    ("file", "files"), ("document", "files"),
)  # fmt: skip
"""Kinds of content that a model cannot read, each with a substring of its types' names."""


class Unseen(RequestModel):
    """A part of a type that no model of this server can read; its other fields are dropped."""

    type: Annotated[str, Field(min_length=1, max_length=MAX_TYPE_CHARACTERS)]
    role: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drops_the_rest(cls, part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        role = part.get("role")
        own = {"type": part["type"]} if "type" in part else {}
        return own | ({"role": role} if isinstance(role, str) else {})

    @property
    def text(self) -> str:
        """Text that the model sees in place of the part."""
        return f"[{self.type}: not supported by this model]"


class UnseenAt(NamedTuple):
    """An unseen part, and its place within a turn."""

    part: Unseen
    place: str = ""
    """Path in the turn, such as `.content[0]`; empty: the turn itself."""
    is_result: bool = False
    """Whether a tool returned the part; then the user did not ask about it."""


class SeenTurn(NamedTuple):
    """A turn with its unseen parts."""

    role: str
    """`user`, `system`, `developer`, `assistant` or `tool`."""
    unseen: Sequence[UnseenAt] = ()


def type_of(value: object) -> object:
    """The `type` of an object, or of its model."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def by_known_type(tags: Mapping[str, str], otherwise: str) -> Discriminator:
    """Chooses the model of a part by its `type`. `tags`: tags of known types; `otherwise`: tag for
    parts without a type, which that tag's model then refuses."""

    def tag(part: object) -> str:
        kind = type_of(part)
        return tags.get(kind, UNSEEN.tag) if isinstance(kind, str) else otherwise

    return Discriminator(tag)


def unseen_among(
    parts: object, place: str = ".content", *, is_result: bool = False
) -> Iterator[UnseenAt]:
    """Unseen parts of a content; there are none unless it is a list."""
    for number, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, Unseen):
            yield UnseenAt(part, f"{place}[{number}]", is_result)


_TEXT_PARTS: Final = ("text", "input_text", "output_text")


class TextPart(RequestModel):
    """One text part of a message's content; `input_text` and `output_text` are the type's names in
    responses."""

    type: Literal[_TEXT_PARTS]  # type: ignore[valid-type]
    text: str
    annotations: Any = None
    logprobs: Any = None


class RefusalPart(RequestModel):
    """An assistant's refusal: text like any other."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def _some_parts(parts: list[Any], info: ValidationInfo) -> list[Any]:
    """`parts`, or one empty text part if there are none."""
    if not parts and is_strict(info):
        raise ValueError("a list of at least 1 part")
    return parts


ContentParts = Annotated[
    list[
        Annotated[
            Annotated[TextPart, Tag("of text")]
            | Annotated[RefusalPart, Tag("of a refusal")]
            | Annotated[Unseen, UNSEEN],
            by_known_type(
                dict.fromkeys(_TEXT_PARTS, "of text") | {"refusal": "of a refusal"}, "of text"
            ),
        ]
    ],
    Field(fail_fast=True),
    AfterValidator(_some_parts),
]
"""Parts of a message's content in chats and in responses."""
Content = Annotated[
    Annotated[str, STRING] | Annotated[ContentParts, LIST],
    by_type("a string or a list of text parts"),
]


def text_of_parts(parts: Sequence[TextPart | RefusalPart | Unseen]) -> str:
    """The text of a content for the model; stand-ins of unseen parts are set off by empty lines."""
    text, apart = "", False
    for part in parts:
        is_unseen = isinstance(part, Unseen)
        text += (GAP if text and (apart or is_unseen) else "") + part.text
        apart = is_unseen
    return text


def skipped_paths(field: str, turns: Sequence[SeenTurn]) -> list[str]:
    """Paths for the response's header, without duplicates, such as `messages[].content[].image`."""
    return list(
        dict.fromkeys(
            f"{field}[]{_NUMBER.sub('', unseen.place)}.{unseen.part.type}"
            for turn in turns
            for unseen in turn.unseen
        )
    )


def asked_unseen(field: str, turns: Sequence[SeenTurn], allowed: str) -> tuple[str, str] | None:
    """The first unseen part that the user asks about: its field, and the refusal with what is
    `allowed`. The user's turn is everything after the last answer or tool result, except an answer
    that the assistant has begun."""
    end = len(turns)
    while end and turns[end - 1].role == "assistant":
        end -= 1
    begin = end
    while begin and turns[begin - 1].role in _USERS:
        begin -= 1
    for number in range(begin, end):
        for part, place, is_result in turns[number].unseen:
            if turns[number].role == "user" and not is_result:
                return f"{field}[{number}]{place}.type", _refusal(part.type, allowed)
    return None


def _refusal(kind: str, allowed: str) -> str:
    content = next((content for name, content in _CONTENTS if name in kind), None)
    why = "" if content is None else f" (this model reads no {content})"
    return f"{shown_json(kind)} is not allowed in the user's last turn{why}; allowed: {allowed}"
