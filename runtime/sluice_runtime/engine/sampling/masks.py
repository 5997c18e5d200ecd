"""Masks of grammars over a step's logits.

The host keeps masks as bits, 32 tokens a word, and sends them so; they are unpacked on the device
of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device, Whole, upload_mixed
from sluice_runtime.engine.sampling.penalties import DraftsBefore
from sluice_runtime.grammar.masks import Masks, Matchers


def keep_to_grammars(
    logits: Tensor,
    matchers: Matchers,
    rows: Sequence[int],
    positions: Whole,
    drafts: DraftsBefore | None,
    device: Device,
) -> None:
    """Forbids tokens that grammars do not allow. logits: [m, v] of `rows`, changed in place;
    positions: [m] of the tokens to be drawn. `drafts`: drafts before these tokens; if a model
    proposed them, this waits for them."""
    before = drafts.on_host() if drafts else None
    if masks := matchers.masks(rows, positions.tolist(), before):
        forbid(logits, masks, device)


def forbid(logits: Tensor, masks: Masks, device: Device) -> None:
    """Sets the logits of tokens that are not allowed to -inf. logits: [m, v] of a step's rows."""
    if device.asynchronous:
        (words,) = device.upload([masks.words.reshape(-1)])
        forbidden = unpacked(words.view(len(masks.places), -1))
    else:  # numpy is faster than torch's operators would be
        bits = np.unpackbits(masks.words.view(np.uint8), axis=1, bitorder="little")
        forbidden = torch.from_numpy(bits) == 0
    forbidden = forbidden[:, : logits.shape[1]]
    if len(masks.places) == len(logits):
        logits.masked_fill_(forbidden, -torch.inf)
        return
    (places,) = upload_mixed(device, [np.array(masks.places, np.int64)])
    logits.index_copy_(0, places, logits[places].masked_fill_(forbidden, -torch.inf))


def unpacked(words: Tensor) -> Tensor:
    """Bits of the words, inverted: [k, w] int32 → [k, 32 x w] bool, True where the bit is 0."""
    bits = torch.ones(8, dtype=torch.uint8, device=words.device) << torch.arange(
        8, dtype=torch.uint8, device=words.device
    )
    return ((words.view(torch.uint8)[:, :, None] & bits) == 0).view(len(words), -1)
