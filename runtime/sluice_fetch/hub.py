"""The hub's protocol: a revision's commit and files, and a file's bytes from an offset on.

Each function makes one request, without retries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.hf_api import RepoSibling

from sluice_fetch.cache import verified
from sluice_fetch.errors import FetchError, HubUnreachableError, from_hub
from sluice_fetch.settings import COMMIT, Source
from sluice_fetch.snapshot import HubFile, Selection

TIMEOUT_SECONDS: Final = 20.0
_HASH: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# With telemetry the library requests a list from huggingface.co, whichever hub is configured.
constants.HF_HUB_DISABLE_TELEMETRY = True


@dataclass(frozen=True)
class Hub:
    """The `Origin` of a source."""

    source: Source

    @property
    def repository(self) -> str:
        return self.source.repository

    @property
    def revision(self) -> str:
        return self.source.revision

    def __str__(self) -> str:
        return str(self.source)

    def look_up(self, _: Selection) -> tuple[str, tuple[HubFile, ...]]:
        return look_up(self.source)

    def content(
        self, commit: str, file: HubFile, offset: int
    ) -> AbstractContextManager[HubContent]:
        return content(self.source, commit, file, offset)

    def flaw(self, path: Path, file: HubFile) -> str:
        return "" if verified(path, file) else f"its content is not that of hash {file.etag}"


def look_up(source: Source) -> tuple[str, tuple[HubFile, ...]]:
    """The revision's current commit and all its files, by one request.

    Raises:
        FetchError: see `from_hub`.
    """
    api = HfApi(endpoint=source.endpoint, token=source.token or False)
    with _named(str(source)):
        info = api.model_info(
            source.repository,
            revision=source.revision,
            files_metadata=True,
            timeout=TIMEOUT_SECONDS,
        )
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise HubUnreachableError(f"{source}: no answer of a hub: commit {info.sha!r}")
    return info.sha, tuple(_file(sibling) for sibling in info.siblings or ())


@contextmanager
def content(source: Source, commit: str, file: HubFile, offset: int) -> Iterator[HubContent]:
    """The bytes of a file from `offset` on, or all if the server does not support ranges.

    Uses plain HTTP, not Xet, because only then can another process resume a file. On redirects the
    client does not send the token to other hosts.
    """
    url = hf_hub_url(source.repository, file.name, revision=commit, endpoint=source.endpoint)
    headers = {"Accept-Encoding": "identity"}  # sizes and offsets are those of the file
    if source.token:
        headers["Authorization"] = f"Bearer {source.token}"
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with (
        _named(f"{file.name} of {source}"),
        get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response,
    ):
        hf_raise_for_status(response)
        yield HubContent(response)


class HubContent:
    """Body of a response to `content`."""

    def __init__(self, response: httpx2.Response) -> None:
        self.continues = response.status_code == 206
        self._response = response

    def chunks(self) -> Iterator[bytes]:
        """Chunks as they arrive: a fixed chunk size would lose the start of a chunk when the
        connection breaks."""
        return self._response.iter_raw()


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except FetchError:
        raise
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        # The last three come from answers that are not a hub's, such as a proxy's sign-in page.
        raise from_hub(error, what) from None


def _file(sibling: RepoSibling) -> HubFile:
    etag = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    size = sibling.lfs.size if sibling.lfs else sibling.size
    if etag is None or size is None or not _HASH.fullmatch(etag):
        raise HubUnreachableError(
            f"{sibling.rfilename}: the hub gives hash {etag!r} and size {size}; allowed: both"
        )
    return HubFile(sibling.rfilename, size, etag)
