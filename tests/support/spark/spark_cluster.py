"""A Spark cluster on this machine: a master, and workers on different loopback addresses.

Spark runs no speculative copy of a task on the same host, and none at all in local mode. So each
worker has its own host name, 127.0.0.2 and so on. Each provides an application with one executor, a
JVM that can be killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.exactly_once.kill_plan import VARIABLE
from tests.support.java.quick_java import QUICK_OPTIONS
from tests.support.java.quick_spark import spark_home
from tests.support.kafka.kafka_process import free_ports
from tests.support.kafka.process_leash import ProcessLeash
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[3]
_READY_SECONDS = 120
_WORKERS = 2
_DEPLOY = "org.apache.spark.deploy"


class SparkCluster:
    """The cluster; a context manager that ends all of its processes on exit."""

    def __init__(self) -> None:
        """Start the master and the workers, and wait until all workers register."""
        [port] = free_ports(1)
        self.master = f"spark://127.0.0.1:{port}"
        self._directory = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._leash = ProcessLeash()
        try:
            self._start(
                "master",
                f"{_DEPLOY}.master.Master",
                *("--host", "127.0.0.1", "--port", str(port)),
            )
            for number in range(_WORKERS):
                self._start(
                    f"worker-{number}",
                    f"{_DEPLOY}.worker.Worker",
                    *("--host", f"127.0.0.{2 + number}", "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(self._directory / f"work-{number}"), self.master),
                )
            wait_until(self._has_workers, seconds=_READY_SECONDS, what="workers of Spark")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the cluster itself."""
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all processes."""
        self.close()

    def settings(self, directory: Path) -> dict[str, str]:
        """Return the settings of an application whose kill plan is in a directory."""
        return {
            "spark.master": self.master,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(QUICK_OPTIONS),
            f"spark.executorEnv.{VARIABLE}": str(directory / "kills"),
            # No task starts before both hosts are available.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_READY_SECONDS}s",
        }

    def close(self) -> None:
        """End all processes and remove their files."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_READY_SECONDS)
        self._leash.close()

    def _start(self, name: str, *command: str) -> None:
        home = spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            # The REST server would open another port, and no test submits applications to it.
            "SPARK_DAEMON_JAVA_OPTS": " ".join(
                [*QUICK_OPTIONS, "-Dspark.master.rest.enabled=false"]
            ),
            # Executors inherit these variables from their worker, and Python from the executors.
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._directory / f"{name}.log").open("w") as log:
            process = subprocess.Popen(  # noqa: S603 -- PySpark's own script
                [str(home / "bin" / "spark-class"), *command, "--webui-port", "0"],
                env=environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        self._leash.hold(process.pid, self._directory)

    def _has_workers(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, self._output()
        # Of the workers' own logs: a worker that gets no answer in time registers again.
        return self._output().count("Successfully registered with master") >= _WORKERS

    def _output(self) -> str:
        return "\n".join(
            log.read_text(errors="replace") for log in sorted(self._directory.glob("*.log"))
        )
