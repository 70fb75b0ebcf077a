"""Runs streams in processes of their own that are killed, until everything is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.kill_plan import VARIABLE, KillPlan
from tests.support.process_leash import ProcessLeash
from tests.support.streams import Checkpoint, NumberedFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 400


class MortalQuery:
    """A stream of numbered files, what is planned against it, and its starts so far."""

    def __init__(self, directory: Path, options: Mapping[str, str]) -> None:
        """Start nothing; `options` are the sink's."""
        self.files = NumberedFiles(directory)
        self.checkpoint = Checkpoint(directory)
        self.kills = KillPlan(directory / "kills")
        self.starts = 0
        self._directory = directory
        self._options = dict(options)

    def run_to_end(self, **spark: Any) -> None:
        """Run until all is written; whoever dies by SIGKILL is started again."""
        given = {
            "input": str(self.files.directory),
            "checkpoint": str(self.checkpoint.path),
            "options": self._options,
            "spark": spark,
        }
        while True:
            kills_left = len(self.kills.left)
            code, output = self._run(json.dumps(given))
            self.starts += 1
            if code == 0:
                return
            if code != -signal.SIGKILL or len(self.kills.left) == kills_left:
                raise AssertionError(f"the query ended with {code}:\n{output[-8000:]}")

    def _run(self, argument: str) -> tuple[int, str]:
        environment = {
            **os.environ,
            VARIABLE: str(self._directory / "kills"),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        log = self._directory / "query.log"
        with log.open("w") as output:
            process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [sys.executable, "-m", "tests.support.killed_query", argument],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                # So that all of its processes can be killed, and none of ours.
                start_new_session=True,
            )
            leash = ProcessLeash()
            leash.hold(process.pid, self._directory / "warehouse")
            try:
                code = process.wait(PATIENCE_SECONDS)
            finally:
                leash.close()
        return code, log.read_text(errors="replace")
