from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from huggingface_hub import close_session

from tests.fetch.hub_server import Hub, serving

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_DRAWN = random.Random(7)
WEIGHTS = {name: _DRAWN.randbytes(3_000_000 + number) for number, name in enumerate(SHARDS)}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A model of two shards of 3 MB, and files that no engine reads."""
    files = dict(WEIGHTS)
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json", "README.md"):
        files[name] = f'{{"of": "{name}"}}'.encode()
    files["pytorch_model.bin"] = b"pickled"
    files["original/model.safetensors"] = b"the same weights once more"
    with serving(Hub(files)) as served:
        yield served
        close_session()
