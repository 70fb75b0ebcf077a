"""The settings of a broker, and the connections that it closes because of them.

Settings are named as Kafka's broker settings where it has them. Kafka waits forever for the end of
a request or of an authentication; this broker disconnects a client that does not finish in time,
unless it is the broker that keeps the client waiting. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypedDict

from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections a broker accepts, and the timeouts of each, in milliseconds.

    Raises ConfigError for a limit below 1.

    >>> limits = ConnectionLimits(max_connections=10, connections_max_idle_ms=60_000)
    >>> with DevBroker(connection_limits=limits) as broker:
    ...     broker.topic_names
    []
    """

    #: Maximum number of connections (max.connections; unlimited by default in Kafka). Any more are
    #: closed at once.
    max_connections: int = 1000
    #: Maximum number of connections from one address (max.connections.per.ip).
    max_connections_per_ip: int = 2**31 - 1
    #: How long a connection may be idle (connections.max.idle.ms).
    connections_max_idle_ms: int = 600_000
    #: How long a request may take to arrive, from its first byte to its last.
    request_receive_timeout_ms: int = 60_000
    #: How long a TLS handshake may take, and separately a whole SASL authentication.
    authentication_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) < 1:
                raise ConfigError(f"{limit.name} must be at least 1")


class Patience:
    """When and why to close a connection; times are in seconds, of any monotonic clock."""

    def __init__(self, limits: ConnectionLimits, now: float, *, authenticates: bool) -> None:
        self._limits = limits
        self._active_at = now
        self._request_began_at: float | None = None
        self._authentication_began_at = now if authenticates else None

    def active(self, now: float) -> None:
        """Record that bytes were received or sent, or that a request is still being handled."""
        self._active_at = now

    def request_began(self, now: float) -> None:
        """Record that part of a request has arrived; only the first part starts its timeout."""
        if self._request_began_at is None:
            self._request_began_at = now

    def request_ended(self) -> None:
        """Record that no request is incomplete, or that reading is paused."""
        self._request_began_at = None

    def authenticated(self) -> None:
        """Record that the client has authenticated."""
        self._authentication_began_at = None

    def ends(self) -> tuple[float, str]:
        """Return when to close the connection if nothing happens until then, and why."""
        limits = self._limits
        ends = (
            (
                self._active_at,
                limits.connections_max_idle_ms,
                "it was idle for longer than connections_max_idle_ms",
            ),
            (
                self._request_began_at,
                limits.request_receive_timeout_ms,
                "a request was not complete within request_receive_timeout_ms",
            ),
            (
                self._authentication_began_at,
                limits.authentication_timeout_ms,
                "the client did not authenticate within authentication_timeout_ms",
            ),
        )
        return min((at + ms / 1000, reason) for at, ms, reason in ends if at is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of a broker and its cluster.

    Times are in milliseconds, sizes in bytes. `DevBroker` also accepts each field as a keyword.
    Raises ConfigError if a time of the replication is below 10 ms.

    >>> settings = BrokerSettings(num_partitions=6, auto_create_topics=False)
    >>> with DevBroker(settings=settings) as broker:
    ...     broker.topic_names
    []
    """

    #: The id of the first broker (node.id); the others have the next ones.
    node_id: int = 1
    #: Whether to create a topic when a client requests its metadata (auto.create.topics.enable).
    auto_create_topics: bool = True
    #: Partitions of a topic created without a number of partitions (num.partitions).
    num_partitions: int = 1
    #: Replicas of a partition created without a replication factor (default.replication.factor):
    #: 1 as in Kafka, also with several brokers; `DevBroker` without `settings` uses up to three.
    default_replication_factor: int = 1
    #: Default settings of topics.
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    #: Maximum bytes of records in one Fetch response (fetch.max.bytes).
    fetch_max_bytes: int = 55 * 1024 * 1024
    #: Maximum number of fetch sessions (max.incremental.fetch.session.cache.slots).
    max_incremental_fetch_session_cache_slots: int = 1000
    #: About how many bytes of memory all fetch sessions of a broker may take, at 500 bytes a
    #: partition. Kafka counts only sessions.
    fetch_session_cache_max_bytes: int = 64 * 1024 * 1024
    #: How long a broker of several may be silent until the controller takes it for dead, and others
    #: lead in its place (broker.session.timeout.ms).
    broker_session_timeout_ms: int = 9_000
    #: How often it sends a heartbeat (broker.heartbeat.interval.ms); with a shorter session, three
    #: times in each.
    broker_heartbeat_interval_ms: int = 2_000
    #: How long a controller may be without a majority of the brokers until another takes over
    #: (controller.quorum.fetch.timeout.ms).
    controller_quorum_fetch_timeout_ms: int = 2_000
    #: How long a follower may stay behind its leader until it is not in sync any more
    #: (replica.lag.time.max.ms).
    replica_lag_time_max_ms: int = 30_000
    #: The rack of each broker (broker.rack), by ascending id; empty if the brokers have none.
    racks: tuple[str, ...] = ()
    #: Whether a leader sends consumers to a follower in their rack (RackAwareReplicaSelector as
    #: replica.selector.class).
    rack_aware_replica_selector: bool = False
    #: How many connections are allowed, and their timeouts.
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: Maximum size of a request in bytes (socket.request.max.bytes).
    socket_request_max_bytes: int = 100 * 1024 * 1024
    #: Maximum size in bytes of a request other than Produce: only Produce carries records. Kafka,
    #: which has many threads, has neither this limit nor the next.
    control_request_max_bytes: int = 4 * 1024 * 1024
    #: How many bytes of responses may wait for their clients to read them, over all connections of
    #: the cluster, before requests with large responses have to wait. Kafka has no such limit.
    queued_max_response_bytes: int = 256 * 1024 * 1024
    #: Maximum number of array elements in one request, summed over all its arrays: enough for every
    #: partition of the largest topic.
    request_max_elements: int = 20_000
    #: Maximum number of partitions that one request may create, or delete unless all belong to one
    #: topic. Kafka allows 10,000 (QuorumController.MAX_RECORDS_PER_USER_OP); here each one that has
    #: files blocks all other requests for about half a millisecond.
    request_max_partitions: int = 2_000
    #: Maximum decompressed size in bytes of the record batches of one request, where handling it
    #: requires decoded records.
    request_max_decompressed_bytes: int = 128 * 1024 * 1024
    #: Maximum number of records and record headers to decode for one request.
    request_max_decoded_elements: int = 100_000
    #: Maximum decompressed size in bytes of the record batches of one Produce request, which takes
    #: time to validate, but no memory. Kafka, which has many threads, has no such limit.
    request_max_validated_bytes: int = 1024 * 1024 * 1024

    #: Whether clients may do only what ACLs allow (authorizer.class.name: StandardAuthorizer).
    authorizer: bool = False
    #: The principals that may do everything, such as `User:admin` (super.users).
    super_users: tuple[str, ...] = ()
    #: Whether everyone may use a resource to which no ACL applies
    #: (allow.everyone.if.no.acl.found).
    allow_everyone_if_no_acl_found: bool = False

    #: Level of the feature transaction.version: 0, or 2 for the second part of KIP-890 (Kafka 4.x).
    transaction_version: int = 2
    #: Maximum transaction timeout that a producer may request (transaction.max.timeout.ms).
    transaction_max_timeout_ms: int = 900_000
    #: Interval between checks for transactions that exceeded their timeout
    #: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
    transaction_abort_interval_ms: int = 10_000
    #: How long an id without a transaction is kept (transactional.id.expiration.ms).
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    #: How long a partition keeps the state of an idle producer (producer.id.expiration.ms).
    producer_id_expiration_ms: int = 24 * 3_600_000
    #: Interval between checks for expired producers
    #: (producer.id.expiration.check.interval.ms).
    producer_id_expiration_check_interval_ms: int = 600_000
    #: How long writing the markers of a transaction takes. In Kafka it takes a moment, in which the
    #: response is CONCURRENT_TRANSACTIONS; here it takes no time unless a test sets one.
    transaction_marker_delay_ms: int = 0

    #: How long a new group waits for more members (group.initial.rebalance.delay.ms; Kafka's
    #: default is 3 s, too long for tests).
    group_initial_rebalance_delay_ms: int = 0
    #: Minimum session timeout of a member (group.min.session.timeout.ms).
    group_min_session_timeout_ms: int = 6_000
    #: Maximum session timeout of a member (group.max.session.timeout.ms).
    group_max_session_timeout_ms: int = 1_800_000
    #: Maximum number of members of a group (group.max.size).
    group_max_size: int = 2**31 - 1
    #: Interval between the heartbeats of a member of the new consumer protocol
    #: (group.consumer.heartbeat.interval.ms; Kafka's default, and minimum, is 5 s: too long for
    #: tests, since a member learns of a rebalance with its next heartbeat).
    group_consumer_heartbeat_interval_ms: int = 500
    #: Session timeout of such a member (group.consumer.session.timeout.ms).
    group_consumer_session_timeout_ms: int = 45_000
    #: Minimum interval between two target assignments of such a group
    #: (group.consumer.assignment.interval.ms; Kafka's default is 1 s).
    group_consumer_assignment_interval_ms: int = 0
    #: How long a subscription by regular expression is not resolved again unless there are new
    #: topics (group.consumer.regex.refresh.interval.ms).
    group_consumer_regex_refresh_interval_ms: int = 600_000
    #: Maximum number of members of such a group (group.consumer.max.size).
    group_consumer_max_size: int = 2**31 - 1
    #: Maximum characters of metadata stored with an offset (offset.metadata.max.bytes).
    offset_metadata_max_bytes: int = 4096

    def __post_init__(self) -> None:
        for name in _TIMES_OF_REPLICATION:
            if getattr(self, name) < _SHORTEST_MS:
                raise ConfigError(f"{name} must be at least {_SHORTEST_MS}")


#: With shorter ones, brokers would do nothing but keep their sessions alive.
_SHORTEST_MS = 10
_TIMES_OF_REPLICATION = (
    "broker_session_timeout_ms",
    "broker_heartbeat_interval_ms",
    "controller_quorum_fetch_timeout_ms",
    "replica_lag_time_max_ms",
)


class SettingChanges(TypedDict, total=False):
    """The fields of `BrokerSettings` as keyword arguments, for type checkers."""

    node_id: int
    auto_create_topics: bool
    num_partitions: int
    default_replication_factor: int
    topic_defaults: TopicConfig
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    fetch_session_cache_max_bytes: int
    broker_session_timeout_ms: int
    broker_heartbeat_interval_ms: int
    controller_quorum_fetch_timeout_ms: int
    replica_lag_time_max_ms: int
    racks: tuple[str, ...]
    rack_aware_replica_selector: bool
    connection_limits: ConnectionLimits
    socket_request_max_bytes: int
    control_request_max_bytes: int
    queued_max_response_bytes: int
    request_max_elements: int
    request_max_partitions: int
    request_max_decompressed_bytes: int
    request_max_decoded_elements: int
    request_max_validated_bytes: int
    authorizer: bool
    super_users: tuple[str, ...]
    allow_everyone_if_no_acl_found: bool
    transaction_version: int
    transaction_max_timeout_ms: int
    transaction_abort_interval_ms: int
    transactional_id_expiration_ms: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    transaction_marker_delay_ms: int
    group_initial_rebalance_delay_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_session_timeout_ms: int
    group_consumer_assignment_interval_ms: int
    group_consumer_regex_refresh_interval_ms: int
    group_consumer_max_size: int
    offset_metadata_max_bytes: int
