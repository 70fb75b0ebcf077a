"""Fetch requests for one partition, and their responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import NO_LEADER_EPOCH, UNKNOWN_OFFSET, Node
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.fetching.range_values import SendFetch
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.fetch import FetchResponse

#: The last version that names topics; later ones use topic ids.
LAST_VERSION_WITH_NAMES: Final = 12
#: The first version with `last_fetched_epoch`.
_FIRST_VERSION_WITH_LAST_EPOCH: Final = 12
#: For a short range, which all of a micro-batch may be, a broker need not send more than this for
#: each offset, and at least as much in all: what exceeds the range is received for nothing. Should
#: records be larger, more answers are needed; one batch at least is always sent whole.
_BYTES_PER_OFFSET: Final = 1024
_LEAST_BYTES: Final = 1 << 20
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1


def fetch_request(
    topic_partition: TopicPartition,
    fetch: SendFetch,
    versions: NodeApiVersions,
    *,
    is_committed: bool,
    max_bytes: int,
    max_partition_bytes: int,
    min_bytes: int,
    max_wait_ms: int,
    rack: str,
) -> tuple[FetchRequest, int]:
    """Build a request without a fetch session; return it with the version in which to send it.

    A topic without an id is named, which later versions cannot do. Raises UnsupportedVersionError
    if the broker has no version in common with this client.
    """
    highest = FetchRequest.versions.max
    if fetch.topic_id == ZERO_UUID:
        highest = LAST_VERSION_WITH_NAMES
    version = versions.version_for(ApiKey.FETCH, highest)
    has_last_epoch = version >= _FIRST_VERSION_WITH_LAST_EPOCH
    request = FetchRequest(
        max_wait_ms=max_wait_ms if fetch.may_wait else 0,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=_READ_COMMITTED if is_committed else _READ_UNCOMMITTED,
        topics=(
            FetchTopic(
                topic=topic_partition.topic,
                topic_id=fetch.topic_id,
                partitions=(
                    FetchPartition(
                        partition=topic_partition.partition,
                        current_leader_epoch=fetch.leader_epoch,
                        fetch_offset=fetch.offset,
                        last_fetched_epoch=fetch.last_fetched_epoch
                        if has_last_epoch
                        else NO_LEADER_EPOCH,
                        partition_max_bytes=min(
                            max_partition_bytes, max(fetch.left * _BYTES_PER_OFFSET, _LEAST_BYTES)
                        ),
                    ),
                ),
            ),
        ),
        rack_id=rack if fetch.may_redirect else "",
    )
    return request, version


def partition_data(
    response: FetchResponse, topic_partition: TopicPartition, what: str
) -> PartitionData | None:
    """Return the part of the response about the only partition; None if there is none.

    An error of the whole response is returned as that of the partition. Raises DecodeError if the
    response is about another partition.
    """
    if response.error_code:
        return PartitionData(
            partition_index=topic_partition.partition,
            error_code=response.error_code,
            high_watermark=UNKNOWN_OFFSET,
            records=None,
        )
    found = [data for topic in response.responses for data in topic.partitions]
    if not found:
        return None
    if len(found) > 1 or found[0].partition_index != topic_partition.partition:
        raise DecodeError(f"{what}: the response is about other partitions")
    return found[0]


def named_leader(data: PartitionData) -> tuple[int, int] | None:
    """Return the id and the epoch of the leader that an error response names (KIP-951), if any."""
    leader = data.current_leader
    return (leader.leader_id, leader.leader_epoch) if leader.leader_id >= 0 else None


def named_nodes(response: FetchResponse) -> list[Node]:
    """Return the nodes whose addresses a response contains (KIP-951)."""
    return [Node(each.node_id, each.host, each.port) for each in response.node_endpoints]
