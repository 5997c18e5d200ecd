"""The source of a fetch, made once from the settings of the command line.

Reads the file of a token or of variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sluice_fetch.errors import AccessDeniedError, InvalidConfigError, TokenMissingError

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*")
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
SOURCES: Final = "hf://org/name, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"
NEWEST: Final = "main"
"""The revision of a bucket that means what is there now."""
MAX_PLACE: Final = 200
"""Characters of bucket and prefix: they name a folder."""
_PLACE: Final = re.compile(r"([a-z0-9][-._a-z0-9]{1,62})((?:/[-._=A-Za-z0-9]+)*)/?")
_ENTRY: Final = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")
_UNSET: Final = frozenset({"", "0", "false"})


@dataclass(frozen=True)
class Provider:
    """A kind of store: whose variables are read, and which of them are credentials."""

    prefix: str
    endpoint: str
    """Variable of another endpoint."""
    credentials: tuple[tuple[str, ...], ...]
    """All variables of one of these have to be set: else obstore would ask the node for its own
    role. Empty: asking the node is how pods get an identity."""


_AWS: Final = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    ("AWS_SKIP_SIGNATURE",),
)
_AZURE: Final = (
    ("AZURE_STORAGE_ACCOUNT_KEY",),
    ("AZURE_STORAGE_SAS_KEY",),
    ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"),
    ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"),
    ("AZURE_SKIP_SIGNATURE",),
)
PROVIDERS: Final = {
    "s3": Provider("AWS_", "AWS_ENDPOINT_URL", _AWS),
    "gs": Provider("GOOGLE_", "GOOGLE_BASE_URL", ()),
    "az": Provider("AZURE_", "AZURE_ENDPOINT", _AZURE),
}


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


@dataclass(frozen=True)
class BucketSettings:
    """A prefix of a bucket at a revision, and what a client of it is told."""

    uri: str
    """URI as it was given, for messages."""
    scheme: str
    """A key of `PROVIDERS`."""
    bucket: str
    prefix: str
    """Prefix without slashes at its ends; empty: the whole bucket."""
    revision: str
    """`NEWEST`, or the commit that was resolved."""
    variables: Mapping[str, str] = field(repr=False)
    """Variables that go before those in the environment."""
    allow_http: bool = False

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(filter(None, (self.bucket, self.prefix)))}"


def bucket_settings(
    uri: str,
    revision: str,
    endpoint: str | None,
    secret: Path | None,
    environment: Mapping[str, str],
) -> BucketSettings:
    """The bucket that these settings name; `secret`: a file of variables, one NAME=value a line.

    Raises:
        InvalidConfigError: names the setting, its value and what is allowed.
        TokenMissingError: the file is not there yet.
        AccessDeniedError: there are no credentials.
    """
    scheme, _, place = uri.partition("://")
    provider = PROVIDERS[scheme]
    match = _PLACE.fullmatch(place)
    if match is None or {".", ".."} & set(place.split("/")) or len(place) > MAX_PLACE:
        of = "container" if scheme == "az" else "bucket"
        allowed = f"{scheme}://{of}/prefix, of {MAX_PLACE} characters at most"
        raise InvalidConfigError(f"--uri: {uri!r} is not allowed; allowed: {allowed}")
    if revision != NEWEST and not COMMIT.fullmatch(revision):
        allowed = f"{NEWEST}, or the commit that was resolved"
        raise InvalidConfigError(f"--revision: {revision!r} is not allowed; allowed: {allowed}")
    variables = {provider.endpoint: endpoint.rstrip("/")} if endpoint else {}
    if secret is not None:
        variables |= _variables(secret, scheme)
    every = {**environment, **variables}
    _check_access(uri, provider, every)
    endpoints = (value for name, value in every.items() if name.startswith(provider.endpoint))
    allow_http = any(value.startswith("http://") for value in endpoints)
    prefix = match[2].strip("/")
    return BucketSettings(uri, scheme, match[1], prefix, revision, variables, allow_http)


def _check_access(uri: str, provider: Provider, variables: Mapping[str, str]) -> None:
    """Refuses variables that lack credentials, or the account of Azure."""
    values_set = {name for name, value in variables.items() if value.lower() not in _UNSET}
    if provider.credentials and not any(
        values_set.issuperset(names) for names in provider.credentials
    ):
        allowed = "; or ".join(", ".join(names) for names in provider.credentials)
        raise AccessDeniedError(f"{uri}: there are no credentials; allowed: {allowed}")
    if provider is PROVIDERS["az"] and not variables.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise InvalidConfigError(f"{uri}: AZURE_STORAGE_ACCOUNT_NAME is not set")


def _variables(file: Path, scheme: str) -> dict[str, str]:
    """The lines of a file; or a service account's key of Google, which is JSON."""
    text = _read_secret(file)
    if scheme == "gs" and text.startswith("{"):
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": text}
    prefix = PROVIDERS[scheme].prefix
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = _ENTRY.fullmatch(line.strip())
        if entry and entry[1].startswith(prefix):
            variables[entry[1]] = entry[2].strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            name = entry[1] if entry else "the text"  # the value may be a secret
            raise InvalidConfigError(
                f"--token-file: line {number} of {file}: {name} is not allowed; "
                f"allowed: {prefix}…=value"
            )
    return variables


def _token(file: Path) -> str:
    token = _read_secret(file)
    if not token.isascii() or not token.isprintable() or not token:
        raise InvalidConfigError(f"--token-file: {file} holds no token; allowed: one line of ASCII")
    return token


def _read_secret(file: Path) -> str:
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
