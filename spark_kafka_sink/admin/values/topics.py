"""Topics: new ones, and how brokers describe those that exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.admin.values.configs import check_setting
from spark_kafka_sink.offset_arguments import INT16, number_of, text_of

if TYPE_CHECKING:
    import uuid

    from spark_kafka_sink.admin.values.acls import AclOperation
    from spark_kafka_sink.admin.values.configs import ConfigEntry
    from spark_kafka_sink.model import Node


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create.

    `configs` are its settings, by Kafka's names. Raises TypeError for settings that are not texts
    and other values of a wrong type, and ValueError for numbers that are too large.

    >>> topic = NewTopic("invoices", num_partitions=2, configs={"cleanup.policy": "compact"})
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.create_topics([topic])["invoices"].num_partitions
    2
    """

    #: The name of the topic.
    name: str
    #: -1 for the cluster's default (KIP-464).
    num_partitions: int = -1
    #: -1 for the cluster's default.
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    #: The ids of each partition's brokers, the preferred leader first. If it is given, the numbers
    #: of partitions and replicas follow from it.
    replica_assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a value that cannot be sent."""
        topic = f"topic {text_of(self.name, 'the name of a topic')!r}"
        number_of(self.num_partitions, f"num_partitions of {topic}")
        number_of(self.replication_factor, f"replication_factor of {topic}", bits=INT16)
        if not isinstance(self.configs, Mapping):
            raise TypeError(
                f"the configs of {topic} are a mapping of name to value, not of the type "
                f"{type(self.configs).__name__}"
            )
        for name, value in self.configs.items():
            check_setting(name, value)
        assignments = self.replica_assignments
        if not isinstance(assignments, Mapping):
            raise TypeError(
                f"the replica_assignments of {topic} are a mapping of partition to a list of "
                f"broker ids, not {assignments!r}"
            )
        for partition, brokers in assignments.items():
            number_of(partition, f"a partition in the replica_assignments of {topic}")
            _check_brokers(brokers, f"the brokers of partition {partition} of {topic}")


def _check_brokers(brokers: object, what: str) -> None:
    """Raise TypeError or ValueError unless `brokers` are a list of broker ids."""
    if not isinstance(brokers, Sequence) or isinstance(brokers, str | bytes):
        raise TypeError(f"{what} are a list of broker ids, not {brokers!r}")
    for broker in brokers:
        number_of(broker, f"each of {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A topic that was created, or would be: see `validate_only`.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     created = admin.create_topics([NewTopic("invoices", 2)])["invoices"]
    >>> created.num_partitions, created.configs["cleanup.policy"].value
    (2, 'delete')
    """

    #: The name of the topic.
    name: str
    #: All zeros if the broker is older than 2.8; random, the id of no topic, if the topic was only
    #: validated.
    topic_id: uuid.UUID
    #: -1 if the user may not see it, or if the broker is older than 2.4.
    num_partitions: int
    #: -1 if the user may not see it, or if the broker is older than 2.4.
    replication_factor: int
    #: Its settings by name; None if the user may not see them.
    configs: Mapping[str, ConfigEntry] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    """A topic in a list.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.list_topics()["orders"].is_internal
    False
    """

    #: The name of the topic.
    name: str
    #: All zeros if the broker is older than 2.8.
    topic_id: uuid.UUID
    #: Whether it is one of Kafka's own, such as `__consumer_offsets`.
    is_internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitionInfo:
    """A partition with its leader and replicas.

    A broker that is not running has no address: its host is empty.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     [partition] = admin.describe_topics(["orders"])["orders"].partitions
    >>> partition.partition, partition.leader.node_id, len(partition.isr)
    (0, 1, 1)
    """

    #: Its number, counted from 0.
    partition: int
    #: None while there is no leader.
    leader: Node | None
    #: The preferred leader is the first.
    replicas: tuple[Node, ...]
    #: The replicas that are in sync.
    isr: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic and its partitions.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     topic = admin.describe_topics(["orders"])["orders"]
    >>> topic.name, len(topic.partitions)
    ('orders', 1)
    """

    #: The name of the topic.
    name: str
    #: All zeros if the broker is older than 2.8.
    topic_id: uuid.UUID
    #: Whether it is one of Kafka's own, such as `__consumer_offsets`.
    is_internal: bool
    #: Ordered by their numbers.
    partitions: tuple[TopicPartitionInfo, ...]
    #: What this user may do with it; None unless it was requested.
    authorized_operations: frozenset[AclOperation] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The number of partitions to which a topic is increased.

    Raises TypeError for values of a wrong type, and ValueError for numbers that are too large.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.create_partitions({"orders": NewPartitions(3)})
    ...     len(admin.describe_topics(["orders"])["orders"].partitions)
    3
    """

    #: The number of all partitions, old and new.
    total_count: int
    #: For each new partition the ids of its brokers; None leaves the choice to the controller.
    new_assignments: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a value that cannot be sent."""
        number_of(self.total_count, "the total_count of NewPartitions")
        assignments: object = self.new_assignments
        if assignments is None:
            return
        if not isinstance(assignments, Sequence) or isinstance(assignments, str | bytes):
            raise TypeError(
                "new_assignments are a list with a list of broker ids for each new partition, not "
                f"{assignments!r}"
            )
        for brokers in assignments:
            _check_brokers(brokers, "the brokers of a new partition")
