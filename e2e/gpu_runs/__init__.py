"""Cases that need a GPU. They start with a plain Python, which finds the kernels' modules here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "kernels"))
