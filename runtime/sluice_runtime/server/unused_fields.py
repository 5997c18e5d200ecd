"""Fields of OpenAI's and vLLM's APIs that are not used.

Those that would not change an answer are accepted with any value. The others are accepted only with
a value that has no effect, and otherwise refused by name. A field leaves this module when it is
implemented.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sluice_runtime.server.request_model import RequestModel

Empty = Annotated[list[Any], Field(max_length=0)]


class UnusedFields(RequestModel):
    """Accepted with any value: they do not change the answer."""

    metadata: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    spaces_between_special_tokens: Any = None
    """The decoders of current tokenizers put no spaces there in either case."""
    store: Any = None
    user: Any = None
    verbosity: Any = None


class NotImplementedFields(RequestModel):
    """Accepted only with a value that has no effect: others would change the answer."""

    allowed_token_ids: Empty | None = None
    audio: None = None
    bad_words: Empty | None = None
    best_of: Literal[1] | None = None
    chat_template: None = None
    continue_final_message: Literal[False] | None = None
    documents: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    functions: Empty | None = None
    logits_processors: Empty | None = None
    lora_path: None = None
    modalities: list[Literal["text"]] | None = None
    prompt_embeds: None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    suffix: Literal[""] | None = None
    use_beam_search: Literal[False] | None = None
    web_search_options: None = None


class NotImplementedMessageFields(RequestModel):
    """The same for a message. OpenAI's client sends them, as null, with earlier answers."""

    annotations: Any = None
    """Not shown to the model."""
    audio: None = None
    function_call: None = None
