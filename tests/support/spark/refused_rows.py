"""Writes of rows that a broker refuses, on the embedded broker and on Kafka."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import ErrorLimit, OnErrorOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from tests.support.spark.task_producers import ProducerOfTask, TransactionOfTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.spark.sink.partition_writer import Written


def refusal_of(
    bootstrap_servers: str,
    topics: Sequence[str],
    values: Sequence[bytes] | None = None,
    *,
    rows_per_batch: int = 2,
) -> KafkaError:
    """Write a row to each of these topics, all to partition 0; return the error of the task."""
    config = _config(bootstrap_servers)
    table = _table(topics, values or [b"v"] * len(topics))
    with pytest.raises(KafkaError) as caught:
        write_rows(
            table.to_batches(rows_per_batch),
            producers=ProducerOfTask(config),
            topic=None,
            config=config,
        )
    return caught.value


def set_aside(
    bootstrap_servers: str,
    topics: Sequence[str],
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    *,
    dlq_topic: str,
    transactional_id: str | None,
) -> Written:
    """Write rows as `refusal_of` does, with dead letters for bad ones; return what was written."""
    config = replace(_config(bootstrap_servers), transactional_id=transactional_id)
    table = _table(topics, values).append_column("key", pa.array(keys, pa.binary()))
    options = OnErrorOptions(ErrorLimit(None), dlq_topic)
    kind = ProducerOfTask if transactional_id is None else TransactionOfTask
    return write_rows(
        table.to_batches(1_000),
        producers=kind(config),
        topic=None,
        config=config,
        bad_rows=BadRowWriter(options, RowOrigin(0), config, None),
    )


def _config(bootstrap_servers: str) -> ProducerConfig:
    return ProducerConfig.from_mapping(
        {"bootstrap.servers": bootstrap_servers, "compression.type": "none"}
    )


def _table(topics: Sequence[str], values: Sequence[bytes]) -> pa.Table:
    return pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array([0] * len(topics), pa.int32()),
        }
    )
