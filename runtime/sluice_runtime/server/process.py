"""The life of the API process: `serve` listens, waits for the model, serves, drains, and ends."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from sluice_contract.cluster.labels import REVISION_VARIABLE, Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.sizing import PlannedConfig
from sluice_contract.wire.handover import Keys, configured_keys
from sluice_contract.wire.spans import Record

from sluice_runtime.errors import STARTUP_REASONS, UnavailableError
from sluice_runtime.grammar.vocabulary import unusable
from sluice_runtime.model import files as model_files
from sluice_runtime.model.files import ModelFiles
from sluice_runtime.model.tokenizer import end_token_ids, load_tokenizer, tokenizer_digest
from sluice_runtime.process import exits
from sluice_runtime.server.app import make_app, make_metrics_app
from sluice_runtime.server.engine_client import ENGINE_DIED, EngineClient
from sluice_runtime.server.http import Gate, HttpServer, listen, url_of
from sluice_runtime.server.metrics import EngineMetrics, KeptSlo
from sluice_runtime.server.prompts import ModelText
from sluice_runtime.server.reasoning.formats import reasoning_format_of
from sluice_runtime.server.sampling_plan import defaults_from
from sluice_runtime.server.service import Clocks, Identity, Service
from sluice_runtime.server.tools.formats import tool_format_of
from sluice_runtime.wire.messages import EngineFailed
from sluice_runtime.wire.transport import ApiLink

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""A server on one of these addresses is probably being tried by a person, so the log shows how to
send a request."""
TRY_QUESTION: Final = "What is Kubernetes? Answer in one sentence."
TRY_PROMPT: Final = "Kubernetes is"
"""Question, or without a chat template the beginning of a text, in the log's example."""
TRY_QUESTIONS: Final = {"sluice-tiny": "copy: Kubernetes in, tokens out."}
"""Questions to models that cannot answer `TRY_QUESTION`, by name."""
TEXT_THREADS: Final = 2
"""Threads that parse, tokenise and encode texts that would block the event loop for too long. More
would cost memory, since the tokenizer has a cache for each thread, and gain little, since Python
runs one at a time."""
_LAST_WORDS_SECONDS: Final = 2.0
"""Time for the last error events to reach the clients, at the end."""

_log = logging.getLogger(__name__)


async def serve(
    config: PlannedConfig,
    endpoint: str,
    accelerator: Accelerator | None = None,
    record: Record | None = None,
) -> int:
    """Serves until a signal or the end of the engine process; returns the exit code. `accelerator`:
    the engine's device; `record`: receives spans.

    Raises:
        StartupError: the address, the tokenizer or the chat template cannot be used.
    """
    threads = ThreadPoolExecutor(TEXT_THREADS, "text")
    asyncio.get_running_loop().set_default_executor(threads)
    signals = _signals()
    host, metrics_port = config.server.host, config.server.metrics_port
    listener = listen(host, config.server.port)
    metrics = None if metrics_port is None else listen(host, metrics_port, "server.metricsPort")
    link = ApiLink(endpoint)
    service = _service(config, link, accelerator or Accelerator(), record)
    servers = [(HttpServer(make_app(service, with_metrics=metrics is None)), listener)]
    if metrics is not None:
        servers.append((HttpServer(make_metrics_app(service)), metrics))
        _log.info("metrics are at %s/metrics", url_of(metrics))
    serving = [asyncio.create_task(server.serve([socket])) for server, socket in servers]
    _log.info(
        "Sluice serves %r at %s once the model is loaded", service.identity.model, url_of(listener)
    )
    try:
        return await _live(service, config, url_of(listener), signals)
    finally:
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*serving)
        link.close()


async def _live(
    service: Service, config: PlannedConfig, url: str, signals: asyncio.Queue[signal.Signals]
) -> int:
    """The part of `serve` from the start of loading to the last response."""
    engine = asyncio.create_task(service.client.run())
    loading = asyncio.create_task(_become_ready(service, config, url))
    stop_signal = asyncio.create_task(signals.get())
    try:
        await _first_done(engine, stop_signal, loading)
        if loading.done():
            loading.result()
            await _first_done(engine, stop_signal)
        if not engine.done():
            await _drain(service, config.server.drain_seconds, engine, signals)
        return await _leave(service, engine)
    finally:
        for task in (engine, loading, stop_signal):
            task.cancel()
        await asyncio.gather(engine, loading, stop_signal, return_exceptions=True)


async def _become_ready(service: Service, config: PlannedConfig, url: str) -> None:
    """Loads the tokenizer and the chat template while the engine loads the weights, then waits for
    the engine."""
    service.text = await asyncio.to_thread(_model_text, config)
    await service.client.became_ready.wait()
    # These objects live as long as the process, so the garbage collector need not look at them.
    gc.collect()
    gc.freeze()
    _return_free_memory()
    _log.info("ready: %r answers", service.identity.model)
    if config.server.host in _LOOPBACK:
        _log.info("try: %s, or %s/ in a browser", _example(service, url), url)


def _example(service: Service, url: str) -> str:
    """A command that asks the model in the way that it was trained for."""
    template = service.text.template if service.text else None
    path, body = "completions", {"prompt": TRY_PROMPT, "max_tokens": 32}
    if template is not None:
        path = "chat/completions"
        question = TRY_QUESTIONS.get(service.identity.model, TRY_QUESTION)
        body = {"messages": [{"role": "user", "content": question}], "stream": True}
    whole = json.dumps({"model": service.identity.model} | body)
    return f"curl -N {url}/v1/{path} -d {shlex.quote(whole)}"


