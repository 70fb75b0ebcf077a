"""The effect of settings over time, with the time as an argument."""

from __future__ import annotations

import asyncio
import math

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.metrics.client_metrics import create_metrics
from spark_kafka_sink.metrics.kafka_metric import RecordingLevel
from spark_kafka_sink.metrics.sensor import Max
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ONE_TOPIC = MetadataResponse(
    brokers=(MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9),),
    topics=(
        MetadataResponseTopic(
            name="t",
            partitions=(
                MetadataResponsePartition(
                    partition_index=0, leader_id=1, replica_nodes=(), isr_nodes=()
                ),
            ),
        ),
    ),
)


def config(**settings):
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ProducerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9", **named})


@pytest.mark.parametrize(("idle", "asked_about"), [(6_000, ()), (8_000, ("t",))])
def test_an_idle_topic_expires(idle, asked_about):
    """After metadata.max.idle.ms without use, metadata of a topic is no longer requested."""

    async def topics_after_seven_seconds():
        client = NetworkClient(config(metadata_max_idle_ms=idle))
        try:
            client.metadata.add_topic("t", now=0.0)
            client.metadata.update(ONE_TOPIC, now=0.0)
            return client.metadata.question(now=7.0).topics
        finally:
            await client.close()

    assert asked_about == asyncio.run(topics_after_seven_seconds())


def _maximum(now, **settings):
    """Record 5 at time 0 and 1 at time 15; return the maximum in the windows at `now`."""
    metrics = create_metrics(config(**settings), lambda: 0.0)
    name = metrics.metric_name("highest", "group")
    sensor = metrics.sensor("sensor")
    sensor.add(name, Max())
    sensor.record(5.0, 0.0)
    sensor.record(1.0, 15.0)
    return metrics.metric(name).measure(now)


@pytest.mark.parametrize(("samples", "expected"), [(1, 1.0), (2, 5.0)])
def test_the_number_of_samples_is_configurable(samples, expected):
    """With metrics.num.samples=1, only the current window counts."""
    settings = {"metrics_num_samples": samples, "metrics_sample_window_ms": 10_000}
    assert expected == _maximum(16.0, **settings)


@pytest.mark.parametrize(("window", "expected"), [(10_000, 1.0), (100_000, 5.0)])
def test_the_window_of_samples_is_configurable(window, expected):
    """Values older than metrics.sample.window.ms times the samples do not count."""
    assert expected == _maximum(30.0, metrics_sample_window_ms=window)


@pytest.mark.parametrize(("level", "recorded"), [("INFO", False), ("DEBUG", True)])
def test_sensors_above_the_recording_level_are_not_recorded(level, recorded):
    """metrics.recording.level decides which sensors record values."""
    metrics = create_metrics(config(metrics_recording_level=level), lambda: 0.0)
    name = metrics.metric_name("highest", "group")
    sensor = metrics.sensor("sensor", level=RecordingLevel.DEBUG)
    sensor.add(name, Max())
    sensor.record(5.0, 0.0)
    assert recorded == (not math.isnan(metrics.metric(name).measure(0.0)))
