"""`sluice serve MODEL`: one engine without a cluster, from a folder or from Hugging Face.

Makes the engine's configuration from options, downloads the model where it is a hub's, and then
runs the engine in this process. `scripts/serve` starts it, too.
"""

from __future__ import annotations

from sluice_contract.interrupts import end_quietly

if __name__ == "__main__":
    end_quietly()

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TextIO

from sluice_contract.config.engine import ModelRef

from sluice_runtime.process.start import process_began

UNUSABLE: Final = 2
FAILED: Final = 1
DEFAULTS: Final = {"model": {"uri": "dummy://qwen3-tiny"}, "server": {"port": 8000}}
REQUIRED: Final = ("torch", "zmq", "uvicorn", "tokenizers", "safetensors")
"""Modules without which no engine starts, from the extra `engine`."""
DEVICES: Final = "SLUICE_DEVICES"
"""Variable of the folder that is searched for GPUs instead of /dev."""
HUB: Final = "hf://"
DUMMY: Final = "dummy://"
REPOSITORY: Final = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*")
SMOLLM2: Final = "smollm2"
SMOLLM2_FOLDER: Final = "SmolLM2-135M-Instruct-a672150f-sampling"
"""Folder in the cache that `make serve MODEL=smollm2` fills."""
REVISION: Final = re.compile(r"(?!.*\.\.)\w[-./\w]{0,127}")
MODELS: Final = (
    "a folder, hf://org/name[@revision], org/name[@revision], dummy://name, or smollm2 once "
    "`make serve MODEL=smollm2` has fetched it, in a checkout"
)
ATTEMPTS: Final = 4
"""Attempts at a hub that does not answer: seven seconds in all, where it answers at once."""
Config = dict[str, Any]
STATUSES: Final = (
    "--set wins over --settings, and both over the other options and --config. Exit status: that "
    "of the engine; 1 where the model cannot be downloaded, 2 where an option is unusable."
)


