"""Partitioners with an unsupported signature are refused when the producer is created."""

from __future__ import annotations

from functools import wraps

import pytest

from spark_kafka_sink.config.plugin_reference import PARTITIONERS
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.records.partitioner import (
    FunctionPartitioner,
    TopicPartitions,
    resolve_partitioner,
)


class _Rows:
    def partition_rows(self, topic, rows):
        raise NotImplementedError


class _JavaStyle:
    def partition(self, topic, key, cluster):
        raise NotImplementedError


def _by_key(key):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("plug_in", "name", "own", "needed"),
    [
        (_Rows, "partition_rows of", "(topic, rows)", "(topic, columns, rows)"),
        (
            _JavaStyle,
            "partition of",
            "(topic, key, cluster)",
            "(topic, key, key_bytes, value, value_bytes, cluster)",
        ),
        (_by_key, "", "(key)", "(topic, key, value, partition_count, available)"),
    ],
    ids=["rows", "as Java's", "function"],
)
def test_a_partitioner_with_the_wrong_signature_is_rejected_at_the_start(
    plug_in, name, own, needed
):
    """The error names the partitioner, its parameters, and the arguments that it would get."""
    with pytest.raises(ConfigError) as raised:
        resolve_partitioner(PARTITIONERS.read(plug_in))
    shown = f"{name} {plug_in.__module__}.{plug_in.__qualname__}".lstrip()
    expected = (
        f"partitioner.class: {shown} takes {own}, but is called with {needed}: "
        "give it these parameters, in this order"
    )
    assert expected == str(raised.value)


def test_the_signature_of_a_decorated_partitioner_is_that_of_its_wrapper():
    """The wrapper is called, so the signature of the wrapped function does not matter."""

    @wraps(_by_key)
    def wrapper(topic, key, *rest):
        return 0

    made = resolve_partitioner(PARTITIONERS.read(wrapper))
    assert isinstance(made, FunctionPartitioner)
    assert 0 == made.partition(TopicPartitions("t", 1, [0]), None, b"v")


def test_a_partitioner_without_a_signature_is_accepted():
    """A function without a signature, such as some written in C, is accepted."""
    assert isinstance(resolve_partitioner(PARTITIONERS.read(max)), FunctionPartitioner)
