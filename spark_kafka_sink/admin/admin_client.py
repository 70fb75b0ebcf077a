"""The public client for administrative requests.

Each method is one line of what to ask, in the terms of `requests`, and one line of what to do with
the answer. The rule for errors is in the docstring of the class, and in `all_of`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from spark_kafka_sink.admin.arguments import (
    among,
    broker_ids_of,
    changes_of,
    committed_offsets_of,
    new_partitions_of,
    numbers_of,
    paths_of,
    producer_ids_of,
    reassignments_of,
    seconds_of,
    several,
    value_of,
    values_of,
)
from spark_kafka_sink.admin.blocking_client import BlockingClient
from spark_kafka_sink.admin.cluster_values import (
    ElectionType,
    LogDirDescription,
    PartitionReassignment,
    QuorumInfo,
    TopicPartitionReplica,
)
from spark_kafka_sink.admin.item_requests import ItemRequest, ItemResults, all_of, request_items
from spark_kafka_sink.admin.requests.acls import (
    creating_acls,
    deleting_acls,
    describe_acls_call,
    described_acls,
)
from spark_kafka_sink.admin.requests.brokers import (
    altering_log_dirs,
    altering_reassignments,
    describe_quorum_call,
    described_quorum,
    describing_log_dirs,
    elect_leaders_call,
    elected_leaders,
    list_config_resources_call,
    list_reassignments_call,
    listed_config_resources,
    listed_reassignments,
)
from spark_kafka_sink.admin.requests.configs import altering_configs, describing_configs
from spark_kafka_sink.admin.requests.groups import (
    commit_offsets_call,
    delete_offsets_call,
    deleting_groups,
    describe_all_groups,
    fetch_offsets_call,
    fetched_offsets,
    list_all_groups,
    refused_offsets,
    undeleted_offsets,
)
from spark_kafka_sink.admin.requests.partitions import (
    deleting_records,
    describing_producers,
    listing_offsets,
)
from spark_kafka_sink.admin.requests.topics import (
    creating_partitions,
    creating_topics,
    deleting_topics,
    describe_cluster_call,
    described_cluster,
    describing_topics,
    listed_topics,
    metadata_call,
)
from spark_kafka_sink.admin.requests.transactions import (
    describing_transactions,
    list_all_transactions,
)
from spark_kafka_sink.admin.transaction_values import TRANSACTION_STATES
from spark_kafka_sink.admin.values import (
    GROUP_STATES,
    GROUP_TYPES,
    AclBinding,
    AclBindingFilter,
    AlterConfigOp,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    CreatedTopic,
    ListedOffset,
    NewPartitions,
    NewTopic,
    ProducerState,
    TopicDescription,
    TopicListing,
)
from spark_kafka_sink.config.admin_config import AdminConfig
from spark_kafka_sink.config.arguments import INT64, number_of, partitions_of, text_of
from spark_kafka_sink.network.authentication.connection_security import read_security

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import Call, ClusterCalls
    from spark_kafka_sink.admin.transaction_values import TransactionDescription, TransactionListing
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.protocol.schema import ResponseT

#: The longest timeout: requests carry it as a signed 32-bit number of milliseconds.
_LONGEST_SECONDS = (2**31 - 1) / 1000
_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
T = TypeVar("T")


class AdminClient(BlockingClient):
    """A client that inspects and changes a cluster: topics, settings, groups, offsets, ACLs.

    It is named as Kafka's Java `Admin`, and its methods as Java's, but they return results instead
    of futures. Any thread may call; calls run one at a time. `close` it or use it in a `with`
    block. `config` are its settings, with Kafka's names.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     created = admin.create_topics([NewTopic("invoices", num_partitions=2)])
    ...     sorted(admin.list_topics())
    ['invoices', 'orders', 'payments']

    Each call takes a positive `timeout` in seconds, by default default.api.timeout.ms, and is
    retried until then. A call about several items, such as topics, returns their results by item,
    or None if there is nothing to return. If any of the items fail, the others are done anyway, and
    then the call raises AdminError, whose `errors` has the error of each item that failed and whose
    `results` has the results of the others. If the answer to a request was lost, it is sent again:
    then a topic that exists already may be the one that this call has created.

    An error that does not concern single items is raised as it is: BrokerError if a broker refuses
    the whole request, UnsupportedVersionError if it is too old, DecodeError if its response cannot
    be read, KafkaTimeoutError if the cluster has not answered by the end of the timeout,
    AuthenticationError, and IllegalStateError after `close`.

    Arguments are checked before anything is sent: those of a wrong type raise TypeError, and values
    that cannot be sent ValueError. A pair of a topic and a number is a partition, too.

    A topic that no broker knows is an error after 3 seconds, since it may have just been created.
    """

    def __init__(self, config: AdminConfig | Mapping[str, object]) -> None:
        """Create a client, which connects when it is first used.

        Raises ConfigError for invalid or unsupported settings. Files with certificates and tokens
        are read when it connects.
        """
        if not isinstance(config, AdminConfig):
            config = AdminConfig.from_mapping(config)
        read_security(config.security)
        super().__init__(config)
        self._config = config

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: sockets and threads cannot be pickled."""
        raise TypeError("an AdminClient cannot be pickled: create it where it is used")

    # --- topics

    def create_topics(
        self,
        new_topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[str, CreatedTopic]:
        """Create topics, and return them by name.

        With `validate_only` the brokers only check whether `new_topics` could be created. A topic
        that exists already is an error, TOPIC_ALREADY_EXISTS. Raises ValueError if two of the
        topics have the same name.
        """
        topics = values_of("new_topics", new_topics, NewTopic)
        by_name = {topic.name: topic for topic in topics}
        if len(by_name) < len(topics):
            raise ValueError("two of the new topics have the same name")
        request = creating_topics(by_name, validate_only=validate_only)
        return self._items(request, by_name, timeout)

    def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete the topics of these `names`, with all their records."""
        self._items(deleting_topics(), several("names", names), timeout)

    def list_topics(
        self, *, include_internal: bool = False, timeout: float | None = None
    ) -> dict[str, TopicListing]:
        """List the topics that this user may see, by name.

        Kafka's own topics, such as `__consumer_offsets`, only with `include_internal`.
        """
        response = self._call(metadata_call(None), timeout)
        return listed_topics(response, include_internal=include_internal)

    def describe_topics(
        self,
        names: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> dict[str, TopicDescription]:
        """Describe the topics of these `names`, and return the descriptions by name.

        With `include_authorized_operations` they say what this user may do with each topic.
        """
        request = describing_topics(include_authorized_operations=include_authorized_operations)
        return self._items(request, several("names", names), timeout)

    def create_partitions(
        self,
        new_partitions: Mapping[str, NewPartitions],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Add partitions to topics.

        `new_partitions` has the new number of partitions by topic. With `validate_only` the brokers
        only check whether they could be added.
        """
        topics = new_partitions_of(new_partitions)
        request = creating_partitions(topics, validate_only=validate_only)
        self._items(request, topics, timeout)

    # --- partitions

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before these `offsets`, by partition; return the new first offsets.

        The offset -1 is the end of the partition, as in `OffsetSpec.LATEST`.
        """
        first_offsets = numbers_of("offsets", offsets, "an offset")
        return self._items(deleting_records(first_offsets), first_offsets, timeout)

    def list_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        timeout: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """Look up offsets of partitions.

        `offsets` has an `OffsetSpec` or a timestamp by partition. A timestamp, in milliseconds
        since 1970, is for the first record with that timestamp or a later one. `isolation_level` is
        read_uncommitted or read_committed, where the latest offset is the last stable offset: the
        start of the first open transaction. Raises ValueError for any other one.
        """
        if isolation_level not in _ISOLATION_LEVELS:
            raise ValueError(f"isolation_level must be one of {', '.join(_ISOLATION_LEVELS)}")
        specs = numbers_of("offsets", offsets, "an OffsetSpec or a timestamp")
        request = listing_offsets(specs, is_committed=isolation_level == "read_committed")
        return self._items(request, specs, timeout)

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Describe the idempotent and transactional producers of `partitions`."""
        places = partitions_of(partitions)
        return self._items(describing_producers(), places, timeout)

    # --- settings

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Return the settings of `resources`, by resource and name.

        With `include_synonyms` they have the settings from which their value may come, with
        `include_documentation` Kafka's own documentation.
        """
        request = describing_configs(
            include_synonyms=include_synonyms, include_documentation=include_documentation
        )
        return self._items(request, values_of("resources", resources, ConfigResource), timeout)

    def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Iterable[AlterConfigOp]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change settings of resources; settings that are not named keep their values.

        `changes` are the changes by resource: all of a resource are made, or none. With
        `validate_only` the brokers only check whether they could be made.
        """
        by_resource = changes_of(changes)
        request = altering_configs(by_resource, validate_only=validate_only)
        self._items(request, by_resource, timeout)

    def list_config_resources(
        self, types: Iterable[ConfigResourceType] = (), *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """List what has settings: topics, brokers, groups and others (brokers since 4.1, KIP-1142).

        `types` are those of the resources; without them, all match.
        """
        chosen = values_of("types", types, ConfigResourceType)
        call = list_config_resources_call(chosen)
        return listed_config_resources(self._call(call, timeout), call.what)

    # --- brokers

    def describe_log_dirs(
        self, broker_ids: Iterable[int], *, timeout: float | None = None
    ) -> dict[int, dict[str, LogDirDescription]]:
        """Describe the directories of brokers with the replicas in there, by broker and path.

        `broker_ids` are those of the brokers; one that is not running is an error.
        """
        brokers = broker_ids_of("broker_ids", broker_ids)
        return self._items(describing_log_dirs(), brokers, timeout)

    def alter_replica_log_dirs(
        self, assignments: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
    ) -> None:
        """Move replicas to other directories of their brokers.

        `assignments` has the absolute path of a directory by replica. The moves have begun when the
        call returns; until they end, `describe_log_dirs` shows the copies as future ones.
        """
        paths = paths_of(assignments)
        self._items(altering_log_dirs(paths), paths, timeout)

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, bool]:
        """Elect leaders of partitions, and return whether each has a new one.

        It has none if no election was needed. `election_type` says which replica is to lead.
        Without `partitions` all of the cluster are meant, and the result has only those that needed
        an election.
        """
        value_of("election_type", election_type, ElectionType)
        places = None if partitions is None else partitions_of(partitions)
        if places == []:
            self._check(timeout)
            return {}
        call = elect_leaders_call(election_type, places)
        return all_of(call.what, elected_leaders(self._call(call, timeout), call.what))

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout: float | None = None,
    ) -> None:
        """Move partitions to other brokers, or cancel that.

        `reassignments` has the ids of the brokers by partition, the preferred leader first; None
        cancels a move. The moves have begun when the call returns: `list_partition_reassignments`
        has those that have not ended.
        """
        replicas = reassignments_of(reassignments)
        self._items(altering_reassignments(replicas), replicas, timeout)

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the partitions that are moving to other brokers, of `partitions` or of all."""
        places = None if partitions is None else partitions_of(partitions)
        if places == []:
            self._check(timeout)
            return {}
        call = list_reassignments_call(places)
        return listed_reassignments(self._call(call, timeout), call.what)

    # --- the cluster

    def describe_metadata_quorum(self, *, timeout: float | None = None) -> QuorumInfo:
        """Describe the controllers of the cluster, and how far each of them is (KIP-836)."""
        call = describe_quorum_call()
        return described_quorum(self._call(call, timeout), call.what)

    def describe_cluster(
        self, *, include_authorized_operations: bool = False, timeout: float | None = None
    ) -> ClusterDescription:
        """Describe the cluster: its id, its brokers and its controller.

        With `include_authorized_operations` it says what this user may do with the cluster.
        """
        call = describe_cluster_call(include_authorized_operations=include_authorized_operations)
        return described_cluster(self._call(call, timeout))

    # --- consumer groups

    def list_consumer_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[ConsumerGroupListing]:
        """List the consumer groups that this user may see, of all brokers, by group id.

        `states` and `types` are names as in `ConsumerGroupListing`, in upper or lower case; without
        them, all match. Raises ValueError for unknown ones.
        """
        chosen_states = among("states", states, GROUP_STATES)
        chosen_types = among("types", types, GROUP_TYPES)
        return self._run(
            partial(list_all_groups, states=chosen_states, types=chosen_types), timeout
        )

    def describe_consumer_groups(
        self,
        group_ids: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> dict[str, ConsumerGroupDescription]:
        """Describe the groups of these `group_ids`, and return the descriptions by id.

        A group that does not exist is an error, GROUP_ID_NOT_FOUND. With
        `include_authorized_operations` they say what this user may do with each group.
        """
        ids = several("group_ids", group_ids)
        described = self._run(
            lambda calls, deadline: describe_all_groups(
                calls, ids, deadline, include_authorized_operations=include_authorized_operations
            ),
            timeout,
        )
        return all_of("DescribeGroups", described)

    def delete_consumer_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Delete the groups of these `group_ids`, with their offsets; they must have no members."""
        ids = several("group_ids", group_ids)
        self._items(deleting_groups(), ids, timeout)

    def list_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, by partition.

        `group_id` is the group's name. Without `partitions`, the result has all that the group has
        committed. A partition without a committed offset is left out, and a group that does not
        exist has none. With `require_stable` the call waits until no open transaction can change
        the offsets (KIP-447).
        """
        text_of(group_id, "group_id")
        places = None if partitions is None else partitions_of(partitions)
        call = fetch_offsets_call(group_id, places, require_stable=require_stable)
        return all_of(call.what, fetched_offsets(self._call(call, timeout), call.what))

    def alter_consumer_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        """Set committed offsets of a group, which must have no members.

        `group_id` is the group's name; a group that does not exist is created. `offsets` has the
        next offset to read by partition; other partitions keep their offsets. If the group has
        members, the error of each partition is UNKNOWN_MEMBER_ID.
        """
        text_of(group_id, "group_id")
        committed = committed_offsets_of(offsets)
        if not committed:
            self._check(timeout)
            return
        call = commit_offsets_call(group_id, committed)
        errors = refused_offsets(self._call(call, timeout), call.what)
        done = dict.fromkeys(committed.keys() - errors.keys())
        all_of(call.what, ItemResults(done, dict(errors)))

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Delete committed offsets of a group.

        `group_id` is the group's name, and `partitions` are those whose offsets are deleted. The
        error of a partition is GROUP_SUBSCRIBED_TO_TOPIC if a member reads its topic.
        """
        text_of(group_id, "group_id")
        places = partitions_of(partitions)
        if not places:
            self._check(timeout)
            return
        call = delete_offsets_call(group_id, places)
        errors = undeleted_offsets(self._call(call, timeout), call.what)
        done = dict.fromkeys(set(places) - errors.keys())
        all_of(call.what, ItemResults(done, dict(errors)))

    # --- access control lists

    def describe_acls(
        self, acl_filter: AclBindingFilter | None = None, *, timeout: float | None = None
    ) -> list[AclBinding]:
        """Return the ACLs that match `acl_filter`, or all ACLs."""
        chosen = AclBindingFilter() if acl_filter is None else acl_filter
        call = describe_acls_call(value_of("acl_filter", chosen, AclBindingFilter))
        return described_acls(self._call(call, timeout))

    def create_acls(self, bindings: Iterable[AclBinding], *, timeout: float | None = None) -> None:
        """Create the ACLs `bindings`; those that exist already are left as they are."""
        acls = values_of("bindings", bindings, AclBinding)
        self._items(creating_acls(), acls, timeout)

    def delete_acls(
        self, filters: Iterable[AclBindingFilter], *, timeout: float | None = None
    ) -> dict[AclBindingFilter, tuple[AclBinding, ...]]:
        """Delete the ACLs that match any of `filters`, and return them by filter."""
        acl_filters = values_of("filters", filters, AclBindingFilter)
        return self._items(deleting_acls(), acl_filters, timeout)

    # --- transactions

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        min_duration_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """List the transactional ids of all brokers, by id.

        `states` are names such as Ongoing or Empty, in upper or lower case, and `producer_ids`
        numbers of producers; without them, all match. `min_duration_ms` only lets those match whose
        transaction has been open for longer, in milliseconds (brokers since 3.8);
        `transactional_id_pattern` those whose id matches as a whole, in the syntax of RE2J (brokers
        since 4.1). Raises ValueError for unknown states.
        """
        chosen_states = among("states", states, TRANSACTION_STATES)
        chosen_ids = producer_ids_of(producer_ids)
        duration = -1
        if min_duration_ms is not None:
            duration = number_of(min_duration_ms, "min_duration_ms", bits=INT64)
        if transactional_id_pattern is not None:
            text_of(transactional_id_pattern, "transactional_id_pattern")
        listing = partial(
            list_all_transactions,
            states=chosen_states,
            producer_ids=chosen_ids,
            min_duration_ms=duration,
            pattern=transactional_id_pattern,
            needs_pattern=True,
        )
        return sorted(set(self._run(listing, timeout)))

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Describe `transactional_ids` and their transactions, and return them by id.

        An id that no coordinator knows is an error, TRANSACTIONAL_ID_NOT_FOUND.
        """
        request = describing_transactions()
        ids = several("transactional_ids", transactional_ids)
        return self._items(request, ids, timeout)

    # --- running

    def _items(
        self,
        request: ItemRequest[KeyT, ResponseT, ValueT],
        keys: Iterable[KeyT],
        timeout: float | None,
    ) -> dict[KeyT, ValueT]:
        """Send a request about items, and return all results or raise the errors."""
        items = tuple(keys)
        if not items:
            self._check(timeout)
            return {}

        results = self._run(
            lambda calls, deadline: request_items(calls, request, items, deadline), timeout
        )
        return all_of(request.what, results)

    def _call(self, call: Call[ResponseT], timeout: float | None) -> ResponseT:
        return self._run(lambda calls, deadline: calls.call(call, deadline), timeout)

    def _run(
        self,
        function: Callable[[ClusterCalls, float], Coroutine[Any, Any, T]],
        timeout: float | None,
    ) -> T:
        return super()._run(function, self._check(timeout))

    def _check(self, timeout: float | None) -> float:
        """Return the timeout of a call in seconds; raises IllegalStateError after `close`."""
        self._thread.check_open()
        if timeout is None:
            timeout = self._config.default_api_timeout_ms / 1000
        return min(seconds_of(timeout), _LONGEST_SECONDS)
