"""The version of this package, which pyproject.toml reads from here, and how its commands show it.

Each command is both a console script and a module for `python -m`; both call the same `main`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

__version__ = "1.0.0rc1"


def program_name(script: str, module: str) -> str:
    """Return the name under which the command was called: the console script or `python -m`."""
    return script if Path(sys.argv[0]).stem == script else f"python -m {module}"


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the option --version, which prints the version and exits."""
    parser.add_argument("--version", action="version", version=f"spark-kafka-sink {__version__}")
