"""Scenarios of writes to missing topics, on a cluster that creates topics on request.

They run against the embedded broker and against Kafka.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError
from spark_kafka_sink.spark.sink.partition_writer import start_producer, write_rows
from tests.support.network.leaps import MILLISECONDS, is_missing, leap_once
from tests.support.platforms.fake_frame import FakeFrame
from tests.support.spark.task_producers import ProducerOfTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer

VALUE = StructType([StructField("value", StringType())])
#: max.block.ms limits checks and writes; this is long enough for a busy machine.
SETTINGS = {"kafka.max.block.ms": "60000"}


def impatient_producers(config: ProducerConfig, topic: str) -> ProducerOfTask:
    """Return producers for which max.block.ms passes once they know that a topic is missing."""

    def start(config: ProducerConfig) -> KafkaProducer:
        producer = start_producer(config)
        leap_once(producer, lambda: is_missing(producer, topic))
        return producer

    return ProducerOfTask(replace(config, max_block_ms=MILLISECONDS), start)


class MissingTopics:
    """The scenarios, on one cluster; `create_topic` creates a topic by name."""

    def __init__(self, bootstrap_servers: str, create_topic: Callable[[str], object]) -> None:
        """Store the cluster's address."""
        self._servers = bootstrap_servers
        self._create_topic = create_topic

    def _options(self, **options: Any) -> dict[str, Any]:
        return {"kafka.bootstrap.servers": self._servers, **SETTINGS, **options}

    def _exists(self, topic: str) -> bool:
        admin = AdminClient({"bootstrap.servers": self._servers})
        return topic in admin.list_topics(timeout=60).topics

    def _write(self, *topics: str, **options: Any) -> int:
        """Write rows as a task does, each to one of these topics."""
        config = SinkOptions.from_mapping(self._options(**options)).producer
        batch = pa.RecordBatch.from_pydict({"value": len(topics) * [b"v"], "topic": list(topics)})
        return write_rows([batch], producers=ProducerOfTask(config), topic=None, config=config).rows

    def _write_to_missing(self, *topics: str) -> None:
        """Write such rows, the last one to a missing topic for which the task gives up waiting."""
        config = SinkOptions.from_mapping(self._options()).producer
        batch = pa.RecordBatch.from_pydict({"value": len(topics) * [b"v"], "topic": list(topics)})
        producers = impatient_producers(config, topics[-1])
        write_rows([batch], producers=producers, topic=None, config=config)

    def check_misspelled_name_is_rejected(self) -> None:
        """Check that validation and write create no topic, and that errors name the similar one."""
        topic = f"events-{uuid.uuid4().hex}"
        self._create_topic(topic)
        mistyped = topic[1:]
        options = self._options(topic=mistyped)
        sink = KafkaSink(CaseInsensitiveDict(options))
        for act in (
            lambda: KafkaSink.check(FakeFrame(schema=VALUE), options),
            lambda: sink.writer(VALUE, overwrite=False),
        ):
            with pytest.raises(BrokerError) as caught:
                act()
            message = str(caught.value)
            assert f"topic {mistyped!r} does not exist in the cluster at {self._servers}" in message
            assert repr(topic) in message
            assert "set autoCreateTopics=true" in message
        assert not self._exists(mistyped)

    def check_dry_run_creates_nothing(self) -> None:
        """Check that validation passes if a write would create the topic, but creates nothing."""
        topic = f"new-{uuid.uuid4().hex}"
        options = self._options(topic=topic, autoCreateTopics="true")
        checked = KafkaSink.check(FakeFrame(schema=VALUE), options)
        assert checked.partitions is None
        assert not self._exists(topic)
        KafkaSink(CaseInsensitiveDict(options)).writer(VALUE, overwrite=False)
        assert self._exists(topic)

    def check_misspelled_name_is_reported_with_its_row(self) -> None:
        """Check that the error names the row and the similar topic."""
        topic = f"events-{uuid.uuid4().hex}"
        self._create_topic(topic)
        with pytest.raises(KafkaTimeoutError) as caught:
            self._write_to_missing(topic, topic, topic[1:], topic[1:])
        message = str(caught.value)
        assert message.startswith(f"row 2, topic {topic[1:]!r}: ")
        assert message.endswith(f"; similar names: {topic!r}")

    def check_topic_of_row_is_created_only_with_option(self) -> None:
        """Check that a task follows the option autoCreateTopics for the topic column too."""
        topic = f"column-{uuid.uuid4().hex}"
        with pytest.raises(KafkaTimeoutError, match="autoCreateTopics=true lets the brokers"):
            self._write_to_missing(topic)
        assert not self._exists(topic)
        assert 1 == self._write(topic, autoCreateTopics="true")
        assert self._exists(topic)
