"""The values that `AdminClient` takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Self

from spark_kafka_sink.config.arguments import INT16, number_of, text_of
from spark_kafka_sink.protocol.acl_codes import (
    AclCode,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

if TYPE_CHECKING:
    import uuid

    from spark_kafka_sink.model import Node, TopicPartition

#: The protocol type of groups of consumers, as opposed to those of Kafka Connect and others.
CONSUMER_PROTOCOL_TYPE: Final = "consumer"
#: The types of groups of consumers (GroupType), and their states (GroupState.groupStatesForType).
GROUP_TYPES: Final = ("Classic", "Consumer")
GROUP_STATES: Final = (
    *("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning"),
    *("Reconciling", "Dead"),
)

#: The bits of authorized operations if they were not requested.
_NOT_REQUESTED = -(2**31)
#: The fields of an ACL that are texts.
_TEXTS: Final = ("name", "principal", "host")


# --- access control lists (ACLs): who may do what with which resources


#: The fields of an ACL that are codes, and their types.
_CODES: Final[dict[str, type[AclCode]]] = {
    "resource_type": ResourceType,
    "pattern_type": ResourcePatternType,
    "operation": AclOperation,
    "permission_type": AclPermissionType,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBinding:
    """An access control list (ACL) of a resource. Raises TypeError for values of a wrong type.

    >>> acl = AclBinding(
    ...     resource_type=ResourceType.TOPIC,
    ...     name="orders",
    ...     principal="User:alice",
    ...     operation=AclOperation.READ,
    ... )
    >>> print(acl)
    User:alice from *: ALLOW READ of TOPIC 'orders' (LITERAL)
    """

    #: The type of the resource.
    resource_type: ResourceType
    #: The name of the resource, or the beginning of names: see `pattern_type`.
    name: str
    #: How the name matches resources.
    pattern_type: ResourcePatternType = ResourcePatternType.LITERAL
    #: Such as `User:alice`; `User:*` is every user.
    principal: str
    #: The address of the client; `*` is every address.
    host: str = "*"
    #: What is allowed or denied.
    operation: AclOperation
    #: Whether it is allowed or denied.
    permission_type: AclPermissionType = AclPermissionType.ALLOW

    def __post_init__(self) -> None:
        _check_codes(self)
        for name in _TEXTS:
            text_of(getattr(self, name), f"the {name} of an AclBinding")

    def __str__(self) -> str:
        return (
            f"{self.principal} from {self.host}: {self.permission_type.name} "
            f"{self.operation.name} of {self.resource_type.name} {self.name!r} "
            f"({self.pattern_type.name})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBindingFilter:
    """A condition on ACLs; without arguments, all ACLs match.

    Raises TypeError for values of a wrong type.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     try:
    ...         admin.describe_acls(AclBindingFilter(principal="User:alice"))
    ...     except BrokerError as error:  # the embedded broker has no authorizer
    ...         error.name
    'SECURITY_DISABLED'
    """

    #: ANY matches every type.
    resource_type: ResourceType = ResourceType.ANY
    #: None matches every name.
    name: str | None = None
    #: ANY matches every type; MATCH those that apply to a resource of the name.
    pattern_type: ResourcePatternType = ResourcePatternType.ANY
    #: None matches every principal.
    principal: str | None = None
    #: None matches every host.
    host: str | None = None
    #: ANY matches every operation.
    operation: AclOperation = AclOperation.ANY
    #: ANY matches both.
    permission_type: AclPermissionType = AclPermissionType.ANY

    def __post_init__(self) -> None:
        _check_codes(self)
        for name in _TEXTS:
            if getattr(self, name) is not None:
                text_of(getattr(self, name), f"the {name} of an AclBindingFilter")


def authorized_operations(bits: int) -> frozenset[AclOperation] | None:
    """Return the operations of a bit field; None if they were not requested."""
    if bits == _NOT_REQUESTED:
        return None
    return frozenset(
        operation
        for operation in AclOperation
        if operation > AclOperation.ALL and bits & (1 << operation)
    )


# --- settings of topics, brokers and groups, and changes to them


class ConfigResourceType(IntEnum):
    """The type of what has settings.

    >>> ConfigResource(ConfigResourceType.TOPIC, "orders").name
    'orders'
    """

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic, a broker or a group that has settings.

    `resource_type` is its type. `name` is the name of a topic or a group, or the id of a broker as
    text; the empty text is the default of all brokers. Raises TypeError for anything else.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.describe_configs([topic])[topic]["cleanup.policy"].value
    'delete'
    """

    resource_type: ConfigResourceType
    name: str

    def __post_init__(self) -> None:
        """Raise TypeError for a number in place of a type, or of a broker's id as text."""
        if not isinstance(self.resource_type, ConfigResourceType):
            raise TypeError(
                "resource_type must be a ConfigResourceType, such as ConfigResourceType.TOPIC, not "
                f"{self.resource_type!r}"
            )
        if not isinstance(self.name, str):
            raise TypeError(
                f"the name of a ConfigResource must be a text, such as {str(self.name)!r}, not "
                f"{self.name!r}"
            )
        text_of(self.name, "the name of a ConfigResource")

    def __str__(self) -> str:
        return f"{self.resource_type.name.lower().replace('_', ' ')} {self.name!r}"


