"""The version of all of Sluice. Images have no distribution metadata to read it from."""

from typing import Final

VERSION: Final = "0.1.0"
