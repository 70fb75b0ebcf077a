"""A server of Spark Connect: a JVM with a local Spark, and no Python but that of its workers."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.documentation import ROOT
from tests.support.java.quick_spark import spark_home
from tests.support.kafka.kafka_process import free_ports
from tests.support.kafka.process_leash import ProcessLeash
from tests.support.kafka.real_kafka import wait_until

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SECONDS = 120


class ConnectServer:
    """The server on a loopback port; `close` ends it."""

    def __init__(self) -> None:
        """Start the server, and wait until it listens."""
        [self._port] = free_ports(1)
        self.url = f"sc://127.0.0.1:{self._port}"
        self._directory = Path(tempfile.mkdtemp(prefix="spark-connect-"))
        self._log = self._directory / "server.log"
        self._leash = ProcessLeash()
        self._process = self._start()
        try:
            self._leash.hold(self._process.pid, self._directory)
            wait_until(self._listens, seconds=_SECONDS, what="a server of Spark Connect")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server and remove its files."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS)
        self._leash.close()

    def _start(self) -> subprocess.Popen[bytes]:
        home = spark_home()
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        with self._log.open("w") as log:
            return subprocess.Popen(  # noqa: S603 -- PySpark's own script
                [
                    *(str(home / "bin" / "spark-submit"), "--class", _SERVER),
                    *("--master", "local[2]", "--driver-memory", "1g"),
                    *(f"--conf={name}={value}" for name, value in settings.items()),
                    "spark-internal",
                ],
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": sys.executable,
                },
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            return True
        return False
