"""`sluice autoscale history NAME`: what the operator's autoscaler saw and decided of a service.

Reads the service's journal from the cluster of the current context. Changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from sluice_autoscaler.journal import JournalError, JournalLine, read_journal

from sluice_operator.autoscale.journals import journal_lines, journal_name
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Connection
from sluice_operator.kube.errors import OperatorError, RequestError
from sluice_operator.kube.kinds import CONFIG_MAP

FAILED: Final = 1
UNUSABLE: Final = 2
TIMEOUT_SECONDS: Final = 10.0
TEXT, JSON, JOURNAL = "text", "json", "journal"


def run(arguments: Sequence[str]) -> int:
    """The command. 0: done; 1: the service has no journal; 2: no cluster, or the ConfigMap is no
    journal."""
    options = _parser().parse_args(arguments)
    try:
        namespace, lines = asyncio.run(_fetched(options.namespace, options.name))
        journal = list(read_journal(lines))
    except (OperatorError, RequestError, JournalError) as error:
        print(f"sluice autoscale history: {error}", file=sys.stderr)
        return UNUSABLE
    if not journal:
        where = f"ConfigMap {journal_name(options.name)} in namespace {namespace}"
        message = f"no journal of {options.name}: {where} is not there, or holds none"
        print(f"sluice autoscale history: {message}", file=sys.stderr)
        return FAILED
    kept = slice(-options.last, None) if options.last else slice(None)
    if options.output == JOURNAL:
        print("\n".join(lines[kept]))
    else:
        show = as_json if options.output == JSON else as_text
        print("\n".join(show(line) for line in journal[kept]))
    return 0


def as_text(line: JournalLine) -> str:
    """A line for people: time, present and new engines of each pool, and the reason."""
    pools = ", ".join(
        f"{role} {pool.current}" + (f" → {pool.desired}" if pool.desired != pool.current else "")
        for role, pool in line.decision.pools.items()
    )
    quiet = f" ({line.left_out_ticks} alike before)" if line.left_out_ticks else ""
    return f"{_when(line)}  {pools}  {line.decision.reason}: {line.decision.message}{quiet}"


def as_json(line: JournalLine) -> str:
    """The decision of a line as JSON, without its sample."""
    pools = {
        role: {"current": pool.current, "desired": pool.desired, "reason": pool.reason}
        for role, pool in line.decision.pools.items()
    }
    return json.dumps(
        {
            "time": _when(line),
            "reason": line.decision.reason,
            "message": line.decision.message,
            "pools": pools,
            "leftOutTicks": line.left_out_ticks,
        }
    )


def _when(line: JournalLine) -> str:
    if line.unix_seconds is None:
        return f"{line.sample.time_seconds:.1f} s"
    return datetime.fromtimestamp(line.unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _fetched(namespace: str | None, name: str) -> tuple[str, list[str]]:
    async with aclosing(Connection(TIMEOUT_SECONDS)) as connection:
        place = namespace or await connection.namespace()
        client = ApiClient(connection, lambda verb, plural: None)
        config_map = await client.get(CONFIG_MAP, place, journal_name(name))
    return place, journal_lines(config_map) if config_map else []


def _count(word: str) -> int:
    value = int(word)
    if value < 1:
        raise ValueError
    return value


_count.__name__ = "whole number of at least 1"


def _parser() -> argparse.ArgumentParser:
    text = "What the operator's autoscaler saw and decided of a service, the oldest first."
    parser = argparse.ArgumentParser(prog="sluice autoscale history", description=text)
    parser.add_argument("name", help="of the InferenceService")
    parser.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
    parser.add_argument("--last", type=_count, help="only so many decisions")
    parser.add_argument(
        "-o",
        "--output",
        choices=(TEXT, JSON, JOURNAL),
        default=TEXT,
        help="journal: as `sluice autoscale replay --journal` reads it (%(default)s)",
    )
    return parser
