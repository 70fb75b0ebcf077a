"""Requests to a broker that has no socket, encoded to the bytes that a socket would carry."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.base.authorizer import ANONYMOUS
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.protocol.registry import RequestHeader, decode_response, encode_request

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.schema import ApiMessage

#: The time of requests, in seconds since 1970.
NOW = 1_700_000_000.0


def broker_with(
    topics: dict[str, int] | None = None,
    *,
    configs: dict[str, str] | None = None,
    **settings: Any,
) -> Broker:
    """Create a broker with these topics; `configs` apply to all of them and have Kafka's names."""
    broker = Broker(settings=BrokerSettings(**settings))
    broker.advertise("127.0.0.1", 9092)
    for name, partitions in (topics or {}).items():
        broker.cluster.create_topic(
            name, partitions=partitions, config=TopicConfig().with_values(configs or {})
        )
    return broker


def ask(
    broker: Broker,
    request: ApiMessage,
    version: int | None = None,
    *,
    now: float = NOW,
    arrived: float | None = None,
    kept: object = None,
    principal: str = ANONYMOUS,
    client_host: str = "127.0.0.1",
) -> Any:
    """Send a request, by default in its highest version, and return the response.

    Returns None if the request has no response, and Delayed if the broker defers it.
    """
    if version is None:
        version = request.highest_version
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=17,
        client_id="test",
    )
    frame = bytearray(b"".join(encode_request(header, request))[4:])
    received_header, received = broker.decode_request(memoryview(frame))
    outcome = broker.handle(
        received_header,
        received,
        now,
        arrived=arrived,
        kept=kept,
        principal=principal,
        client_host=client_host,
    )
    if outcome is None or isinstance(outcome, Delayed):
        return outcome
    stream = b"".join(broker.encode_response(received_header, outcome))
    (size,) = struct.unpack_from(">i", stream)
    if size != len(stream) - 4:
        raise ValueError(f"a frame says {size} bytes and has {len(stream) - 4}")
    correlation_id, response = decode_response(request.api_key, version, stream[4:])
    if correlation_id != header.correlation_id:
        raise ValueError(f"answer to {correlation_id}")
    return response
