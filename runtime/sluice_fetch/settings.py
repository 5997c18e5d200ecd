"""The source of a fetch, made once from the settings of the command line.

Reads the token's file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from sluice_fetch.errors import InvalidConfigError, TokenMissingError

_REPOSITORY = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
SOURCES = "hf://org/name, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"


@dataclass(frozen=True)
class Source:
    """A repository of a hub at a revision."""

    endpoint: str
    """https://host, without a slash at the end."""
    repository: str
    """org/name."""
    revision: str
    """Branch, tag or commit."""
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.repository} at {self.revision} of {self.endpoint}"


def source(uri: str, revision: str, endpoint: str, token_file: Path | None) -> Source:
    """The source that these settings name.

    Raises:
        InvalidConfigError: names the setting, its value and what is allowed.
        TokenMissingError: the token's file does not exist yet.
    """
    scheme, _, repository = uri.partition("://")
    if scheme != "hf" or not _REPOSITORY.fullmatch(repository):
        raise InvalidConfigError(f"--uri: {uri!r} is not allowed; allowed: {SOURCES}")
    if not re.fullmatch(r"https?://[^/\s]+(/[^\s?#]*)?", endpoint):
        raise InvalidConfigError(
            f"--endpoint: {endpoint!r} is not allowed; allowed: http(s)://host[:port][/path]"
        )
    if not re.fullmatch(r"\w[-./\w]{0,127}", revision) or ".." in revision:
        raise InvalidConfigError(
            f"--revision: {revision!r} is not allowed; allowed: a branch, tag or commit"
        )
    token = _token(token_file) if token_file else None
    return Source(endpoint.rstrip("/"), repository, revision, token)


def _token(file: Path) -> str:
    token = read_secret(file)
    if not token.isascii() or not token.isprintable() or not token:
        raise InvalidConfigError(f"--token-file: {file} holds no token; allowed: one line of ASCII")
    return token


def read_secret(file: Path) -> str:
    """The text of the file in `--token-file`.

    Raises:
        TokenMissingError: the file does not exist yet.
        InvalidConfigError: the file cannot be read.
    """
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        raise TokenMissingError(f"--token-file: there is no {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"--token-file: cannot read {file}: {error}") from None
