"""`sluice rollout COMMAND NAME`: what `kubectl rollout` does for Deployments, and canaries.

Talks to the cluster of the kubeconfig's context, with its user's rights.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from sluice_operator.api.validate import with_stored_spec
from sluice_operator.cli.rollout.canary import (
    Decide,
    NoCanaryError,
    all_requests,
    decision,
    next_step,
    no_requests,
)
from sluice_operator.cli.rollout.progress import as_text, bars, progress_of, signals
from sluice_operator.cli.rollout.session import MissingServiceError, Session, session
from sluice_operator.cli.rollout.undo import (
    NothingToUndoError,
    changes,
    engines_ready,
    history_text,
    number_from_now,
    puts_back,
    restarted,
    target,
    undone,
)
from sluice_operator.conditions.reasons import CANARY_STEP
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import Manifest

FAILED: Final = 1
UNUSABLE: Final = 2
STATUSES: Final = (
    "Exit status: 0 where all is done, or a canary's step waits for a person or for engines of a "
    "service that has none; 1 where the roll-out has stopped, a canary is worse or stalled, the "
    "time is over, a decision about a canary is refused (nothing changes), or there is no such "
    "service or revision; 2 where there is no cluster, or it refuses."
)


def run(arguments: Sequence[str]) -> int:
    """The command; see `STATUSES`."""
    options = _parser().parse_args(arguments)
    try:
        return asyncio.run(_run(options))
    except (MissingServiceError, NoCanaryError, NothingToUndoError) as error:
        print(f"sluice rollout {options.name_of_command}: {error}", file=sys.stderr)
        return FAILED
    except OperatorError as error:
        print(f"sluice rollout {options.name_of_command}: {error}", file=sys.stderr)
        return UNUSABLE


async def _run(options: argparse.Namespace) -> int:
    command: Callable[[Session, argparse.Namespace], Awaitable[int]] = options.command
    async with session(options.namespace, options.name) as opened:
        return await command(opened, options)


async def _status(opened: Session, options: argparse.Namespace) -> int:
    try:
        async with asyncio.timeout(options.timeout or None):
            service = await (_followed(opened) if options.watch else opened.service())
    except TimeoutError:
        text = f"not complete within {options.timeout:g} s"
        print(f"sluice rollout status: {options.name}: {text}", file=sys.stderr)
        return FAILED
    print(as_text(service, await opened.pools(), await opened.revisions()), flush=True)
    return FAILED if progress_of(service).has_failed else 0


async def _followed(opened: Session) -> Manifest:
    """The service once its roll-out is done, has stopped, sleeps or waits for a person; prints
    each change until then, in a terminal with bars."""
    printed: list[str] = []
    async with aclosing(opened.states()) as states:
        async for service in states:
            progress = progress_of(service)
            if progress.is_over:
                return service
            lines = [progress.line]
            if sys.stdout.isatty():
                is_judged = progress.reason == CANARY_STEP
                lines += signals(await opened.revisions()) if is_judged else bars(service)
            if lines != printed:
                print("\n".join(lines), flush=True)
                printed = lines
    raise AssertionError("states have no end")


async def _history(opened: Session, options: argparse.Namespace) -> int:
    print(history_text(await opened.service(), await opened.revisions()))
    return 0


async def _undo(opened: Session, options: argparse.Namespace) -> int:
    service = await opened.service()
    serving = engines_ready(await opened.pools())
    revisions = await opened.revisions()
    revision = target(service, revisions, options.to_revision, serving)
    if not revision.state.complete:
        text = f"revision {revision.number} was never complete, and its engines serve"
        print(f"sluice rollout: {text}", file=sys.stderr)
    spec = undone(with_stored_spec(service)["spec"], revision.spec)
    message, number = f"{options.name}: back to revision {revision.number}", revision.number
    if (later := number_from_now(revision, revisions)) != number:
        message += f", which is revision {later} from now on"
    return await _edit(opened, service, spec, message, is_preview=options.dry_run)


async def _restart(opened: Session, options: argparse.Namespace) -> int:
    service = await opened.service()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = restarted(with_stored_spec(service)["spec"], now)
    message = f"{options.name}: restarted"
    return await _edit(opened, service, spec, message, is_preview=options.dry_run)


async def _promote(opened: Session, options: argparse.Namespace) -> int:
    return await _decide(opened, all_requests if options.full else next_step)


async def _abort(opened: Session, options: argparse.Namespace) -> int:
    return await _decide(opened, no_requests)


async def _decide(opened: Session, decide: Decide) -> int:
    items, service = await opened.revisions(), await opened.service()
    revision, annotation, text = decision(service, items, decide)
    item = next(item for item in items if item["metadata"]["name"] == revision)
    await opened.decide(item, annotation)
    print(f"{opened.name}: {text}")
    _warn_of_pause(service, "its engines stay" if decide is no_requests else "it waits")
    return 0


async def _edit(
    opened: Session, service: Manifest, spec: Manifest, message: str, *, is_preview: bool
) -> int:
    print(changes(with_stored_spec(service)["spec"], spec), end="")
    if not is_preview:
        await opened.edit(service, spec)
    print(f"{message} (dry run)" if is_preview else message)
    if tool := puts_back(service):
        text = f"{tool} applies {opened.name} and puts its own spec back: change it there as well"
        print(f"sluice rollout: {text}", file=sys.stderr)
    _warn_of_pause(service)
    return 0


def _warn_of_pause(service: Manifest, text: str = "it waits") -> None:
    if service["spec"].get("paused"):
        print(f"sluice rollout: {text}, as spec.paused is true", file=sys.stderr)


def _seconds(word: str) -> float:
    """Seconds of a duration in kubectl's spelling: 90, 90s, 15m, 1h. 0: no time limit."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(word[-1:], 0)
    value = float(word[:-1]) * unit if unit else float(word)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


