"""A script for `ScriptedBroker` that answers ApiVersions and Metadata requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.registry import decode_request, encode_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.model import Node

#: Returns the response to a request, or None to close the connection.
Answer = "Callable[[MetadataRequest], MetadataResponse | None]"
VERSIONS = ApiVersionsResponse(
    api_keys=(
        ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=4),
        ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=13),
    )
)


class MetadataScript:
    """A script that answers one request after another and records the requested topics."""

    def __init__(self, answer: Callable[[MetadataRequest], MetadataResponse | None]) -> None:
        """Store `answer`, which is called on the broker's thread."""
        self._answer = answer
        self.asked: list[tuple[str | None, ...]] = []
        self.connections = 0

    def __call__(self, frame: bytes) -> bytes | None:
        """Return the response to a request's frame."""
        header, request = decode_request(frame)
        if header.request_api_key == ApiKey.API_VERSIONS:
            self.connections += 1
            response = VERSIONS
        else:
            self.asked.append(tuple(topic.name for topic in request.topics))
            response = self._answer(request)
        if response is None:
            return None
        return b"".join(
            encode_response(header.correlation_id, response, header.request_api_version)
        )


def described(node: Node, topics: dict[str, int], *, throttle_time_ms: int = 0) -> MetadataResponse:
    """Describe topics led by a node, by name: the number of partitions, or a negated error code."""
    return MetadataResponse(
        throttle_time_ms=throttle_time_ms,
        brokers=(MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port),),
        topics=tuple(
            MetadataResponseTopic(
                name=name,
                error_code=max(-count, 0),
                partitions=tuple(
                    MetadataResponsePartition(
                        partition_index=index,
                        leader_id=node.node_id,
                        leader_epoch=1,
                        replica_nodes=(),
                        isr_nodes=(),
                    )
                    for index in range(count)
                ),
            )
            for name, count in topics.items()
        ),
    )
