"""How a producer affects the size of its process, measured from outside.

`make soak` makes ten million sends that fail or time out, and writes to ten thousand partitions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer import failing_sends, wide_topic_writer

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.broker import Broker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="Linux tells the size of a process"
    ),
]

ROOT = Path(__file__).parents[4]
SECONDS = 600
MEGA = 1_000_000

#: Memory that a producer takes beside its records, and what each partition adds: in metadata, in
#: its open batch, and in requests that have a batch for each partition. Runs took 17 MB beside
#: 2,000 partitions and 31 to 60 beside 10,000, by how many batches wait.
FIXED_BYTES = 16 * MEGA
BYTES_PER_PARTITION = 6_400


# A leak grows the process in every round of sends, by a Python object for each of them or for one
# in a few. Not so a heap that was once more fragmented, which matters less after more sends.
@pytest.mark.parametrize(
    ("sends", "leaked_bytes_per_send"),
    [(1_000_000, 8), pytest.param(10_000_000, 2, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize(
    ("how", "fault"),
    [
        (failing_sends.REFUSED, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)),
        (failing_sends.TIMED_OUT, NeverAnswer()),
        (failing_sends.CLOSED, None),
    ],
)
def test_failed_sends_leak_no_memory(how, fault, sends, leaked_bytes_per_send):
    """Sends that fail, whether refused, timed out, or after close, leave nothing in memory."""
    with DevBroker(topics={failing_sends.TOPIC: 2}) as broker:
        if fault is not None:
            broker.on(ApiKey.PRODUCE, fault)
        report = _run(failing_sends, how, broker.bootstrap_servers, sends)
    assert report["failed"] == report["asked"] > 0
    sizes = report["sizes"]
    least_growth = min(after - before for before, after in pairwise(sizes))
    assert least_growth < leaked_bytes_per_send * sends // failing_sends.ROUNDS


@pytest.mark.parametrize("partitions", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", [wide_topic_writer.SEND, wide_topic_writer.APPEND])
def test_buffer_memory_holds_with_many_partitions(how, partitions):
    """Rows of several times the buffer reach all partitions, and the memory stays bounded."""
    buffer_memory = 16 * MEGA
    most = buffer_memory + FIXED_BYTES + partitions * BYTES_PER_PARTITION
    rows = 2 * most // len(wide_topic_writer.VALUE)
    with DevBroker(topics={"wide": partitions}) as broker:
        report = _run(wide_topic_writer, how, broker.bootstrap_servers, "wide", rows, buffer_memory)
        arrived = broker.call(_end_offsets)
    assert (rows, partitions) == (sum(arrived), len(arrived))
    assert rows == report["acknowledged"]
    assert min(arrived) > 0
    assert report["peak"] - report["before"] < most


def _end_offsets(broker: Broker) -> list[int]:
    topic = broker.cluster.topic("wide")
    assert topic is not None
    return [partition.log.log_end_offset for partition in topic.partitions]


def _run(module, *arguments: object) -> dict[str, Any]:
    """Run a module in a process of its own, and return the results that it prints."""
    command = [sys.executable, "-m", module.__name__, *map(str, arguments)]
    done = subprocess.run(  # noqa: S603  # our own program
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert 0 == done.returncode, done.stderr[-4000:]
    return json.loads(done.stdout)