_seconds.__name__ = "time such as 90s, 15m or 1h"


def _parser() -> argparse.ArgumentParser:
    text = "Roll-outs of an InferenceService."
    parser = argparse.ArgumentParser(prog="sluice rollout", description=text, epilog=STATUSES)
    commands = parser.add_subparsers(required=True, dest="name_of_command", metavar="COMMAND")
    for name, command, text in (
        ("status", _status, "waits until the spec is carried out, or a person is needed"),
        ("history", _history, "the specs that it has been complete with, which undo goes back to"),
        ("undo", _undo, "edits the spec: back to the last one that was complete"),
        ("restart", _restart, "replaces engines and routers by new ones, one after the other"),
        ("promote", _promote, "gives the new revision of a canary its next share of requests"),
        ("abort", _abort, "ends a canary: the former revision has all requests"),
    ):
        sub = commands.add_parser(
            name, help=text, description=text, epilog=STATUSES, allow_abbrev=False
        )
        sub.set_defaults(command=command)
        sub.add_argument("name", help="of the InferenceService")
        sub.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
        if command is _status:
            text = "wait until it is complete, has stopped or waits for a person (default: yes)"
            watch = argparse.BooleanOptionalAction
            sub.add_argument("-w", "--watch", action=watch, default=True, help=text)
            text = "how long to wait, such as 15m; 0: without an end (default)"
            sub.add_argument("--timeout", type=_seconds, default=0.0, help=text)
        if command is _undo:
            text = "a number of history; default: the one before the present spec"
            sub.add_argument("--to-revision", type=int, help=text)
        if command is _promote:
            text = "all requests, whatever steps are left or not reached"
            sub.add_argument("--full", action="store_true", help=text)
        if command in (_undo, _restart):
            text = "show what would be edited, and edit nothing"
            sub.add_argument("--dry-run", action="store_true", help=text)
    return parser
