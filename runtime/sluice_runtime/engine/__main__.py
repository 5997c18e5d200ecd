"""The engine process: `python -m sluice_runtime.engine --config FILE --endpoint ipc://PATH
[--accelerator JSON] [--began SECONDS]`, or `--wait`, with these options on standard input.

Started by the launcher; talks to the API process over the endpoint only.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import EngineConfig, read_engine_config
from sluice_contract.config.sizing import ResolvedConfig
from sluice_contract.log_lines import log_to_stderr
from sluice_contract.wire.handover import Keys, configured_keys

from sluice_runtime.engine.late_graphs import LateGraphs
from sluice_runtime.engine.report import StepLog, logger, startup_line
from sluice_runtime.engine.sizing.host import set_library_variables
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.errors import EngineUnfitError, InvalidConfigError, StartupError
from sluice_runtime.model.files import resolve_model
from sluice_runtime.process.start import StartWatch, process_began, uncollected
from sluice_runtime.wire.messages import EngineFailed, Loading, RoleTaken
from sluice_runtime.wire.transport import EngineLink, Wakeup

if TYPE_CHECKING:
    from sluice_runtime.engine.build import Engine
    from sluice_runtime.engine.executors import Executor
    from sluice_runtime.parallel.joined import JoinedRanks

EXIT_STARTUP = 2
"""Exit code if configuration, weights or memory prevent the start; a restart will not help."""
EXIT_CRASH = 1
WAIT = "--wait"
"""Only argument of a process that gets its options later, in one line of standard input, as a JSON
list of strings. The end of the input ends it."""


def main(arguments: list[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit code."""
    if (arguments or sys.argv[1:]) == [WAIT]:
        with suppress(ImportError, OSError):  # `_serve` reports it
            _import_libraries()
        if not (line := sys.stdin.readline()):
            return 0
        arguments = json.loads(line)
    parser = argparse.ArgumentParser(prog="python -m sluice_runtime.engine", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--accelerator", help="what was found to compute on, as JSON")
    parser.add_argument(
        "--began", type=float, help="time.monotonic() when the container's first process started"
    )
    options = parser.parse_args(arguments)
    watch = _watch(options.began)
    log_to_stderr()
    wakeup = Wakeup()
    link = EngineLink(options.endpoint, wakeup)
    try:
        _serve(read_config(options.config, options.accelerator), link, wakeup, watch)
    except StartupError as error:
        logger.error("%s: %s", error.reason, error)
        link.send(EngineFailed(error.reason, str(error)))
        return EXIT_STARTUP
    except EngineUnfitError as error:
        logger.error("%s: %s", error.reason, error)
        link.send(EngineFailed(error.reason, str(error)))
        return EXIT_CRASH
    except Exception as error:
        logger.exception("the engine process failed")
        link.send(EngineFailed("EngineCrashed", f"{type(error).__name__}: {error}"))
        return EXIT_CRASH
    finally:
        link.close()
    return 0


@dataclass(frozen=True)
class Ends:
    """Sources of events that the engine's loop waits for."""

    link: EngineLink
    wakeup: Wakeup
    stops: Sequence[int]
    """Numbers of the signals that have arrived."""
    ranks: JoinedRanks


def read_config(path: Path, accelerator_json: str | None) -> EngineConfig:
    """Configuration in the file. `accelerator_json`: the detected accelerator, from which missing
    sizes of a GPU are taken.

    Raises:
        InvalidConfigError: the file cannot be read or used.
    """
    try:
        config = read_engine_config(path)
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from None
    configured = config.accelerator
    if accelerator_json is None or configured is None or configured.is_cpu or configured.product:
        return config
    detected = Accelerator.model_validate_json(accelerator_json)
    return config.model_copy(update={"accelerator": detected})


def _handover_keys(config: EngineConfig) -> Keys:
    """The service's keys; empty for a mixed engine, which needs none."""
    if config.role is Role.MIXED:
        return tuple
    try:
        return configured_keys(config.handover_key_file, time.monotonic)
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from None


def _watch(began: float | None) -> StartWatch:
    """Stopwatch since `began`; None: since the start of this process."""
    own = process_began()
    watch = StartWatch(own if began is None else began)
    watch.ended("launch", own)
    return watch


def _serve(config: EngineConfig, link: EngineLink, wakeup: Wakeup, watch: StartWatch) -> None:
    planned, files = resolved(config), resolve_model(config.model)
    keys = _handover_keys(config)
    _import_libraries()
    from sluice_runtime.engine.build import StartReports, build_engine, compiler_of
    from sluice_runtime.engine.device import place_of
    from sluice_runtime.engine.sizing.pool_size import smallest_gpu_bytes, with_running_requests
    from sluice_runtime.grammar.vocabulary import unusable
    from sluice_runtime.model.families.registry import spec_from
    from sluice_runtime.parallel.joined import joined_ranks

    watch.ended("imports")
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stops.append(received))
    spec = spec_from(files.config)
    smallest = smallest_gpu_bytes(planned.accelerator, planned.tensor_parallel_size)
    watch.ended("device")
    # Before the other ranks start, because they get this configuration.
    sized = with_running_requests(planned, spec, smallest)
    with closing(compiler_of(files, spec.vocabulary_size, wakeup.set)) as compiler:
        if unusable(files) is None:
            compiler.warm_up()  # while the weights are read, so that no request waits for it
        with joined_ranks(sized, place_of(sized.accelerator)) as ranks:
            watch.ended("ranks")
            engine = build_engine(
                sized,
                files,
                compiler=compiler,
                group=ranks.group,
                reports=StartReports(
                    lambda read, total: link.send(Loading(read, total)), watch.ended
                ),
            )
            cache = engine.host_cache
            with closing(engine.runner), closing(cache) if cache else nullcontext():
                _run(sized, engine, keys, Ends(link, wakeup, stops, ranks), watch)


