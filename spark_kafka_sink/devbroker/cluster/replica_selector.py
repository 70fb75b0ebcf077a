"""Which replica serves a consumer: the closest one, by rack (KIP-392).

The decision of Kafka's RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.devbroker.cluster.partition import Partition


def closest_follower(
    partition: Partition, rack: str, fetch_offset: int, racks: Mapping[int, str]
) -> int | None:
    """Return the follower in a consumer's rack that has its offset; None to use the leader.

    `racks` are those of the brokers by id. The leader is used if it is in the rack, if the consumer
    has none, and if no in-sync follower in the rack has the offset. Of several followers, the one
    that lags least is used, or else the one with the highest id.
    """
    if not rack or racks.get(partition.leader_id) == rack:
        return None
    followers = [
        replica
        for replica in partition.leadership.isr
        if racks.get(replica) == rack
        and partition.log.log_start_offset <= fetch_offset <= partition.end_offset(replica)
    ]
    return max(
        followers, key=lambda replica: (partition.end_offset(replica), replica), default=None
    )
