"""Fetch: reads record batches from given offsets on.

Version 5 adds the log start offset, 7 fetch sessions (KIP-227), 9 leader epochs (KIP-320), 10 zstd,
11 reading from the closest replica (KIP-392), 12 is flexible and detects diverging logs (KIP-595),
13 uses topic ids (KIP-516), 15 adds the follower's epoch (KIP-903), 16 new leaders (KIP-951), 17
the follower's directory (KIP-853).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *

#: The session epoch of a request without a fetch session.
FINAL_EPOCH = -1
MAX_INT32 = 2**31 - 1


@message
class ReplicaState:
    """The follower that fetches; -1 for a client."""

    replica_id: int = field(INT32, versions="15+", default=-1)
    replica_epoch: int = field(INT64, versions="15+", default=-1)


@message
class FetchPartition:
    """The offset to read from, and the limits, for one partition."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, versions="9+", ignorable=True, default=NO_LEADER_EPOCH)
    fetch_offset: int = field(INT64)
    last_fetched_epoch: int = field(INT32, versions="12+", default=NO_LEADER_EPOCH)
    #: A follower's log start; -1 for a client.
    log_start_offset: int = field(INT64, versions="5+", ignorable=True, default=-1)
    #: A limit for this partition; a larger first batch is returned anyway (KIP-74).
    partition_max_bytes: int = field(INT32)
    replica_directory_id: Uuid = field(
        UUID, versions="17+", tag=0, ignorable=True, default=ZERO_UUID
    )


@message
class FetchTopic:
    """The partitions of one topic, by name or (from version 13 on) by topic id."""

    topic: str = field(STRING, versions="0-12", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="13+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[FetchPartition, ...] = field(array(FetchPartition))


@message
class ForgottenTopic:
    """The partitions of one topic to remove from the fetch session."""

    topic: str = field(STRING, versions="7-12", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="13+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[int, ...] = field(array(INT32), versions="7+")


@message
class FetchRequest(ApiRequest["FetchResponse"]):
    """A request to the partitions' leader or a follower."""

    api_key = ApiKey.FETCH
    versions = VersionRange(4, 17)

    cluster_id: str | None = field(
        STRING, versions="12+", nullable="12+", tag=0, ignorable=True, default=None
    )
    replica_id: int = field(INT32, versions="0-14", default=-1)
    replica_state: ReplicaState = field(ReplicaState, versions="15+", tag=1, default=ReplicaState())
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, versions="3+", ignorable=True, default=MAX_INT32)
    #: 0: up to the high watermark. 1: up to the last stable offset.
    isolation_level: int = field(INT8, versions="4+", ignorable=True, default=0)
    session_id: int = field(INT32, versions="7+", ignorable=True, default=0)
    session_epoch: int = field(INT32, versions="7+", ignorable=True, default=FINAL_EPOCH)
    topics: tuple[FetchTopic, ...] = field(array(FetchTopic))
    forgotten_topics_data: tuple[ForgottenTopic, ...] = field(
        array(ForgottenTopic), versions="7+", default=()
    )
    rack_id: str = field(STRING, versions="11+", ignorable=True, default="")


@message
class EpochEndOffset:
    """The point at which the follower's log diverges from the leader's; -1 if it does not."""

    epoch: int = field(INT32, versions="12+", default=-1)
    end_offset: int = field(INT64, versions="12+", default=-1)


@message
class LeaderIdAndEpoch:
    """The leader of a partition as the responding broker knows it; -1 if unknown."""

    leader_id: int = field(INT32, versions="12+", default=-1)
    leader_epoch: int = field(INT32, versions="12+", default=NO_LEADER_EPOCH)


@message
class SnapshotId:
    """The snapshot to fetch instead if the log begins after the offset; -1 if it does not."""

    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)


@message
class AbortedTransaction:
    """An aborted transaction whose records in this response must be skipped."""

    producer_id: int = field(INT64, versions="4+")
    first_offset: int = field(INT64, versions="4+")


@message
class PartitionData:
    """The batches of one partition.

    The first may begin before the requested offset, and the last may be truncated.
    """

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, versions="4+", ignorable=True, default=-1)
    log_start_offset: int = field(INT64, versions="5+", ignorable=True, default=-1)
    diverging_epoch: EpochEndOffset = field(
        EpochEndOffset, versions="12+", tag=0, default=EpochEndOffset()
    )
    current_leader: LeaderIdAndEpoch = field(
        LeaderIdAndEpoch, versions="12+", tag=1, default=LeaderIdAndEpoch()
    )
    snapshot_id: SnapshotId = field(SnapshotId, versions="12+", tag=2, default=SnapshotId())
    #: None if the isolation level is 0.
    aborted_transactions: tuple[AbortedTransaction, ...] | None = field(
        array(AbortedTransaction), versions="4+", nullable="4+", ignorable=True, default=()
    )
    #: The follower to read from; -1: the leader.
    preferred_read_replica: int = field(INT32, versions="11+", default=-1)
    records: Records | None = field(RECORDS, nullable="0+")


@message
class FetchableTopicResponse:
    """The partitions of one topic, by name or (from version 13 on) by topic id."""

    topic: str = field(STRING, versions="0-12", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="13+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[PartitionData, ...] = field(array(PartitionData))


@message
class NodeEndpoint:
    """The address of a leader named in `current_leader`."""

    node_id: int = field(INT32, versions="16+")
    host: str = field(STRING, versions="16+")
    port: int = field(INT32, versions="16+")
    rack: str | None = field(STRING, versions="16+", nullable="16+", default=None)


@message
class FetchResponse(ApiResponse, request=FetchRequest):
    """A response with one result per partition; in a session, only for those that changed."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    error_code: int = field(INT16, versions="7+", ignorable=True, default=0)
    #: 0: no session.
    session_id: int = field(INT32, versions="7+", default=0)
    responses: tuple[FetchableTopicResponse, ...] = field(array(FetchableTopicResponse))
    node_endpoints: tuple[NodeEndpoint, ...] = field(
        array(NodeEndpoint), versions="16+", tag=0, default=()
    )