def _import_libraries() -> None:
    """Imports torch and what needs it, which takes seconds."""
    set_library_variables()
    with uncollected():
        import sluice_runtime.engine.build
        import sluice_runtime.engine.prepare
        import sluice_runtime.parallel.joined  # noqa: F401


def _run(config: ResolvedConfig, engine: Engine, keys: Keys, ends: Ends, watch: StartWatch) -> None:
    """Runs the engine from its first step until a signal, in one role after the other."""
    from sluice_runtime.engine.prepare import capture_missing_graphs, prepare

    prepare(config, engine, watch.ended)
    logger.info(startup_line(engine.sizes()))
    logger.info("ready after %s", watch)
    adapters, announce = engine.adapters, ends.ranks.announce
    with (
        closing(engine.executor(overlap=config.overlap, announce=announce)) as executor,
        adapters.following(ends.wakeup.set) if adapters else nullcontext(),
    ):
        role = _run_in_role(config, engine, executor, keys, ends, watch.phases)
        while role is not None:
            config = config.model_copy(update={"role": role})
            capture_missing_graphs(config, engine)
            role = _run_in_role(config, engine, executor, keys, ends)


def _run_in_role(
    config: ResolvedConfig,
    engine: Engine,
    executor: Executor,
    keys: Keys,
    ends: Ends,
    start: dict[str, float] | None = None,
) -> Role | None:
    """Runs the engine in the role of `config` until a signal or a change of role; returns the new
    role, or None. `start`: seconds by phase; None: the engine had another role before."""
    from sluice_runtime.engine.handover import started_role
    from sluice_runtime.engine.loop import Clock, EngineLoop, Pipeline
    from sluice_runtime.engine.outbox import step_limit_seconds

    ready = engine.ready(secrets.token_hex(8), start or {})
    wake, copiers, page_size = ends.wakeup.set, ends.ranks.copiers, engine.settings.page_size
    with started_role(config, engine, keys, ready, wake, copiers) as started:
        ready = started.ready
        ends.link.send(
            ready if start else RoleTaken(config.role, ready.epoch, ready.bootstrap_port)
        )
        loop = EngineLoop(
            ends.link,
            Pipeline(engine.grammars, engine.scheduler, executor, _late_graphs(config, engine)),
            lambda pace: StepLog(page_size, pace),
            clock=Clock(step_limit_seconds=step_limit_seconds(config.accelerator)),
            role=started.role,
            adapters=engine.adapters,
        )
        return loop.run(lambda: bool(ends.stops))


def _late_graphs(config: ResolvedConfig, engine: Engine) -> LateGraphs | None:
    if not engine.runner.missing_graphs:
        return None
    return LateGraphs(engine.runner, latency_promised=config.slo is not None)


if __name__ == "__main__":
    sys.exit(main())
