"""The image that the others start from: the Dockerfiles' own default where an image registry can be
reached, else a small Debian with Python, made here from Debian's packages.

Knows nothing of what is built on it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.progress import Step
from e2e.images.buildah import ISOLATED, Buildah

PUBLIC_BASE = "docker.io/library/python:3.11-slim"
REGISTRY = "https://registry-1.docker.io/v2/"
REGISTRY_SECONDS = 5.0
DEBIAN_MIRROR = "http://deb.debian.org/debian"
# The release whose python3 is the one of the lock file and of PUBLIC_BASE.
DEBIAN_RELEASE = "bookworm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# $1: mirror, $2: release, $3: an empty folder. What a container never reads is dropped at the end.
DEBOOTSTRAP = """
debootstrap --variant=minbase --include=python3,ca-certificates "$2" "$3/root" "$1" >&2
cd "$3/root"
rm -rf dev/* usr/share/doc usr/share/man usr/share/info usr/share/locale usr/share/lintian
rm -rf var/lib/apt/lists/* var/cache/* var/log/* usr/lib/*/gconv
mkdir var/cache/apt
find . -xdev -perm /6000 -type f -exec chmod a-s {} +
tar --create --file="$3/root.tar" .
"""
# $1: the folder, $2: PATH, $3: the name.
IMPORT = """
container=$($buildah from scratch)
$buildah add --quiet "$container" "$1/root.tar" / >&2
$buildah config --env PATH="$2" "$container"
$buildah commit --quiet --rm "$container" "$3"
"""


def base_image(buildah: Buildah, scratch: Path, environment: Mapping[str, str] = os.environ) -> str:
    """The name of a base image; SLUICE_BASE_IMAGE names one, else it is found or made."""
    if named := environment.get("SLUICE_BASE_IMAGE"):
        return named
    own = f"localhost/sluice-base:{recipe_hash()}"
    if buildah.has(own):
        return own
    if registry_answers():
        return PUBLIC_BASE
    mirror = environment.get("SLUICE_DEBIAN_MIRROR") or DEBIAN_MIRROR
    with Step("Making the base image from Debian packages (no image registry can be reached)"):
        make_base(buildah, scratch, mirror, own)
    return own


def recipe_hash() -> str:
    """Changes with how the Debian image is made, not with what the mirror has today."""
    recipe = "\0".join([DEBIAN_RELEASE, DEBOOTSTRAP, IMPORT, PATH])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def make_base(buildah: Buildah, scratch: Path, mirror: str, name: str) -> None:
    """Takes about a minute; `scratch` is used and removed."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    words = ["sh", "-euc", DEBOOTSTRAP, "sh", mirror, DEBIAN_RELEASE, str(scratch)]
    run([*ISOLATED, *words], log=scratch.with_suffix(".log"))
    command = buildah.script(IMPORT, scratch, PATH, name)
    run(command.argv, env=command.environment)
    shutil.rmtree(scratch)


def registry_answers(url: str = REGISTRY) -> bool:
    """Whether the public registry speaks to us; 401 is how it greets who has not logged in."""
    try:
        urllib.request.urlopen(url, timeout=REGISTRY_SECONDS).close()
    except urllib.error.HTTPError as refusal:
        return refusal.code == 401
    except OSError:
        return False
    return True
