"""The images of a preview: `--engine-image`, else `$SLUICE_ENGINE_IMAGE`, else the release's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.version import VERSION

from sluice_operator.service.observe import Images

DEFAULT_IMAGES: Final = Images(engine=f"sluice/engine:{VERSION}", router=f"sluice/router:{VERSION}")
_IMAGE: Final = re.compile(r"\S{1,512}")
_ALLOWED: Final = "1 to 512 characters, none of them blank"


def add_images(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `images_of` reads."""
    for name, default in (("engine", DEFAULT_IMAGES.engine), ("router", DEFAULT_IMAGES.router)):
        text = f"default: ${_variable(name)}, else {default}"
        parser.add_argument(f"--{name}-image", help=text)


def images_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Images:
    """The images that flags and environment name; an empty variable is none.

    Raises:
        ConfigError: names the flag or the variable.
    """
    return Images(
        engine=_image("engine", options.engine_image, environment) or DEFAULT_IMAGES.engine,
        router=_image("router", options.router_image, environment) or DEFAULT_IMAGES.router,
    )


def _image(name: str, given: str | None, environment: Mapping[str, str]) -> str | None:
    where, image = f"--{name}-image", given
    if given is None:
        where, image = _variable(name), environment.get(_variable(name)) or None
    if image is not None and not _IMAGE.fullmatch(image):
        raise ConfigError(where, image, _ALLOWED)
    return image


def _variable(name: str) -> str:
    return f"SLUICE_{name.upper()}_IMAGE"