class UnusableOptionError(Exception):
    """An option cannot be used; names it, its value and what is allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        shown = json.dumps(value, ensure_ascii=False)
        super().__init__(f"{option}: {shown} is not allowed; allowed: {allowed}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the engine until a signal ends it; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        config = engine_config(options, has_gpu=has_gpu())
    except UnusableOptionError as error:
        return _fail(str(error), UNUSABLE)
    if missing := _missing(REQUIRED):
        return _fail(f"{missing} is not installed; {_install('engine')}", UNUSABLE)
    began, model = process_began(), config["model"]
    uri = str(model.get("uri")) if isinstance(model, dict) else ""
    if uri.startswith(HUB):
        if missing := _missing(("huggingface_hub", "httpx2", "obstore")):
            return _fail(f"{missing} is not installed; {_install('engine,fetch')}", UNUSABLE)
        from sluice_fetch.errors import FetchError, InvalidConfigError

        try:
            model = downloaded(model, options.cache, sys.stderr)
        except InvalidConfigError as error:  # of the endpoint: the rest has been checked
            says = str(error).removeprefix("--endpoint: ")
            return _fail(f"HF_ENDPOINT: {says}", UNUSABLE)
        except FetchError as error:
            return _fail(f"{uri}: {error.reason}: {error}", FAILED)
        began = time.monotonic()  # a download is no part of the engine's start
    if uri:
        print(f"… serving {_name_text(model)}", file=sys.stderr)
    from sluice_runtime.process import launch

    # A file in memory, which leaves nothing behind.
    file = os.memfd_create("engine.json")
    os.write(file, json.dumps(config | {"model": model}).encode())
    return launch.main(["--config", f"/proc/{os.getpid()}/fd/{file}"], began=began)


def engine_config(options: argparse.Namespace, *, has_gpu: bool) -> Config:
    """The engine.json that the options ask for; the engine checks its keys.

    Raises:
        UnusableOptionError: an option is no setting at all.
    """
    config: Config = _file(options.config) if options.config else {}
    if options.model:
        config = _merged(config, {"model": _model(options.model)})
    if options.port:
        if not (options.port.isascii() and options.port.isdigit()):
            raise UnusableOptionError("--port", options.port, "a number from 0 to 65535")
        config = _merged(config, {"server": {"port": int(options.port)}})
    for settings in options.settings:
        config = _merged(config, _object("--settings", settings, settings))
    for setting in options.set:
        config = _merged(config, _setting(setting))
    if has_gpu:
        config = {"accelerator": {"count": 1}} | config
    config = _merged(DEFAULTS, config)
    _check_hub(config["model"])
    return config


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return any(Path(os.environ.get(DEVICES) or "/dev").glob("nvidia[0-9]*"))


def downloaded(model: Mapping[str, Any], cache: Path, out: TextIO) -> dict[str, Any]:
    """`model` of an engine.json with the folder of a hub's model, which is downloaded if it is not
    there; `out`: where progress is shown. While the hub does not answer: the commit of the last
    download.

    Raises:
        FetchError: it cannot be downloaded.
    """
    from huggingface_hub import get_token
    from sluice_fetch import settings
    from sluice_fetch.__main__ import HUB as HUGGING_FACE
    from sluice_fetch.cache import Cache
    from sluice_fetch.errors import TransientError
    from sluice_fetch.fetch import Fetcher
    from sluice_fetch.hub import Hub
    from sluice_fetch.retry import Retry
    from sluice_fetch.snapshot import MODEL

    text = DownloadText(cache, out)

    def wait(stop: threading.Event, seconds: float) -> object:
        text.says(f"the hub does not answer; next attempt in {seconds:.0f} s")
        return stop.wait(seconds)

    uri, revision = model["uri"], model.get("revision") or settings.NEWEST
    endpoint = os.environ.get("HF_ENDPOINT") or HUGGING_FACE
    source = replace(settings.source(uri, revision, endpoint, None), token=get_token())
    fetcher = Fetcher(text.tell, time.monotonic, Retry(wait, attempts=ATTEMPTS))
    try:
        folder = fetcher.fetch(Hub(source), cache).folder
    except TransientError:
        there = Cache(cache, source.repository)
        commit = there.remembered(revision)
        if commit is None or not there.is_complete(commit, MODEL):
            raise
        text.says(f"the hub does not answer: {uri} stays as of the last download")
        folder = there.snapshot_folder(commit)
    rest = {key: value for key, value in model.items() if key != "revision"}
    return {"name": source.repository.partition("/")[2]} | rest | {"uri": str(folder)}


class DownloadText:
    """Shows events of a fetch: in a terminal on one line, elsewhere only the beginning."""

    def __init__(self, cache: Path, out: TextIO) -> None:
        self._cache = cache
        self._out = out
        self._resolved: Mapping[str, Any] | None = None
        """Fields of the event `resolved`, until a download begins."""
        self._has_line = False

    def tell(self, event: str, fields: Mapping[str, Any]) -> None:
        """Shows an event; see `sluice_fetch.fetch.Tell`."""
        if event == "resolved":
            self._resolved = fields
        elif event == "progress":
            self._progress(fields)
        elif event == "complete" and self._has_line:
            self._out.write("\n")
            self._has_line = False

    def says(self, text: str) -> None:
        """Shows a text on a line of its own."""
        begin = "\n" if self._has_line else ""
        self._has_line = False
        self._out.write(f"{begin}… {text}\n")
        self._out.flush()

    def _progress(self, fields: Mapping[str, Any]) -> None:
        if self._resolved is not None:
            repository, commit = self._resolved["repository"], self._resolved["commit"]
            self.says(
                f"downloading {repository} at {commit[:12]} ({_gigabytes(fields['total'])} GB) "
                f"into {self._cache}; after Ctrl-C the next start continues"
            )
            self._resolved = None
        if self._out.isatty():
            left = "" if fields["etaSeconds"] is None else f", {fields['etaSeconds']} s left"
            done, total = _gigabytes(fields["bytes"]), _gigabytes(fields["total"])
            speed = fields["bytesPerSecond"] / 1e6
            self._out.write(f"\r\x1b[K  {done} of {total} GB, {speed:.0f} MB/s{left}")
            self._has_line = True
        self._out.flush()


def _model(word: str) -> dict[str, str]:
    """URI and revision of a MODEL, and the name of smollm2. A folder on this machine goes before a
    model of its name."""
    if not word.startswith(HUB) and ("://" in word or Path(word).exists()):
        return {"uri": word}
    if word == SMOLLM2:
        folder = _cache() / SMOLLM2_FOLDER
        if not folder.exists():
            raise UnusableOptionError("MODEL", word, MODELS)
        return {"name": SMOLLM2, "uri": str(folder)}
    repository, at, revision = word.removeprefix(HUB).partition("@")
    if not REPOSITORY.fullmatch(repository) or (at and not REVISION.fullmatch(revision)):
        raise UnusableOptionError("MODEL", word, MODELS)
    uri = f"{HUB}{repository}"
    return {"uri": uri, "revision": revision} if at else {"uri": uri}


def _check_hub(model: Any) -> None:
    """Refuses a hub's model that no hub can have; another model is the engine's to check."""
    uri = str(model.get("uri")) if isinstance(model, dict) else ""
    if not uri.startswith(HUB):
        return
    if not REPOSITORY.fullmatch(uri.removeprefix(HUB)):
        raise UnusableOptionError("model.uri", uri, "hf://org/name")
    revision = model.get("revision")
    if revision and not (isinstance(revision, str) and REVISION.fullmatch(revision)):
        raise UnusableOptionError("model.revision", revision, "a branch, tag or commit")


def _file(path: Path) -> Config:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableOptionError("--config", str(path), f"a readable file ({error})") from None
    return _object("--config", text, str(path))


def _object(option: str, text: str, shown: str) -> Config:
    """The JSON object in `text`; `shown`: how an error names it."""
    allowed = "a JSON object of engine.json's keys"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UnusableOptionError(option, shown, f"{allowed} ({error})") from None
    if not isinstance(value, dict):
        raise UnusableOptionError(option, shown, allowed)
    return value


def _setting(word: str) -> Config:
    """The setting in `KEY=VALUE`. A value that is no JSON is text."""
    key, separator, text = word.partition("=")
    if not separator or not all(key.split(".")):
        allowed = "KEY=VALUE, as in server.port=8001 or schedulingPolicy=lpm"
        raise UnusableOptionError("--set", word, allowed)
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Config:
    """`above` over `below`, key by key."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(under, value)
        else:
            merged[key] = value
    return merged


