"""Which engines may go on with an answer that another one began: those of equal identity.

Pure. The chat template has no part in it: what it makes of a request is the prompt, whose hash is
compared with each resume.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple

import msgspec
from sluice_contract.config.kv_transfer import KvFingerprint

from sluice_runtime.server.prompts import ModelText


def answer_identity(fingerprint: KvFingerprint, served_name: str, text: ModelText) -> str:
    """Opaque, of all that the next tokens and their text depend on besides the request: the model
    and its type, its tokenizer, its sampling defaults, how it writes tool calls and reasoning,
    and its name in answers. Not of the shape of KV pages."""
    facts = (
        served_name,
        fingerprint.model,
        fingerprint.model_revision,
        fingerprint.weights,
        fingerprint.kv_dtype,
        text.tokenizer_digest,
        astuple(text.defaults),
        text.tool_format.name if text.tool_format is not None else None,
        text.formless is None,
        text.reasoning_form.name if text.reasoning_form is not None else None,
    )
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()
