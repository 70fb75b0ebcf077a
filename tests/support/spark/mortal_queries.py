"""Run streams and jobs in separate processes that die or stall, until all rows are written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.exactly_once.kill_plan import (
    FREEZE,
    VARIABLE,
    KillPlan,
    session_processes,
    signal_session,
)
from tests.support.kafka.process_leash import ProcessLeash
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.streams import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.spark.numbered_topic import NumberedTopic
    from tests.support.spark.streams import NumberedFiles

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 400


class MortalProcess:
    """A program with its own Spark, in its own session, that may be frozen."""

    def __init__(self, directory: Path, module: str, given: Mapping[str, Any]) -> None:
        """Start the program; its kill plan and its logs are in `directory`."""
        environment = {
            **os.environ,
            VARIABLE: str(directory / "kills"),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        logs = directory / "logs"
        logs.mkdir(exist_ok=True)
        self._log = logs / str(len(list(logs.iterdir())))
        with self._log.open("w") as output:
            self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [sys.executable, "-m", module, json.dumps(given)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A separate session, so that all of its processes can be killed without the test
                # run's.
                start_new_session=True,
            )
        self._is_closed = False
        self._leash = ProcessLeash()
        self._leash.hold(self._process.pid, directory / "warehouse")

    @property
    def output(self) -> str:
        """The program's output."""
        return self._log.read_text(errors="replace")

    @property
    def is_frozen(self) -> bool:
        """Whether the program is frozen; fails if it has ended."""
        assert self._process.poll() is None, self.output[-8000:]
        # The state follows the name, which is in parentheses.
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    @property
    def has_ended(self) -> bool:
        """Whether the program itself has ended."""
        return self._process.poll() is not None

    def python_processes(self) -> dict[str, list[int]]:
        """Return the ids of the Python processes that Spark has started, by their main module."""
        processes: dict[str, list[int]] = {}
        for process in sorted(session_processes(self._process.pid)):
            if process != self._process.pid and (module := _pyspark_module(process)):
                processes.setdefault(module, []).append(process)
        return processes

    def thaw(self) -> None:
        """Resume the program after it was frozen."""
        signal_session(self._process.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Wait until the program has ended, and kill what it left running; return its exit code."""
        try:
            return self._process.wait(PATIENCE_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """Kill all processes of the program; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            signal_session(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_SECONDS)
            self._leash.close()


def _pyspark_module(process: int) -> str:
    """Return the module of PySpark that a process runs; empty for other processes."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
    except OSError:
        return ""
    # Either directly, or the daemon that forks processes for a module.
    modules = [argument for argument in command[2:4] if argument.startswith("pyspark.")]
    return modules[-1] if command[1:2] == ["-m"] and modules else ""


class MortalQuery:
    """A stream of numbered rows, its kill plan, and the number of its starts."""

    def __init__(
        self, directory: Path, source: NumberedFiles | NumberedTopic, options: Mapping[str, str]
    ) -> None:
        """Start nothing; `options` are the sink's."""
        self.source = source
        self.checkpoint = Checkpoint(directory)
        self.kills = KillPlan(directory / "kills")
        self.starts = 0
        self._directory = directory
        self._options = dict(options)

    def start(self, **spark: Any) -> MortalProcess:
        """Start the query once, without waiting for it."""
        given = {
            "source": self.source.options,
            "checkpoint": str(self.checkpoint.path),
            "options": self._options,
            "spark": spark,
        }
        self.starts += 1
        return MortalProcess(self._directory, "tests.support.spark.killed_query", given)

    def start_until_frozen(self, place: str) -> MortalProcess:
        """Start the query, and wait until all of its processes are frozen at a place."""
        self.kills.add([place], FREEZE)
        # A frozen query sends no heartbeats, and must continue afterwards nevertheless.
        process = self.start(**{"spark.network.timeout": f"{2 * PATIENCE_SECONDS}s"})
        try:
            wait_until(
                lambda: process.is_frozen and place in self.kills.seen,
                seconds=PATIENCE_SECONDS,
                what=f"a query to be frozen {place}",
            )
        except BaseException:
            process.close()
            raise
        return process

    def run_to_end(self, **spark: Any) -> None:
        """Run the query until all rows are written; restart it whenever it dies by SIGKILL."""
        while True:
            kills_left = len(self.kills.left)
            process = self.start(**spark)
            code = process.wait()
            if code == 0:
                return
            if code != -signal.SIGKILL or len(self.kills.left) == kills_left:
                raise AssertionError(f"the query ended with {code}:\n{process.output[-8000:]}")


class MortalJob:
    """A job of numbered rows, and its kill plan; see `killed_job`."""

    def __init__(self, directory: Path, options: Mapping[str, str], **given: Any) -> None:
        """Start nothing; `options` are the sink's."""
        self.kills = KillPlan(directory / "kills")
        self._directory = directory
        self._given = {"directory": str(directory), "options": dict(options), **given}

    @property
    def numbers(self) -> list[str]:
        """The values of all rows, in order."""
        return [f"{row:010d}" for row in range(self._given["rows"])]

    @property
    def stage_retries(self) -> list[int]:
        """How often each stage was retried, in total."""
        stages: list[int] = json.loads((self._directory / "stages.json").read_text())
        return stages

    def run(self, **spark: Any) -> None:
        """Run the job to its end."""
        given = {**self._given, "spark": spark}
        process = MortalProcess(self._directory, "tests.support.spark.killed_job", given)
        code = process.wait()
        assert 0 == code, process.output[-8000:]
