"""What both engines say of a prompt before its pages are used: that it is the same one."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence


def prompt_hash(token_ids: Sequence[int]) -> str:
    """128 bits over the tokens, each as four bytes, in hexadecimal."""
    packed = struct.pack(f"<{len(token_ids)}i", *token_ids)
    return hashlib.blake2b(packed, digest_size=16).hexdigest()