class ConfigSource(IntEnum):
    """Where the value of a setting comes from.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.describe_configs([topic])[topic]["cleanup.policy"].source.name
    'DEFAULT_CONFIG'
    """

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> Self:  # noqa: ARG003 - the signature of Enum
        """Return UNKNOWN for the source of a newer broker."""
        return cls(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """A setting from which the value of another one may come.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     entries = admin.describe_configs([topic], include_synonyms=True)[topic]
    >>> all(isinstance(it, ConfigSynonym) for it in entries["cleanup.policy"].synonyms)
    True
    """

    #: The name of the setting.
    name: str
    #: None if it is a secret.
    value: str | None
    #: Where this value comes from.
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting and its value.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     entry = admin.describe_configs([topic])[topic]["segment.ms"]
    >>> entry.value, entry.is_default
    ('604800000', True)
    """

    #: The name of the setting.
    name: str
    #: None if it is a secret, which brokers do not return, or if it is not set.
    value: str | None
    #: Where the value comes from.
    source: ConfigSource
    #: Whether it is a secret.
    is_sensitive: bool
    #: Whether it cannot be changed while the broker is running.
    is_read_only: bool
    #: The name of its type, such as LONG; None if the broker does not return it.
    type_name: str | None = None
    #: None unless it was requested.
    documentation: str | None = None
    #: In the order of precedence; empty unless they were requested.
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether the value is Kafka's default."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterConfigOpType(IntEnum):
    """How a setting is changed.

    APPEND and SUBTRACT change the elements of a list.

    >>> AlterConfigOp("cleanup.policy", "compact", AlterConfigOpType.APPEND).op.name
    'APPEND'
    """

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterConfigOp:
    """A change to one setting. Raises TypeError for values of a wrong type.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.incremental_alter_configs({topic: [AlterConfigOp("retention.ms", "1000")]})
    ...     admin.describe_configs([topic])[topic]["retention.ms"].value
    '1000'
    """

    #: The name of the setting.
    name: str
    #: None with DELETE, which restores the default. Not in the repr: it may be a secret.
    value: str | None = field(repr=False)
    #: How it is changed.
    op: AlterConfigOpType = AlterConfigOpType.SET

    def __post_init__(self) -> None:
        """Raise TypeError for a name or a value that is not a text, or another kind of change."""
        check_setting(self.name, self.value)
        if not isinstance(self.op, AlterConfigOpType):
            raise TypeError(
                "op must be an AlterConfigOpType, such as AlterConfigOpType.SET, not of the type "
                f"{type(self.op).__name__}"
            )


def check_setting(name: object, value: object) -> None:
    """Raise TypeError unless the name of a setting is a text, and its value a text or None.

    Raises ValueError for a text that cannot be encoded. The value is not in the error, since it may
    be a secret.
    """
    text_of(name, "the name of a setting")
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(
            f"the value of {name!r} must be a text, such as '1000', not of the type "
            f"{type(value).__name__}"
        )
    text_of(value, f"the value of {name!r}")


# --- consumer groups and their members


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupListing:
    """A consumer group in a list.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 0})
    ...     [group] = admin.list_consumer_groups()
    >>> group.group_id, group.state
    ('billing', 'Empty')
    """

    #: The name of the group.
    group_id: str
    #: The name of its state, such as Stable or Empty; empty if the broker is older than 2.6.
    state: str
    #: Classic, or Consumer for the protocol of KIP-848; empty if the broker is older than 3.8.
    type: str
    #: Whether its members assign partitions themselves, so that it only stores offsets.
    is_simple: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member of a consumer group.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 0})
    ...     group = admin.describe_consumer_groups(["billing"])["billing"]
    >>> [isinstance(member, MemberDescription) for member in group.members]
    []
    """

    #: The id that the coordinator knows it by.
    member_id: str
    #: The static id of the member (KIP-345), if it has one.
    group_instance_id: str | None
    #: The client.id of its consumer.
    client_id: str
    #: The address of the client, such as `/10.0.0.7`.
    host: str
    #: The partitions that the member reads.
    assignment: tuple[TopicPartition, ...]
    #: What it is to read when the rebalance has ended; None in a classic group.
    target_assignment: tuple[TopicPartition, ...] | None = None
    #: None in a classic group.
    member_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A consumer group and its members.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 0})
    ...     group = admin.describe_consumer_groups(["billing"])["billing"]
    >>> group.state, group.members, group.coordinator.node_id
    ('Empty', (), 1)
    """

    #: The name of the group.
    group_id: str
    #: The name of its state: Stable, Empty, PreparingRebalance, CompletingRebalance, and in groups
    #: of the new protocol also Assigning and Reconciling.
    state: str
    #: Classic, or Consumer for the protocol of KIP-848.
    type: str
    #: Whether its members assign partitions themselves, so that it only stores offsets.
    is_simple: bool
    #: The assignor that the members have agreed on, such as `range`; empty if there is none.
    partition_assignor: str
    #: Its members; empty if there are none.
    members: tuple[MemberDescription, ...]
    #: The broker that manages the group.
    coordinator: Node
    #: What this user may do with it; None unless it was requested.
    authorized_operations: frozenset[AclOperation] | None = None


# --- partitions: their producers, as the leader knows them, and their offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """An idempotent or transactional producer of a partition (KIP-664).

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> place = TopicPartition("orders", 0)
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     [state] = admin.describe_producers([place])[place]
    >>> state.producer_epoch, state.last_sequence, state.current_transaction_start_offset
    (0, 0, None)
    """

    #: Its id.
    producer_id: int
    #: The epoch of its id.
    producer_epoch: int
    #: The sequence number of its last record; -1 if there is none.
    last_sequence: int
    #: The timestamp of its last batch, in milliseconds since 1970; -1 if there is none.
    last_timestamp: int
    #: The epoch of the coordinator that wrote the last marker; None if there is none.
    coordinator_epoch: int | None
    #: The offset of the first record of its open transaction; None if there is none.
    current_transaction_start_offset: int | None


class OffsetSpec(IntEnum):
    """Which offset to look up, in place of a timestamp.

    LATEST is the end of the partition, or its last stable offset with read_committed. EARLIEST is
    its first offset. MAX_TIMESTAMP is the record with the highest timestamp (brokers since 3.0).
    EARLIEST_LOCAL and LATEST_TIERED are where tiered storage ends (brokers since 3.6 and 3.8).

    >>> place = TopicPartition("orders", 0)
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.list_offsets({place: OffsetSpec.LATEST})[place].offset
    0
    """

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An offset that was looked up.

    >>> place = TopicPartition("orders", 0)
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     found = admin.list_offsets({place: OffsetSpec.EARLIEST})[place]
    >>> found.offset, found.timestamp
    (0, -1)
    """

    #: -1 if no record has a timestamp that is as late.
    offset: int
    #: That of the record, in milliseconds since 1970; -1 for the start or end of a partition.
    timestamp: int
    #: The leader epoch of the record; None if it is not known.
    leader_epoch: int | None


