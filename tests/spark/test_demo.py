"""The demo with fewer rows, and the examples that start Spark."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.testing import DevBroker

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an example to completion, with these environment variables in addition."""
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_finds_every_row_and_exits(monkeypatch):
    """The demo reports that all rows are there, and exits with code 0."""
    # With Spark's own home, as users have it.
    monkeypatch.delenv("SPARK_HOME", raising=False)
    done = run("demo.py", "--rows", "5000", "--partitions", "3", "--acts", "1")

    assert 0 == done.returncode, done.stderr
    assert "found 5,000 of 5,000 rows; the report says 5,000" in done.stdout
    assert "partition 2: " in done.stdout


@pytest.mark.spark
@pytest.mark.slow
def test_the_metrics_of_a_stream_can_be_scraped():
    """The example prints its own metrics, with numbers of the sink, and logs events as JSON."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = run("stream_metrics.py", METRICS_PORT=str(port))

    assert 0 == done.returncode, done.stdout + done.stderr
    assert 'spark_kafka_stream_output_rows_total{query="copy"} 1000.0\n' in done.stdout
    assert 'spark_kafka_sink_records_total{query="copy",topic="copies"} 1000.0\n' in done.stdout
    assert '{"event": "started", ' in done.stdout


@pytest.mark.spark
@pytest.mark.slow
def test_structs_are_written_and_read_as_avro():
    """The example reads what it wrote, also after a field was added."""
    done = run("typed_values.py")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "333 orders of more than 1000" in done.stdout
    assert "|   NULL| 1301|\n|    web|  699|\n" in done.stdout


@pytest.mark.spark
@pytest.mark.slow
def test_a_killed_stream_copies_each_number_once():
    """The example kills its query, restarts it, and finds each number exactly once."""
    done = run("stream_exactly_once.py")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "killed the query after 3 micro-batches\n" in done.stdout
    assert "20000 numbers were copied, 0 are missing, 0 are duplicated\n" in done.stdout


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.soak
def test_a_declarative_pipeline_copies_each_row_once(tmp_path):
    """Two runs of the pipeline copy what the topic has, the second one only what is new."""
    pipeline = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "declarative_pipeline", pipeline)
    spec = pipeline / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/copy_events", str(tmp_path / "storage")))  # noqa: S108
    command = shutil.which("spark-pipelines", path=str(Path(sys.executable).parent))
    with DevBroker(topics={"events": 2, "copy": 2}) as broker:
        for first in (0, 100):
            with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
                for number in range(first, first + 100):
                    producer.send("events", b"%d" % number)
            done = subprocess.run(  # noqa: S603 - Spark's own command
                [command or "spark-pipelines", "run"],
                cwd=pipeline,
                env={**os.environ, "BOOTSTRAP_SERVERS": broker.bootstrap_servers},
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )

            assert 0 == done.returncode, done.stdout + done.stderr
            copied = sorted(int(r.value) for part in broker.records("copy").values() for r in part)
            assert list(range(first + 100)) == copied
