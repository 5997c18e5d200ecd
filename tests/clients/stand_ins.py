"""Runs peers' own programs and tests without their engines: of a release only some folders are
there, and what else they import of it stands in, since a request needs none of it.

Standard library only, beside what those programs need. `stand_ins.py FOLDER URL bench MODULE …`
runs a module's command line, `stand_ins.py FOLDER URL tests FILE …` tests that ask a URL, and
prints their outcomes as a line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

NAMES: Final = ("vllm", "sglang", "torch", "tests", "datasets")
"""Packages of which what is not there stands in."""
TOKENIZER: Final = Path(__file__).resolve().parents[2] / "e2e" / "model" / "sluice-tiny"
TEST_SECONDS: Final = 20.0
"""For one request of a test: some have no `max_tokens`, and the small model knows no end."""

ALL_SECONDS: Final = 200.0
"""After which no other test begins: those left are not counted."""


class RemoteOpenAIServer:
    """The server that vLLM's tests would start: it is there already."""

    url = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.url_root = self.url

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url, *(part.strip("/") for part in parts if part)])

    def _client(self, library: str, kind: str, base: str, **settings: Any) -> Any:
        given = {"timeout": TEST_SECONDS, **settings, "api_key": "none", "max_retries": 0}
        return getattr(importlib.import_module(library), kind)(base_url=base, **given)

    def get_client(self, **settings: Any) -> Any:
        return self._client("openai", "OpenAI", self.url_for("v1"), **settings)

    def get_async_client(self, **settings: Any) -> Any:
        return self._client("openai", "AsyncOpenAI", self.url_for("v1"), **settings)

    def get_client_anthropic(self, **settings: Any) -> Any:
        return self._client("anthropic", "Anthropic", self.url, **settings)

    def get_async_client_anthropic(self, **settings: Any) -> Any:
        return self._client("anthropic", "AsyncAnthropic", self.url, **settings)


class Placeholder:
    """Of a library that is not installed."""

    def __init__(self, *_: Any) -> None:
        pass

    def placeholder_attr(self, _: str) -> Any:
        return self


def tokenizer(*_: Any, **__: Any) -> Any:
    return importlib.import_module("transformers").AutoTokenizer.from_pretrained(TOKENIZER)


REAL: Final[dict[str, Any]] = {
    "sglang.srt.utils.network.resolve_base_url": lambda url, *_: url,
    "tests.utils.RemoteOpenAIServer": RemoteOpenAIServer,
    "tests.utils.ROCM_EXTRA_ARGS": [],
    "tests.utils.ROCM_ENV_OVERRIDES": {},
    "vllm.logger.init_logger": logging.getLogger,
    "vllm.tokenizers.get_tokenizer": tokenizer,
    "vllm.utils.argparse_utils.FlexibleArgumentParser": argparse.ArgumentParser,
    "vllm.utils.gc_utils.freeze_gc_heap": lambda: None,
    "vllm.utils.import_utils.PlaceholderModule": Placeholder,
    "vllm.utils.mistral.is_mistral_tokenizer": lambda _: False,
}
"""What a request does need; anything else is an empty class."""


class StandIn(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        value = REAL[full] if full in REAL else type(name, (), {})
        setattr(self, name, value)
        return value


class StandIns(MetaPathFinder, Loader):
    """Asked last: what is there is taken."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        known = name.partition(".")[0] in NAMES
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Outcomes:
    """A plugin of pytest."""

    def __init__(self) -> None:
        self.cases: dict[str, str] = {}
        self._until = time.monotonic() + ALL_SECONDS

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._until:
            importlib.import_module("pytest").skip("no time is left")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.cases[report.nodeid] = str(report.longrepr)[-600:]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.cases[report.nodeid] = crash.message if crash else str(report.longrepr)[-600:]
        elif report.when == "call" and report.passed:
            self.cases.setdefault(report.nodeid, "")


def bench(module: str, arguments: Sequence[str]) -> None:
    """The command line of vLLM's benchmark, or of SGLang's."""
    sys.argv = [module, *arguments]
    program = importlib.import_module(module)
    if hasattr(program, "cli_main"):
        program.cli_main()
        return
    parser = argparse.ArgumentParser()
    program.add_cli_args(parser)
    program.main(parser.parse_args())


def tests(folder: Path, files: Sequence[str]) -> None:
    import pytest

    outcomes = Outcomes()
    os.chdir(folder)
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    with open(os.devnull, "w") as nowhere:
        printed, sys.stdout = sys.stdout, nowhere
        pytest.main([*options, f"--rootdir={folder}", *files], plugins=[outcomes])
        sys.stdout = printed
    print(json.dumps(outcomes.cases))


def main() -> None:
    folder, RemoteOpenAIServer.url, what, *rest = sys.argv[1:]
    sys.path[0] = folder
    sys.meta_path.append(StandIns())
    if what == "bench":
        bench(rest[0], rest[1:])
    else:
        tests(Path(folder), rest)


if __name__ == "__main__":
    main()