# --- a cluster and its brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster and its brokers.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     cluster = admin.describe_cluster()
    >>> [node.node_id for node in cluster.nodes], cluster.controller.node_id
    ([1], 1)
    """

    #: The id that the cluster was formatted with.
    cluster_id: str
    #: The controller; with KRaft, any broker, which forwards to it. None if there is none.
    controller: Node | None
    #: The running brokers.
    nodes: tuple[Node, ...]
    #: What this user may do with the cluster; None unless it was requested.
    authorized_operations: frozenset[AclOperation] | None = None


# --- topics: new ones, and how brokers describe those that exist


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


# --- checks


def _check_codes(acl: AclBinding | AclBindingFilter) -> None:
    """Raise TypeError for a text or a number in place of a code."""
    for name, kind in _CODES.items():
        value = getattr(acl, name)
        if not isinstance(value, kind):
            raise TypeError(
                f"{name} must be of the type {kind.__name__}, such as {kind.__name__}."
                f"{kind(3).name}, not {value!r}"
            )


def _check_brokers(brokers: object, what: str) -> None:
    """Raise TypeError or ValueError unless `brokers` are a list of broker ids."""
    if not isinstance(brokers, Sequence) or isinstance(brokers, str | bytes):
        raise TypeError(f"{what} are a list of broker ids, not {brokers!r}")
    for broker in brokers:
        number_of(broker, f"each of {what}")
