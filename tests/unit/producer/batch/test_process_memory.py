"""How a producer affects the size of its process, measured from outside.

The tests make ten million sends that fail or time out. Sends to a closed producer, which need no
broker and behave the same each time, are a fifth of that.
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
from spark_kafka_sink.model import TopicPartition
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
SECONDS = 240
MEGA = 1_000_000
FAILING_SENDS = 10_000_000
#: A leak grows the process in every round of sends. Not so a heap that was once more fragmented.
LEAKED_BYTES_PER_SEND = 2

WIDE_PARTITIONS = 10_000
WIDE_ROWS = 400_000
WIDE_BUFFER_MEMORY = 16 * MEGA
#: Memory that ten thousand partitions take beside their records: in metadata, in open batches, and
#: in requests that have a batch for each of them. Runs took 31 to 60 MB, by how many batches wait.
WIDE_ALLOWANCE = 80 * MEGA


@pytest.mark.parametrize(
    ("how", "fault", "share"),
    [
        (failing_sends.REFUSED, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), 1),
        (failing_sends.TIMED_OUT, NeverAnswer(), 1),
        (failing_sends.CLOSED, None, 5),
    ],
)
def test_ten_million_failed_sends_leak_no_memory(how, fault, share):
    """Sends that fail, whether refused, timed out, or after close, leave nothing in memory."""
    with DevBroker(topics={failing_sends.TOPIC: 2}) as broker:
        if fault is not None:
            broker.on(ApiKey.PRODUCE, fault)
        report = _run(failing_sends, how, broker.bootstrap_servers, FAILING_SENDS // share)
    assert report["failed"] == report["asked"] > 0
    sizes = report["sizes"]
    least_growth = min(after - before for before, after in pairwise(sizes))
    assert least_growth < LEAKED_BYTES_PER_SEND * FAILING_SENDS // share // failing_sends.ROUNDS


@pytest.mark.parametrize("how", [wide_topic_writer.SEND, wide_topic_writer.APPEND])
def test_buffer_memory_holds_with_ten_thousand_partitions(how):
    """Rows of several times the buffer reach all partitions, and the memory stays bounded."""
    row_bytes = len(wide_topic_writer.VALUE)
    assert WIDE_ROWS * row_bytes > WIDE_BUFFER_MEMORY + WIDE_ALLOWANCE
    with DevBroker(topics={"wide": WIDE_PARTITIONS}) as broker:
        report = _run(
            wide_topic_writer, how, broker.bootstrap_servers, "wide", WIDE_ROWS, WIDE_BUFFER_MEMORY
        )
        arrived = broker.call(_end_offsets)
    assert WIDE_ROWS == sum(arrived) == report["acknowledged"]
    assert min(arrived) > 0
    assert report["peak"] - report["before"] < WIDE_BUFFER_MEMORY + WIDE_ALLOWANCE


def _end_offsets(broker: Broker) -> list[int]:
    return [
        broker.cluster.partition(TopicPartition("wide", number)).log.log_end_offset
        for number in range(WIDE_PARTITIONS)
    ]


def _run(module, *arguments: object) -> dict[str, Any]:
    """Run a module in a process of its own, and return the results that it prints."""
    command = [sys.executable, "-m", module.__name__, *map(str, arguments)]
    done = subprocess.run(  # noqa: S603  # our own program
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert 0 == done.returncode, done.stderr[-4000:]
    return json.loads(done.stdout)
