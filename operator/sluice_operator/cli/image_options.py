"""The images of a preview: `--engine-image`, else `$SLUICE_ENGINE_IMAGE`, else the release's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.version import VERSION

from sluice_operator.service.observe import Images

DEFAULT_IMAGES: Final = Images(
    engine=f"sluice/engine:{VERSION}",
    router=f"sluice/router:{VERSION}",
    gpu_engine=f"sluice/engine-cuda:{VERSION}",
    fetch=f"sluice/fetch:{VERSION}",
)
_NAMES: Final = ("engine", "gpu_engine", "router", "fetch")
_IMAGE: Final = re.compile(r"\S{1,512}")
_ALLOWED: Final = "1 to 512 characters, none of them blank"


def add_images(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `images_of` reads."""
    for name in _NAMES:
        text = f"default: ${_variable(name)}, else {getattr(DEFAULT_IMAGES, name)}"
        parser.add_argument(_flag(name), help=text)


def images_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Images:
    """The images that flags and environment name; an empty variable is none.

    Raises:
        ConfigError: names the flag or the variable.
    """
    images = {name: _image(name, getattr(options, f"{name}_image"), environment) for name in _NAMES}
    return replace(DEFAULT_IMAGES, **{name: image for name, image in images.items() if image})


def _image(name: str, chosen: str | None, environment: Mapping[str, str]) -> str | None:
    where, image = _flag(name), chosen
    if chosen is None:
        where, image = _variable(name), environment.get(_variable(name)) or None
    if image is not None and not _IMAGE.fullmatch(image):
        raise ConfigError(where, image, _ALLOWED)
    return image


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}-image"


def _variable(name: str) -> str:
    return f"SLUICE_{name.upper()}_IMAGE"
