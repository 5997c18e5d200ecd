"""Kinds that the operator needs and cannot list or watch.

Nothing is reconciled before every needed kind was listed, and changes of an unwatched kind are
missed. So one missing right affects more than its kind, and has to be reported.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from sluice_operator.clock import Clock
from sluice_operator.kube.errors import FORBIDDEN, ApiError, OperatorError
from sluice_operator.kube.kinds import Kind
from sluice_operator.log import fields

Verb = Literal["list", "watch"]
PATIENCE_SECONDS: Final = 30.0
"""Seconds for which an access may fail before it is reported: API servers refuse for a moment after
their start."""

logger = logging.getLogger(__name__)


class Access(NamedTuple):
    """A right that the operator needs of a kind; `namespace` None: in all of them."""

    verb: Verb
    kind: Kind
    namespace: str | None

    def __str__(self) -> str:
        group = self.kind.api_version.rpartition("/")[0].partition("/")[0]
        resource = f"{self.kind.plural}.{group}" if group else self.kind.plural
        where = "all namespaces" if self.namespace is None else f"namespace {self.namespace}"
        return f"{self.verb} {resource} in {where}"


@dataclass
class _Failing:
    since: float
    logged: str = ""


class BlockedKinds:
    """Kinds that failed for `PATIENCE_SECONDS` without a success in between."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[Access, _Failing] = {}

    def failed(self, access: Access, error: OperatorError) -> None:
        """One more attempt failed."""
        now = self._clock.monotonic()
        failing = self._failing.setdefault(access, _Failing(now))
        if now - failing.since < PATIENCE_SECONDS:
            return
        if not failing.logged:
            logger.warning("needed kind not followed", extra=fields(cannot=access, error=error))
        is_right = isinstance(error, ApiError) and error.status == FORBIDDEN
        failing.logged = f"no right to {access}" if is_right else f"cannot {access}: {error}"

    def succeeded(self, access: Access) -> None:
        """Notes that `access` works, again or from the start."""
        failing = self._failing.pop(access, None)
        if failing is not None and failing.logged:
            logger.info("needed kind followed again", extra=fields(can=access))

    def now(self) -> tuple[Access, ...]:
        """Accesses that have failed for `PATIENCE_SECONDS`."""
        return tuple(access for access, failing in self._failing.items() if failing.logged)

    def reason(self) -> str:
        """Why the operator cannot work, for a person; empty when it can."""
        return "; ".join(failing.logged for failing in self._failing.values() if failing.logged)
