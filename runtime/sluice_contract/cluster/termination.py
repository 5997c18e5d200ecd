"""The termination message: one JSON object that a container leaves behind when it exits by itself.

Engine and fetcher write it, the operator reads it into conditions.
"""

from __future__ import annotations

from sluice_contract.base import ContractModel

MAX_BYTES = 4096
"""Kubernetes' limit for one container's termination message."""

EXIT_REFUSED = 2
"""Exit code of a process for which a restart does not help."""

MODEL_RESOLVED = "ModelResolved"
"""The fetcher's reason once a revision is resolved; the message is a `ResolvedModel` as JSON."""
MODEL_FETCHED = "ModelFetched"
"""The fetcher's reason once a commit is complete; the message is the commit."""
TOKEN_MISSING = "TokenMissing"  # noqa: S105
"""The fetcher's reason if the file with the hub's token is missing."""


class TerminationMessage(ContractModel):
    """Why the process ended; `reason` is stable CamelCase, `message` one line for a person."""

    reason: str
    message: str

    def to_bytes(self) -> bytes:
        """The JSON, shortened so that it fits `MAX_BYTES`."""
        message = self.message
        while len(encoded := self._encode(message)) > MAX_BYTES:
            message = message[: len(message) * MAX_BYTES // (len(encoded) + 1)]
        return encoded

    def _encode(self, message: str) -> bytes:
        return self.model_copy(update={"message": message}).model_dump_json().encode()
