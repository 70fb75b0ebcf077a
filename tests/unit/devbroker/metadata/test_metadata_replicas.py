"""What the controller knows of the brokers that fetch its metadata log."""

from __future__ import annotations

from spark_kafka_sink.devbroker.metadata.metadata_replicas import MetadataReplicas


def described(replicas, *, end_offset=10, now=9.0):
    """Return the offset of each voter, when it has fetched and when it had everything, in ms."""
    partition = replicas.describe([1, 2, 3], 1, 7, end_offset, now)
    assert (1, 7, end_offset) == (
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
    )
    return {
        voter.replica_id: (
            voter.log_end_offset,
            voter.last_fetch_timestamp,
            voter.last_caught_up_timestamp,
        )
        for voter in partition.current_voters
    }


def test_nothing_is_known_of_a_broker_that_has_not_fetched():
    """Only the leader itself has all records, now; it counts the others as reached at first."""
    replicas = MetadataReplicas([1, 2, 3], 5.0)
    unknown = (-1, -1, -1)
    assert {1: (10, 9_000, 9_000), 2: unknown, 3: unknown} == described(replicas)
    assert replicas.fetched_since(2, 4.0)
    assert not replicas.fetched_since(2, 5.0)
    assert not replicas.fetched_since(4, 0.0)


def test_a_broker_was_in_sync_when_it_had_what_there_was():
    """One that is behind by what was appended since its last fetch was in sync at that time."""
    replicas = MetadataReplicas()
    replicas.fetched(2, 5, 8, 1.0)
    assert (5, 1_000, -1) == described(replicas)[2]
    replicas.fetched(2, 8, 10, 2.0)
    assert (8, 2_000, 1_000) == described(replicas)[2]
    replicas.fetched(2, 9, 12, 3.0)
    assert (9, 3_000, 1_000) == described(replicas)[2]
    replicas.fetched(2, 12, 12, 4.0)
    assert (12, 4_000, 4_000) == described(replicas, end_offset=12)[2]