def _name_text(model: Mapping[str, Any]) -> str:
    """Name under which a model is served, and how that is changed; of random weights: how a model
    is chosen."""
    uri = str(model["uri"])
    name = ModelRef.model_construct(uri=uri, name=model.get("name")).served_name
    if uri.startswith(DUMMY):
        return f"{uri} as {name}: random weights; a model: sluice serve MODEL, make serve MODEL=…"
    return f"{uri} as {name}; another name: --set model.name=NAME (make serve: SETTINGS)"


def _missing(modules: Iterable[str]) -> str | None:
    return next((name for name in modules if find_spec(name) is None), None)


def _install(extras: str) -> str:
    return f"in a checkout, scripts/setup --serve or: pip install '.[operator,{extras}]'"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f}"


def _fail(text: str, status: int) -> int:
    print(f"sluice serve: {text}", file=sys.stderr)
    return status


def _cache() -> Path:
    """The folder of builds, and of models in `models`."""
    base = os.environ.get("SLUICE_CACHE")
    if not base:
        base = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sluice")
    return Path(base)


def _parser() -> argparse.ArgumentParser:
    text = "One engine without a cluster, over OpenAI's API, on this machine's GPU if it has one."
    parser = argparse.ArgumentParser(prog="sluice serve", description=text, epilog=STATUSES)
    text = "folder, hf://org/name[@revision], org/name[@revision], smollm2 (see `make serve`), "
    text += "or dummy://name: random weights"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=text)
    parser.add_argument("--port", help="of the API, on all addresses of this machine (8000)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="an engine.json to begin with")
    text = "a key of engine.json, such as schedulingPolicy=lpm or model.name=NAME; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "keys of engine.json as a JSON object; repeatable, the last wins"
    parser.add_argument("--settings", action="append", default=[], metavar="JSON", help=text)
    text, models = "where models are downloaded to (%(default)s)", _cache() / "models"
    parser.add_argument("--cache", type=Path, default=models, metavar="FOLDER", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
