"""The embedded broker as a process of its own, started by its command line."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def broker_process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command with these arguments; what still runs at the end is killed.

    Without that, a test that fails would wait for a broker that never ends.
    """
    with subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "spark_kafka_sink.devbroker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The command itself must flush the line that a test waits for.
        env=os.environ | {"PYTHONUNBUFFERED": "0"} | environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
