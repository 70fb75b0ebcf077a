"""What the commands of this package have in common: the name they were called by, and --version.

Each command is a console script and a module for `python -m`, with one `main`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.version import __version__

if TYPE_CHECKING:
    import argparse


def program_name(script: str, module: str) -> str:
    """Return the name by which the command was called: its console script, or `python -m`."""
    return script if Path(sys.argv[0]).stem == script else f"python -m {module}"


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the option that prints the version, and ends."""
    parser.add_argument("--version", action="version", version=f"spark-kafka-sink {__version__}")