def _return_free_memory() -> None:
    """Returns freed memory to the system. Otherwise glibc would keep the memory that reading the
    files took: 50 MB with a vocabulary of 150,000 tokens."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _model_text(config: EngineConfig) -> ModelText:
    # Imported here, since jinja2 is slow to import and /health need not wait for it.
    from sluice_runtime.model.chat_template import load_chat_template

    files = model_files.resolve(config.model.uri)
    tokenizer = load_tokenizer(files)
    defaults, left_out = defaults_from(files.generation, end_token_ids(files, tokenizer))
    if left_out:
        _log.warning("generation_config.json: not implemented, left out: %s", ", ".join(left_out))
    template = load_chat_template(files)
    with_tools = template.chosen(with_tools=True) if template else None
    form = tool_format_of(with_tools.source if with_tools else "", config.tool_call_format)
    if form is not None and with_tools is not None and not with_tools.shows_tools:
        _log.warning(
            "the model's chat template shows no tools: a request's tools are not shown to it"
        )
    reasoning = reasoning_format_of(template.source if template else "", config.reasoning_format)
    return ModelText(
        tokenizer,
        template,
        defaults,
        form,
        _structured_output_unavailable(files),
        tokenizer_digest(files),
        reasoning,
    )


def _structured_output_unavailable(files: ModelFiles) -> str | None:
    reason = unusable(files)
    if reason is None:
        return None
    _log.warning("structured output is not served: %s", reason)
    return f"this model's answers can be held to no form: {reason}"


def _drain_text(in_progress: int, drain_seconds: float) -> str:
    if not in_progress:
        return "new requests are refused"
    return (
        f"new requests are refused, {in_progress} in flight may take {drain_seconds:g} s; "
        "a second signal (Ctrl-C) ends them at once"
    )


async def _drain(
    service: Service,
    drain_seconds: float,
    engine: asyncio.Task[EngineFailed],
    signals: asyncio.Queue[signal.Signals],
) -> None:
    """Refuses new work and lets running requests finish, until the time is up or a second signal
    comes."""
    _log.info("draining: %s", _drain_text(service.gate.in_progress, drain_seconds))
    service.gate.close()
    service.metrics.draining()
    service.client.drain()
    hurried = asyncio.create_task(signals.get())
    emptied = asyncio.create_task(_emptied(service))
    try:
        await _first_done(engine, hurried, emptied, seconds=drain_seconds)
    finally:
        hurried.cancel()
        emptied.cancel()


async def _emptied(service: Service) -> None:
    """Waits until no client and no other engine waits for this one."""
    await service.gate.emptied()
    if service.role is Role.PREFILL:
        await service.client.rooms_ended()


async def _leave(service: Service, engine: asyncio.Task[EngineFailed]) -> int:
    """Ends every open stream with an error event; returns the exit code."""
    drained = service.gate.closed and not engine.done()
    service.gate.close()
    service.client.end_streams(UnavailableError("the server has shut down"))
    try:
        await asyncio.wait_for(service.gate.emptied(), _LAST_WORDS_SECONDS)
    except TimeoutError:
        _log.warning("some clients did not take their last event")
    if drained:
        return exits.OK
    return _after_failure(engine.result())


def _after_failure(failure: EngineFailed) -> int:
    """The exit code. Logs the message with which the engine failed; for an engine that died without
    one, the supervisor logs why."""
    if failure is ENGINE_DIED:
        return exits.ENGINE_LOST
    final = failure.reason in STARTUP_REASONS
    code = exits.STARTUP if final else exits.ENGINE_FAILED
    return exits.give_up(failure.reason, failure.message, code)


def _service(
    config: PlannedConfig, link: ApiLink, accelerator: Accelerator, record: Record | None
) -> Service:
    vllm_names = config.server.metrics_compatibility == "vLLM"
    metrics = EngineMetrics(_kept_slo(config), vllm_names=vllm_names)
    identity = Identity(
        model=config.model.served_name,
        role=config.role,
        max_body_bytes=config.server.max_body_bytes,
        started_unix=int(time.time()),
        strict_requests=config.strict_requests,
        max_choices=config.server.max_choices_per_request,
        model_uri=config.model.uri,
        model_revision=config.model.revision,
        tensor_parallel_size=config.tensor_parallel_size,
        host_cache=config.host_cache is not None,
        pool_revision=os.environ.get(REVISION_VARIABLE) or None,
        handover_keys=_handover_keys(config),
        requires_signature=bool(config.server.require_signature),
        accelerator=accelerator,
        kv_transfer=None if config.role is Role.MIXED else config.kv_transfer,
        aliases=tuple(config.model.aliases or ()),
        cors=config.server.cors,
        drain_seconds=config.server.drain_seconds,
    )
    metrics.identify(identity.model, identity.role, identity.pool_revision)
    client = EngineClient(link, time.monotonic, metrics)
    clocks = Clocks(time.monotonic, time.time)
    return Service(identity, client, Gate(), metrics, clocks, record)


def _kept_slo(config: EngineConfig) -> KeptSlo | None:
    """Counters for the SLO, if the configuration has one. A prefill engine has them too: it answers
    no client, but may become a decode engine."""
    return None if config.slo is None else KeptSlo(config.slo)


def _handover_keys(config: EngineConfig) -> Keys | None:
    if config.role is Role.MIXED and not config.handover_key_file:
        return None
    return configured_keys(config.handover_key_file, time.monotonic)


def _signals() -> asyncio.Queue[signal.Signals]:
    """A queue that receives each SIGTERM and SIGINT."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received.put_nowait, number)
    return received


async def _first_done(*tasks: asyncio.Task[Any], seconds: float | None = None) -> None:
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
