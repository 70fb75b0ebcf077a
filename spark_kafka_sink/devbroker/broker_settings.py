"""What can be set about a broker; names are Kafka's broker settings where it has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_kafka_sink.devbroker.connection_limits import ConnectionLimits
from spark_kafka_sink.devbroker.topic_config import TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of a broker, and of its cluster."""

    #: A topic that a client asks metadata for is created (auto.create.topics.enable).
    auto_create_topics: bool = True
    #: Partitions of a topic for which nobody said how many (num.partitions).
    num_partitions: int = 1
    #: Brokers that keep a partition for which nobody said how many (default.replication.factor).
    default_replication_factor: int = 1
    #: Settings of topics for which nobody said otherwise.
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    #: Most bytes of records in one Fetch answer (fetch.max.bytes).
    fetch_max_bytes: int = 55 * 1024 * 1024
    #: How many connections there may be, and for how long.
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: Largest request in bytes (socket.request.max.bytes).
    socket_request_max_bytes: int = 100 * 1024 * 1024
    #: Largest request in bytes that is not Produce: none but those carry records. Kafka, which has
    #: many threads, has no such limit, nor the next.
    control_request_max_bytes: int = 4 * 1024 * 1024
    #: Most elements of arrays in one request, those of all its arrays together: enough for every
    #: partition of the largest topic.
    request_max_elements: int = 20_000
    #: Most partitions that one request may create, or delete unless they are of one topic. Kafka
    #: takes 10,000 (QuorumController.MAX_RECORDS_PER_USER_OP); here all others wait for about half
    #: a millisecond for each that has files.
    request_max_partitions: int = 2_000
    #: Most bytes that the record batches of one request may have when decompressed, where the
    #: answer needs decoded records.
    request_max_decompressed_bytes: int = 128 * 1024 * 1024
    #: Most records and headers of records that one request may have decoded.
    request_max_decoded_elements: int = 100_000
    #: Decode every record that is appended, and refuse what cannot be decoded.
    validate_records: bool = False

    #: The finalized feature transaction.version: 2 is KIP-890's second part (Kafka 4.x), 0 none.
    transaction_version: int = 2
    #: Longest transaction timeout that a producer may ask for (transaction.max.timeout.ms).
    transaction_max_timeout_ms: int = 900_000
    #: How often transactions are looked at that took too long
    #: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
    transaction_abort_interval_ms: int = 10_000
    #: How long an id without a transaction is remembered (transactional.id.expiration.ms).
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    #: How long a partition remembers a producer that writes nothing (producer.id.expiration.ms).
    producer_id_expiration_ms: int = 24 * 3_600_000
    #: How often producers are looked for that have expired
    #: (producer.id.expiration.check.interval.ms).
    producer_id_expiration_check_interval_ms: int = 600_000
    #: How long the markers of a transaction take to be written. Kafka's take a moment, in which it
    #: answers CONCURRENT_TRANSACTIONS; here they take none unless a test wants to see that.
    transaction_marker_delay_ms: int = 0

    #: How long a new group waits for more members (group.initial.rebalance.delay.ms; Kafka's
    #: default is 3 s, which is long for a test).
    group_initial_rebalance_delay_ms: int = 0
    #: Shortest session timeout of a member (group.min.session.timeout.ms).
    group_min_session_timeout_ms: int = 6_000
    #: Longest session timeout of a member (group.max.session.timeout.ms).
    group_max_session_timeout_ms: int = 1_800_000
    #: Most members of a group (group.max.size).
    group_max_size: int = 2**31 - 1
    #: Most characters that may be kept beside an offset (offset.metadata.max.bytes).
    offset_metadata_max_bytes: int = 4096
