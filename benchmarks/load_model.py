"""What loading a model costs an engine on CPUs: time, rate, and memory.

Writes a checkpoint of several shards, then loads it in new processes, with an empty page cache and
with a full one. A step follows, which reads every weight, so that what a load leaves to it counts.
Prints one JSON line a case. Memory at its peak: `anonymous` is the process's own, `mapped` are the
files, which engines of one node share and which the kernel may take back.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 28,
    "max_position_embeddings": 4096,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
"""Of Qwen3 0.6B."""
SHARD_BYTES: Final = 300_000_000
SAMPLE_SECONDS: Final = 0.005


class Case(NamedTuple):
    dtype: str
    cached: bool
    ahead: bool
    """Whether files are read ahead."""


CASES: Final = (
    *(Case("bfloat16", cached, ahead) for cached in (False, True) for ahead in (False, True)),
    Case("float32", cached=False, ahead=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--folder", help="on the disk to be measured")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--no-ahead", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(measured(Path(options.load), options.dtype, ahead=not options.no_ahead)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write(folder, CONFIG | {"num_hidden_layers": options.layers})
        for case in CASES:
            runs = [loaded(folder, case) for _ in range(options.runs)]
            best = max(runs, key=lambda run: run["gb_per_s"])
            print(json.dumps({"bench": "load-model"} | case._asdict() | best), flush=True)


def write(folder: Path, config: dict[str, Any]) -> None:
    """Random weights, in shards."""
    import torch
    from safetensors.torch import save_file
    from sluice_runtime.layers.backend import choose_backend
    from sluice_runtime.model.load import WHOLE_ON_CPU, Reader, build_decoder
    from sluice_runtime.model.shard import Part
    from sluice_runtime.model.spec import spec_from
    from sluice_runtime.model.weights import INDEX, RandomWeights

    class Written(RandomWeights):
        def __init__(self) -> None:
            super().__init__(0, torch.device("cpu"))
            self.shard: dict[str, torch.Tensor] = {}
            self.places: dict[str, str] = {}

        def read(self, name: str, part: Part, dtype: torch.dtype) -> torch.Tensor:
            tensor = super().read(name, part, dtype)
            self.shard[name] = tensor
            if sum(one.nbytes for one in self.shard.values()) >= SHARD_BYTES:
                self.save()
            return tensor

        def save(self) -> None:
            file = f"model-{len(set(self.places.values())):05}.safetensors"
            save_file(self.shard, folder / file)
            self.places |= dict.fromkeys(self.shard, file)
            self.shard.clear()

    source, spec = Written(), spec_from(config)
    choice = choose_backend(torch.bfloat16, spec.head_dim, WHOLE_ON_CPU.device, "torch")
    build_decoder(Reader(spec, source, torch.bfloat16, WHOLE_ON_CPU), choice.backend)
    source.save()
    (folder / INDEX).write_text(json.dumps({"weight_map": source.places}))
    (folder / "config.json").write_text(json.dumps(config))
    os.sync()


def loaded(folder: Path, case: Case) -> dict[str, float]:
    """What a new process says of one load."""
    for path in folder.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        if not case.cached:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    command = [sys.executable, "-m", "benchmarks.load_model", "--load", str(folder)]
    command += ["--dtype", case.dtype, *([] if case.ahead else ["--no-ahead"])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(folder: Path, dtype: str, *, ahead: bool) -> dict[str, float]:
    """In this process: seconds, GB/s of the files over both, and MiB at the peak."""
    import torch
    from sluice_runtime.kv.pool import KvShape, PagePool
    from sluice_runtime.model import load
    from sluice_runtime.model.files import resolve

    from tests.runtime.layers.layouts import layout

    if not ahead:
        vars(load)["read_ahead"] = lambda paths, progress: None
    files, where = resolve(str(folder)), layout(4)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    tokens = torch.arange(int(where.begins[-1]))
    before = memory_mib()
    with Peak() as peak:
        started = time.perf_counter()
        model = load.load_model(files, dtype, 0)
        loaded_at = time.perf_counter()
        shape = KvShape(model.spec.layers, model.spec.kv_heads, model.spec.head_dim, model.dtype)
        pool = PagePool(shape, where.page_table.numel(), 4)
        model.logits(model.hidden(tokens, tokens, pool, where))
        ended = time.perf_counter()
    return {
        "files_gb": round(size / 1e9, 2),
        "load_seconds": round(loaded_at - started, 2),
        "step_seconds": round(ended - loaded_at, 2),
        "gb_per_s": round(size / 1e9 / (ended - started), 2),
        "anonymous_mib": round(peak.anonymous - before[0]),
        "mapped_mib": round(peak.mapped - before[1]),
    }


def memory_mib() -> tuple[float, float]:
    """Anonymous and mapped memory of this process."""
    status = Path("/proc/self/status").read_text()
    anonymous, mapped = (
        int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
        for name in ("RssAnon", "RssFile")
    )
    return anonymous, mapped


class Peak:
    """The most memory of this process inside its context, sampled."""

    def __init__(self) -> None:
        self.anonymous = self.mapped = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            anonymous, mapped = memory_mib()
            self.anonymous = max(self.anonymous, anonymous)
            self.mapped = max(self.mapped, mapped)


if __name__ == "__main__":
    main()
