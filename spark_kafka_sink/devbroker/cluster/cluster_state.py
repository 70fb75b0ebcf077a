"""A cluster as one of its brokers sees it: brokers, topics, coordinators, and what is stored once.

Handlers call it and turn RefusedError into responses; it does not deal with requests. There are two
kinds: `StandaloneCluster` is that of one broker, which changes it itself, and `BrokerView` that of
several brokers, whose controller changes it, as one of them knows it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.topic_changes import Topics
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from spark_kafka_sink.devbroker.base.authorizer import Acl
    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.client_quotas import Quotas
    from spark_kafka_sink.devbroker.base.scram_credential import ScramCredential
    from spark_kafka_sink.devbroker.base.timers import Timers
    from spark_kafka_sink.devbroker.cluster.cluster_store import ClusterStore
    from spark_kafka_sink.devbroker.cluster.partition import Partition, Topic
    from spark_kafka_sink.devbroker.groups.group_coordinator import GroupCoordinator
    from spark_kafka_sink.devbroker.log.log_manager import LogManager
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.transactions.transaction_coordinator import (
        TransactionCoordinator,
    )
    from spark_kafka_sink.model import Node, TopicPartition
    from spark_kafka_sink.protocol.schema import ApiResponse
    from spark_kafka_sink.security.sasl import SaslMechanism

    #: Called with the errors of the partitions that have no marker, and the time in seconds.
    OnMarkers = Callable[[Mapping[TopicPartition, RefusedError], float], None]


@dataclass(slots=True, eq=False)
class Forwarded:
    """A client's request that a broker has forwarded to the controller."""

    is_pending: bool = True
    response: ApiResponse | None = None
    error_code: ErrorCode = ErrorCode.NONE

    def answer(self, response: ApiResponse | None, error_code: ErrorCode) -> None:
        """Set the response, or the error if there is none."""
        self.is_pending = False
        self.response = response
        self.error_code = error_code

    def result(self) -> ApiResponse:
        """Return the response. Raises RefusedError if the request has failed, or is pending."""
        if self.response is None:
            code = ErrorCode.REQUEST_TIMED_OUT if self.is_pending else self.error_code
            raise RefusedError(code, "the controller has not responded")
        return self.response


@dataclass(slots=True, eq=False)
class Verification:
    """What the transaction coordinator says of the partitions of a write, once it has."""

    codes: Mapping[TopicPartition, ErrorCode] | None = None


class ClusterState(ABC):
    """Brokers, topics, and the coordinators of this broker."""

    #: The coordinators, which exist once the kind of cluster has been initialized.
    transactions: TransactionCoordinator
    groups: GroupCoordinator

    def __init__(
        self, settings: BrokerSettings, timers: Timers, logs: LogManager, store: ClusterStore
    ) -> None:
        """Begin without brokers or topics; `logs` are those of this broker."""
        self.settings = settings
        self.timers = timers
        #: The logs of all partitions, internal topics included.
        self.logs = logs
        #: What is stored once for all brokers.
        self.store = store
        #: The running brokers, by id, with the address of their first listener.
        self.nodes: dict[int, Node] = {}
        #: The ids of all brokers, running or not.
        self.broker_ids: set[int] = set()
        #: The addresses of their other listeners, by the listener's name.
        self.other_addresses: dict[str, dict[int, Node]] = {}
        #: Decides who may do what; None if everyone may do everything.
        self.authorizer = store.authorizer
        #: The defaults of topics: those of the settings, and what was changed since.
        self.topic_defaults = settings.topic_defaults
        #: How many changes there have been to what the controller manages, since the start.
        self.metadata_offset = 0
        self.topic_index = Topics()
        self._changed: set[Hashable] = set()

    # What is stored once.

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.store.stored.cluster_id

    def change_acls(self, acls: Iterable[Acl]) -> None:
        """Store and apply all ACLs.

        Raises RefusedError with SECURITY_DISABLED without an authorizer, or with
        KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        self.store.change_acls(acls)
        self.metadata_offset += 1

    @property
    def scram_users(self) -> Mapping[tuple[str, SaslMechanism], ScramCredential]:
        """The users that clients have created for logins with SCRAM, by name and mechanism."""
        return self.store.stored.scram_users

    def change_scram_users(
        self, users: Mapping[tuple[str, SaslMechanism], ScramCredential]
    ) -> None:
        """Store and apply all of these users.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        self.store.change_scram_users(users)
        self.metadata_offset += 1

    @property
    def client_quotas(self) -> Quotas:
        """The quotas of users and clients, by entity."""
        return self.store.stored.client_quotas

    def change_client_quotas(self, quotas: Quotas) -> None:
        """Store and apply all quotas.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        if quotas != self.store.stored.client_quotas:
            self.store.change_client_quotas(quotas)
            self.metadata_offset += 1

    # Brokers and topics.

    def nodes_at(self, listener: str) -> dict[int, Node]:
        """Return all brokers, by id, with the addresses that clients of a listener use."""
        addresses = self.other_addresses.get(listener, {})
        return {node_id: addresses.get(node_id, node) for node_id, node in self.nodes.items()}

    @property
    def topics(self) -> list[Topic]:
        """All topics, sorted by name."""
        return sorted(self.topic_index, key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic | None:
        """Return the topic with this name, or None."""
        return self.topic_index.find(name)

    def existing_topic(self, name: str) -> Topic:
        """Return the topic with this name, or raise RefusedError: UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topic(name)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
            )
        return topic

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id (KIP-516), or None."""
        return self.topic_index.find_by_id(topic_id)

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return a partition, or raise RefusedError with UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self._find(topic_partition)
        if partition is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic_partition} does not exist"
            )
        return partition

    def has(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition exists."""
        return self._find(topic_partition) is not None

    def _find(self, topic_partition: TopicPartition) -> Partition | None:
        topic = self.topic_index.find(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def leader(self, topic_partition: TopicPartition) -> int:
        """Return the broker that leads a partition, -1 for none.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self.partition(topic_partition).leader_id

    def changed(self, watched: Hashable) -> None:
        """Record a change that requests may wait for, such as a partition that has grown."""
        self._changed.add(watched)

    def take_changed(self) -> set[Hashable]:
        """Return what has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # What the coordinators need.

    @abstractmethod
    def next_producer_id(self) -> int:
        """Return a producer id that was never used before. Raises RefusedError if it cannot."""

    @abstractmethod
    def coordinator_epoch(self, transactional_id: str) -> int:
        """Return the leader epoch of the partition that a transactional id maps to."""

    @abstractmethod
    def write_markers(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        marker: TransactionMarker,
        written: OnMarkers,
    ) -> None:
        """Write a transaction's markers; call `written` with the errors of those that failed."""
