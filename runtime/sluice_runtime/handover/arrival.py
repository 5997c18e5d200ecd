"""Tracks the arrival of one prompt's pages: which to read next, and whether all are here.

Pure: announcements of a prefill engine go in, reads come out. A prompt that is computed a second
time is announced again from its start. Its pages are then read again, but only once no earlier read
is under way, since both write into the same pages.
"""

from __future__ import annotations

from collections import deque

from sluice_runtime.handover.messages import Chunk, Finished
from sluice_runtime.handover.ports import FromPrefill, PeerMemory
from sluice_runtime.scheduler.kv_allocator import pages_for


class ArrivalError(Exception):
    """The prefill engine sent an impossible message; `str()` is one line."""


class Arrival:
    """Chunks of one room of a decode engine, from their announcement to their reading."""

    def __init__(self, prompt_tokens: int, held_tokens: int, page_size: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._held_tokens = held_tokens
        self._page_size = page_size
        self._covered = held_tokens
        """Leading tokens that are here, or whose pages are being read."""
        self._waiting: deque[FromPrefill] = deque()
        """Chunks that were announced and are not read yet."""
        self.reads: set[int] = set()
        """Numbers of those under way."""
        self.finished: Finished | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a part of the prompt was announced."""
        read = self.reads or self._covered > self._held_tokens
        return bool(self._waiting or read or self.finished)

    @property
    def complete(self) -> bool:
        """Whether the first token is known and every token of the prompt is in our pages."""
        read = not (self._waiting or self.reads) and self._covered == self._prompt_tokens
        return read and self.finished is not None

    def announced(self, message: FromPrefill) -> None:
        """
        Raises:
            ArrivalError: a chunk that does not follow the one before it.
        """
        chunk = message.message
        assert isinstance(chunk, Chunk)
        if self.finished is not None:
            raise ArrivalError("a chunk was announced behind the first token")
        self._check(chunk, message.memory)
        self._waiting.append(message)

    def next_read(self) -> FromPrefill | None:
        """The next read, if any is possible now; its number belongs to `reads` from now on."""
        if not self._waiting:
            return None
        chunk = self._waiting[0].message
        assert isinstance(chunk, Chunk)
        if chunk.start != self._covered:
            if chunk.start != self._held_tokens:
                raise ArrivalError(
                    f"a chunk begins at token {chunk.start}; "
                    f"allowed: {self._covered} or {self._held_tokens}"
                )
            if self.reads:
                return None
        self._covered = chunk.end
        return self._waiting.popleft()

    def token(self, finished: Finished, prompt_hash: str) -> None:
        """
        Raises:
            ArrivalError: the token follows another prompt, or there was one before.
        """
        if self.finished is not None:
            raise ArrivalError("a second first token was announced")
        if finished.prompt_hash != prompt_hash or finished.end != self._prompt_tokens:
            raise ArrivalError("another prompt was computed than asked for")
        if finished.token_id < 0:
            raise ArrivalError(f"token {finished.token_id} was drawn; allowed: at least 0")
        self.finished = finished

    def check_covered(self) -> None:
        """Once the first token is known and nothing is read any more.

        Raises:
            ArrivalError: a part of the prompt was never announced.
        """
        ended = self.finished is not None and not (self._waiting or self.reads)
        if ended and self._covered != self._prompt_tokens:
            raise ArrivalError(
                f"{self._covered} of {self._prompt_tokens} tokens of the prompt were announced"
            )

    def _check(self, chunk: Chunk, memory: PeerMemory) -> None:
        size, start, end = self._page_size, chunk.start, chunk.end
        if not self._held_tokens <= start < end <= self._prompt_tokens or start % size:
            raise ArrivalError(f"tokens {start} to {end} are no chunk of the prompt")
        if end % size and end != self._prompt_tokens:
            raise ArrivalError(f"a chunk ends at token {end}, inside of a page")
        if len(chunk.page_ids) != pages_for(end, size) - start // size:
            raise ArrivalError(f"{len(chunk.page_ids)} pages cannot hold tokens {start} to {end}")
        if not all(0 <= page < memory.pages for page in chunk.page_ids):
            raise ArrivalError(f"a page is not of the engine's pool of {memory.pages}")
