"""Hash by which both engines agree, before pages are used, that they mean the same prompt."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence


class PromptHash:
    """128 bits over tokens that come in chunks, each as four bytes."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, token_ids: Sequence[int]) -> None:
        self._digest.update(struct.pack(f"<{len(token_ids)}i", *token_ids))

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def prompt_hash(token_ids: Sequence[int]) -> str:
    """`PromptHash` of all tokens of a prompt, in hexadecimal."""
    whole = PromptHash()
    whole.add(token_ids)
    return whole.hexdigest()
