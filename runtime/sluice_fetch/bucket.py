"""A model under a prefix of a bucket: `s3://`, `gs://` and `az://`, by obstore. One request each,
without a retry.

A bucket has no commits. One is made here: a digest of the names, sizes and ETags of the objects
that an engine reads. Every later request has the ETag of the list, so no file is put together from
two versions of an object. An ETag is no hash of the content: instead, a file of weights is compared
with the sizes in its own header.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store
from sluice_contract.config.weight_files import LFS_POINTER, pointer_text

from sluice_fetch.errors import (
    AccessDeniedError,
    FetchError,
    FileCorruptError,
    HubUnreachableError,
    InvalidConfigError,
    ObjectChangedError,
    RateLimitedError,
    RepositoryNotFoundError,
)
from sluice_fetch.settings import NEWEST, BucketSettings
from sluice_fetch.snapshot import HubFile, Selection

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

TIMEOUT_SECONDS: Final = 20
CHUNK_BYTES: Final = 256 << 10
MAX_HEADER_BYTES: Final = 100 << 20
"""Most bytes of a safetensors file's header, by its format."""
Store = S3Store | GCSStore | AzureStore
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})


@dataclass(frozen=True)
class Bucket:
    """The `Origin` that a prefix of a bucket is, or of a container of Azure."""

    settings: BucketSettings
    store: Store = field(repr=False)

    @property
    def repository(self) -> str:
        """Name of the bucket's part of the cache."""
        at = self.settings
        return "/".join(filter(None, (at.scheme, at.bucket, at.prefix)))

    @property
    def revision(self) -> str:
        """`NEWEST`, or the commit that was resolved."""
        return self.settings.revision

    def __str__(self) -> str:
        return str(self.settings)

    def look_up(self, selection: Selection) -> tuple[str, tuple[HubFile, ...]]:
        """Objects directly under the prefix now; the commit identifies those that `selection`
        reads.

        Raises:
            ObjectChangedError: `revision` is another commit. And see `_named`.
        """
        with _named(str(self)):
            prefix = self.settings.prefix or None
            listed = obstore.list_with_delimiter(self.store, prefix)["objects"]
        if not listed:
            raise RepositoryNotFoundError(f"{self}: there is no object under this prefix")
        named = ((meta["path"].rpartition("/")[2], meta) for meta in listed)
        files = tuple(
            self._file(name, meta["size"], meta["e_tag"])
            for name, meta in sorted(named, key=lambda item: item[0])
        )
        read = (file.etag for file in files if selection.reads(file.name))
        commit = _digest(str(self), *read)[:40]
        if self.revision not in (NEWEST, commit):
            raise ObjectChangedError(
                f"{self}: its objects are commit {commit} now, and no longer {self.revision}"
            )
        return commit, files

    @contextmanager
    def content(self, _: str, file: HubFile, offset: int) -> Iterator[BucketContent]:
        """The bytes of a file from `offset` on, of the version that was listed."""
        what = f"{file.name} of {self}"
        options: GetOptions = {"if_match": file.version}
        if offset:
            options["range"] = {"offset": offset}
        with _named(what):
            path = "/".join(filter(None, (self.settings.prefix, file.name)))
            answer = obstore.get(self.store, path, options=options)
            if (answer.meta["e_tag"], answer.meta["size"]) != (file.version, file.size_bytes):
                raise PreconditionError  # from a store that ignores If-Match
        yield BucketContent(what, bool(offset), answer)

    def flaw(self, path: Path, file: HubFile) -> str:
        """Fault of a downloaded file; empty: none that can be known."""
        with path.open("rb") as stored:
            if stored.read(len(LFS_POINTER)) == LFS_POINTER:
                return pointer_text(file.size_bytes)
        if not file.name.endswith(".safetensors"):
            return ""
        size = _size_by_header(path)
        if size == file.size_bytes:
            return ""
        says = f"says {size} bytes" if size else "is none of safetensors"
        return f"its header {says}, the object has {file.size_bytes}: it was cut when it was stored"

    def _file(self, name: str, size_bytes: int, etag: str | None) -> HubFile:
        if not etag:
            raise FileCorruptError(f"{name} of {self}: the list gives no ETag; allowed: one")
        return HubFile(name, size_bytes, _digest(str(self), name, str(size_bytes), etag), etag)


class BucketContent:
    """The body of an answer."""

    def __init__(self, what: str, continues: bool, answer: GetResult) -> None:
        self.continues = continues
        self._what = what
        self._answer = answer

    def chunks(self) -> Iterator[bytes]:
        """Chunks of at least `CHUNK_BYTES`, but for the last."""
        chunks = self._answer.stream(min_chunk_size=CHUNK_BYTES)
        while True:
            with _named(self._what):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield bytes(chunk)


def bucket(settings: BucketSettings, certificates: str | None = None) -> Bucket:
    """The bucket of these settings; `certificates` are trusted in addition to the public
    authorities.

    Raises:
        InvalidConfigError: a variable of the settings is none, or a key cannot be read.
    """
    client: dict[str, object] = {
        "allow_http": settings.allow_http,
        "connect_timeout": f"{TIMEOUT_SECONDS}s",
        "read_timeout": f"{TIMEOUT_SECONDS}s",
        "timeout": "1d",  # of the whole answer
    }
    if certificates is not None:
        client["root_certificate"] = certificates
    kind = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[settings.scheme]
    try:
        store = kind(
            settings.bucket,
            config={key.lower(): value for key, value in settings.variables.items()},
            client_options=client,
            retry_config={"max_retries": 0},
        )
    except BaseError as error:
        raise InvalidConfigError(f"{settings.uri}: {_text(error)}") from None
    return Bucket(settings, store)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _size_by_header(path: Path) -> int | None:
    """The size of a safetensors file as its header has it; None where there is no such header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            return None
        try:
            header = json.loads(file.read(length))
            ends = (entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__")
            return 8 + length + max(map(int, ends), default=0)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise from_store(error, what) from None


def from_store(error: Exception, what: str) -> FetchError:
    """The `FetchError` for an `error` of obstore. An address in its text may hold a signature, so
    only status and code are repeated."""
    if isinstance(error, PreconditionError):
        return ObjectChangedError(f"{what}: it was changed after it was listed")
    if isinstance(error, FileNotFoundError):
        return ObjectChangedError(f"{what}: it was removed after it was listed")
    text = _text(error)
    status, code = (_first(pattern, text) for pattern in (_STATUS, _CODE))
    if "incorrectly configured region" in text or code == "AuthorizationHeaderMalformed":
        return InvalidConfigError(f"{what}: it is in another region; AWS_REGION names it")
    if not status:
        return HubUnreachableError(f"{what}: no connection to the bucket, or it broke off")
    answer = f"{what}: the bucket answers {' '.join(filter(None, (status, code)))}"
    if code in _EXPIRED:
        return AccessDeniedError(f"{answer}: the credential has expired")
    if status in ("401", "403"):
        return AccessDeniedError(f"{answer}; it needs credentials with access")
    if status == "404":
        return RepositoryNotFoundError(f"{answer}: there is no such bucket")
    if status == "429" or code == "SlowDown":
        return RateLimitedError(f"{answer}, too many requests")
    if status.startswith("4"):
        return InvalidConfigError(answer)
    return HubUnreachableError(answer)


def _text(error: Exception) -> str:
    """Text of the error without obstore's description of its own values."""
    return str(error).partition("\n\nDebug source")[0]


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
