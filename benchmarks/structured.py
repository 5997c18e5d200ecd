"""Cost of structured output without a model: the time until the first mask, and for each token.

`python -m benchmarks.structured [--rows N]`: grammars of several kinds over a made-up vocabulary of
150,000 tokens; a line of JSON each. Tokens are drawn at random from the masks, with a seed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from sluice_runtime.engine.build import compiler_of
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.model.files import resolve
from sluice_runtime.model.tokenizer import BYTE_OF_SYMBOL
from sluice_runtime.scheduler.batch import Batch, ForwardMode, RowAdded
from sluice_runtime.wire.messages import Generate, Grammar, GrammarKind, Sampling

TOKENS: Final = 150_000
END: Final = TOKENS - 1
MAX_TOKENS: Final = 100
PROMPT: Final = [1, 2, 3]
_KINDS: Final = ("string", "integer", "boolean")


def _record(properties: int, required: int) -> dict[str, Any]:
    named = {f"property_{i}": {"type": _KINDS[i % 3]} for i in range(properties)}
    return {
        "type": "object",
        "properties": named,
        "required": list(named)[:required],
        "additionalProperties": False,
    }


GRAMMARS: Final[Mapping[str, tuple[GrammarKind, Any]]] = {
    "five properties": ("json_schema", _record(5, 5)),
    "any object": ("json_schema", {"type": "object"}),
    "60 properties, half required": ("json_schema", _record(60, 30)),
    "300 properties, half required": ("json_schema", _record(300, 150)),
    "200 optional properties": ("json_schema", _record(200, 0)),
    "regular expression": ("regex", "[A-Z]{2}-[0-9]{4}(, [a-z]{1,12}){20}"),
    "arithmetic in EBNF": (
        "ebnf",
        'root ::= term ("+" term){30}\nterm ::= [0-9]{1,6} | "(" term "+" term ")"',
    ),
}


def vocabulary(tokens: int) -> list[bytes]:
    """All bytes, then words as a tokenizer of code and prose has them; the last of so many tokens
    is no word."""
    draw = random.Random(1)
    words = dict.fromkeys(bytes([value]) for value in range(256))
    for length in range(2, 64):
        words |= dict.fromkeys(c * length for c in (b" ", b"\n", b"0", b"a"))
    for mark in ('{"', '":', '": "', '", "', '"},', '": {"', '": [', "}\n", '","', "{}", "[]"):
        words[mark.encode()] = None
    while len(words) < tokens - 1:
        word = "".join(
            draw.choice("etaoinshrdlucmfwypvbgkjqxz") for _ in range(draw.randint(2, 10))
        )
        before, after = draw.choice(["", " ", " ", "_", '"']), draw.choice(["", "", "", '"', ","])
        words[f"{before}{word}{after}".encode()] = None
    return list(words)


def save(folder: Path, tokens: int = TOKENS) -> None:
    """Writes the tokenizer of a model with this vocabulary."""
    symbols = {value: symbol for symbol, value in BYTE_OF_SYMBOL.items()}
    spelled = ["".join(symbols[value] for value in word) for word in vocabulary(tokens)]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": {word: token for token, word in enumerate(spelled)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def measured(
    queue: GrammarQueue, matchers: Matchers, kind: GrammarKind, text: str, rows: int
) -> dict[str, Any]:
    """Milliseconds until the first mask, and of each step with `rows` answers."""
    names = [f"{text[:20]}/{row}" for row in range(rows)]
    began = time.perf_counter()
    for name in names:
        grammar = Grammar(kind, text, [END], "field")
        queue.add(Generate(name, PROMPT, MAX_TOKENS, Sampling(), grammar=grammar))
    ready: list[Generate] = []
    while len(ready) < rows:
        released = queue.released()
        if released.ended:
            return {"refused": released.ended[0].error}
        ready += released.ready
        time.sleep(0.0002)
    added = tuple(RowAdded(row, name, Sampling()) for row, name in enumerate(names))
    matchers.follow(Batch(1, ForwardMode.DECODE, added_rows=added))
    draw, live, steps = random.Random(2), list(range(rows)), []
    first = 0.0
    for answered in range(MAX_TOKENS):
        step = time.perf_counter()
        masks = matchers.masks(live, [len(PROMPT) + answered] * len(live))
        steps.append(time.perf_counter() - step)
        first = first or time.perf_counter() - began
        assert masks is not None
        bits = np.unpackbits(masks.words.view(np.uint8), axis=1, bitorder="little")[:, :TOKENS]
        drawn = [int(draw.choice(np.flatnonzero(row))) for row in bits]
        matchers.accepting(live)(drawn)
        live = [row for row, token in zip(live, drawn, strict=True) if token != END]
        if ended := queue.given_up(1):
            return {"given_up": ended[0].error, "tokens": answered}
        if not live:
            break
    matchers.follow(Batch(2, ForwardMode.DECODE, dropped_rows=tuple(range(rows))))
    for name in names:
        queue.ended(name)
    milliseconds = [seconds * 1e3 for seconds in steps]
    return {
        "first_ms": round(first * 1e3, 1),
        "mean_ms": round(statistics.mean(milliseconds), 2),
        "worst_ms": round(max(milliseconds), 2),
        "tokens": len(steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        Path(folder, "config.json").write_text(json.dumps({"vocab_size": TOKENS}))
        with closing(compiler_of(resolve(folder), TOKENS)) as compiler:
            matchers = Matchers(TOKENS, threads=2)
            queue = GrammarQueue(compiler, matchers, max(16, options.rows))
            began = time.perf_counter()
            measured(queue, matchers, "regex", "a", 1)
            print(json.dumps({"grammar": "the first of all", "s": time.perf_counter() - began}))
            for name, (kind, asked) in GRAMMARS.items():
                text = json.dumps(usable_schema(asked)) if kind == "json_schema" else asked
                figures = measured(queue, matchers, kind, text, options.rows)
                print(json.dumps({"grammar": name, "rows": options.rows} | figures), flush=True)


if __name__ == "__main__":
    main()
