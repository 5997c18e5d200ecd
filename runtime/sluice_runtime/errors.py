"""The exception tree of the runtime. Every error that ends a process or a request is one of these.

Knows nothing of HTTP: `server` maps `RequestError` to OpenAI's error JSON, `launch` maps
`StartupError` to the exit line and the termination message.
"""

from __future__ import annotations

from typing import Final


class SluiceRuntimeError(Exception):
    """Base of the tree."""


class StartupError(SluiceRuntimeError):
    """The process cannot start. `str()` is one line naming key, value and what is allowed.

    `reason` is stable CamelCase: it becomes the termination message and the CR's condition.
    """

    reason = "StartupFailed"


class InvalidConfigError(StartupError):
    """A key of engine.json cannot be used."""

    reason = "InvalidConfig"


class ModelLoadError(StartupError):
    """Model files are missing, damaged, or of an architecture that this version does not
    support."""

    reason = "ModelLoadFailed"


class OutOfMemoryError(StartupError):
    """Weights and KV pool do not fit. The message names the setting to lower."""

    reason = "OutOfMemory"


class AcceleratorMissingError(StartupError):
    """The configuration asks for a GPU, and there is none that the engine can use."""

    reason = "AcceleratorMissing"


class StepOutOfMemoryError(SluiceRuntimeError):
    """A step found no memory for its activations or logits. The message names settings to lower."""


class EngineUnfitError(SluiceRuntimeError):
    """The process has lost something for good, such as too many KV pages; only a new process has it
    again."""

    reason = "PagesQuarantined"


STARTUP_REASONS: Final = frozenset(
    kind.reason
    for kind in (
        StartupError,
        InvalidConfigError,
        ModelLoadError,
        OutOfMemoryError,
        AcceleratorMissingError,
    )
)
"""Reasons for which starting again will not help."""


class RequestError(SluiceRuntimeError):
    """A request that cannot be served; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """The client's mistake: 400."""


class ContextLengthError(InvalidRequestError):
    """A prompt that is too long for every engine with this configuration: 400 with a code of its
    own."""


class UnsupportedFieldError(InvalidRequestError):
    """A field that this model cannot serve, though others can: 400 with a code of its own."""


class TemplateRefusedError(InvalidRequestError):
    """The model's chat template refuses the conversation, and its message is passed on: 400."""


class TemplateFailedError(RequestError):
    """The model's chat template cannot be evaluated: 500, since no client is to blame."""


class AbortedError(RequestError):
    """The request was aborted on demand."""


class OverloadedError(RequestError):
    """The queue is full: 429 with Retry-After."""


class TenantFullError(OverloadedError):
    """The queue is full for one tenant: 429 with a code of its own."""


class UnavailableError(RequestError):
    """Not ready or draining: 503 with Retry-After."""


class EngineDiedError(UnavailableError):
    """The engine's process ended while it had the request: 503 with a code of its own.

    Retry on another engine once at most: the request may have killed this one.
    """


class RequestOutOfMemoryError(RequestError):
    """A step that computed the request found no memory: 503 with a code of its own.

    Retry on another engine once at most: the request's size may be the cause.
    """


class PrefillFailedError(RequestError):
    """The engine that computes the request's prompt failed or refused for now, or the pages did not
    arrive: 503 with a code of its own.

    A retry should name another prefill engine; retry once at most.
    """


class PrefillUnavailableError(RequestError):
    """The engine that was to compute the request's prompt never took the request: 503 with a code
    of its own. A retry should name another prefill engine.
    """


class HandedBackError(RequestError):
    """The router took the request back before this engine had begun it, because another engine has
    room: 503 with a code of its own.
    """


class GrammarUnavailableError(RequestError):
    """The grammar library failed while it compiled the request's grammar: 503 with a code of its
    own.

    Retry on another engine once at most.
    """


class GrammarError(SluiceRuntimeError):
    """A grammar cannot be used. `str()` is one line for the client, without the field's name."""
