"""Check an installed package in an environment without PySpark: run by `make dist`.

    python -I scripts/check_install.py

`KafkaProducer`, `read_arrow`, the embedded broker and the console scripts must work there, and what
needs PySpark must say so in one sentence.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path

import spark_kafka_sink
from spark_kafka_sink import KafkaProducer, read_arrow
from spark_kafka_sink.testing import DevBroker

NAME = "spark-kafka-sink"
SENTENCE = "the Spark data source needs PySpark 4.0 or newer, which is not installed: pip install "


def check(*, holds: bool, what: str) -> None:
    """Print what was checked; end the process if it does not hold."""
    if not holds:
        sys.exit(f"install: not so: {what}")
    print(f"install: {what}")


def error_of(statement: str) -> list[str]:
    """Return what a statement that fails prints."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", statement], capture_output=True, text=True, check=False
    )
    return done.stderr.splitlines() if done.returncode == 1 else []


def sends_and_reads() -> bool:
    """Return whether records arrive that are written to an embedded broker and read from it."""
    with DevBroker(topics={"events": 1}) as broker:
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            producer.send("events", b"a value", key=b"a key").result(timeout=30)
        with read_arrow(broker.bootstrap_servers, "events") as reader:
            rows = reader.read_all().to_pylist()
    return [(row["key"], row["value"]) for row in rows] == [(b"a key", b"a value")]


def main() -> None:
    """Make all checks."""
    check(holds=find_spec("pyspark") is None, what="there is no PySpark here")
    place = Path(spark_kafka_sink.__file__)
    check(
        holds=place.is_relative_to(sys.prefix), what="the package is imported from the environment"
    )
    check(holds=sends_and_reads(), what="KafkaProducer, read_arrow and DevBroker work")
    for name in ("from spark_kafka_sink import KafkaSink", "import pyspark_pykafka"):
        said = error_of(name)
        check(
            holds=bool(said) and SENTENCE in said[-1], what=f"`{name}` says that PySpark is missing"
        )
    check(
        holds={"KafkaProducer", "read_arrow"} <= set(dir(spark_kafka_sink))
        and all(hasattr(spark_kafka_sink, name) for name in dir(spark_kafka_sink)),
        what="dir() lists the names that can be imported",
    )
    line = f"{NAME} {version(NAME)}\n"
    scripts = [
        script for script in entry_points(group="console_scripts") if script.dist.name == NAME
    ]
    for script in scripts:
        command = [Path(sys.prefix) / "bin" / script.name, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        check(holds=done.stdout == line, what=f"{script.name} --version prints {line.strip()}")
    check(holds=len(scripts) > 0, what="the console scripts are installed")


if __name__ == "__main__":
    main()
