"""Writes of rows that a broker refuses, on the embedded broker and on Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from tests.support.spark.task_producers import ProducerOfTask

if TYPE_CHECKING:
    from collections.abc import Sequence


def refusal_of(
    bootstrap_servers: str,
    topics: Sequence[str],
    values: Sequence[bytes] | None = None,
    *,
    rows_per_batch: int = 2,
) -> KafkaError:
    """Write a row to each of these topics, all to partition 0; return the error of the task."""
    config = ProducerConfig.from_mapping(
        {"bootstrap.servers": bootstrap_servers, "compression.type": "none"}
    )
    table = pa.table(
        {
            "value": pa.array(values or [b"v"] * len(topics), pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array([0] * len(topics), pa.int32()),
        }
    )
    with pytest.raises(KafkaError) as caught:
        write_rows(
            table.to_batches(rows_per_batch),
            producers=ProducerOfTask(config),
            topic=None,
            config=config,
        )
    return caught.value
