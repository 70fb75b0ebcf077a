"""Request handlers, which are functions marked with `handles`, and the context of a request.

A handler turns one decoded request into one response. It has no clock, no socket and no state of
its own: the time comes with the request's context, and the state is the cluster's. To reject a
request as a whole, it raises RefusedError, which the broker turns into the API's error response.

Error responses, and the results of items that were refused, follow from the schemas. A response
that has an error code gets the error there. Any other mirrors the request: for each item it has a
result, which names the item and gets the error. The result for a topic has no error code if each of
its partitions has a result.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from spark_kafka_sink.devbroker.base.authorizer import (
    ANONYMOUS,
    OPERATIONS,
    Client,
    not_authorized,
)
from spark_kafka_sink.devbroker.base.client_quotas import Quota, find_quota
from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
    PartitionFault,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.cluster_state import Forwarded
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.schema import (
    AnyRequest,
    ApiResponse,
    Array,
    BytesType,
    String,
    Struct,
    VersionRange,
    declared_fields,
)
from spark_kafka_sink.record.decode import DecodeBudget

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.client_quotas import ClientRates
    from spark_kafka_sink.devbroker.cluster.broker_view import BrokerView
    from spark_kafka_sink.devbroker.cluster.fetch_sessions import FetchSessions
    from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
    from spark_kafka_sink.model import Node, TopicPartition
    from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
    from spark_kafka_sink.protocol.primitives import Buffer
    from spark_kafka_sink.protocol.registry import RequestHeader

#: The cluster of one broker alone, or a cluster of several as one of its brokers knows it.
Cluster: TypeAlias = "StandaloneCluster | BrokerView"
EndpointT = TypeVar("EndpointT")
ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT", bound=AnyRequest)
#: More seconds than the broker tries to reach the controller, after which it responds anyway.
_CONTROLLER_TIMEOUT: Final = 60.0
#: The values of fields without a default; a number is 0.
_EMPTY: Final[Mapping[type, object]] = {Array: (), BytesType: b"", String: ""}


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """The context in which a request is handled."""

    header: RequestHeader
    #: When the request is handled, in seconds since 1970.
    now: float
    #: When it arrived, in seconds since 1970; earlier than `now` if it was delayed.
    arrived: float
    #: The broker that received the request.
    node_id: int
    cluster: Cluster
    settings: BrokerSettings
    #: The fetch sessions of this broker.
    fetch_sessions: FetchSessions
    #: How fast the clients of this broker with quotas send and receive.
    client_rates: ClientRates
    #: Address of the client; empty if unknown.
    client_host: str = ""
    #: The authenticated client, such as `User:alice`.
    principal: str = ANONYMOUS
    #: Name of the listener that the client is connected to.
    listener: str = ""
    #: The `Delayed.kept` that the handler last returned for this request; None the first time.
    kept: object = None
    #: A fault that affects partitions of the response.
    fault: PartitionFault | None = None
    #: Whether the response says that the client has exceeded a quota.
    throttled: bool = False

    @property
    def version(self) -> int:
        """API version of the request and its response."""
        return self.header.request_api_version

    @property
    def nodes(self) -> dict[int, Node]:
        """The brokers by id, with their addresses on the client's listener."""
        return self.cluster.nodes_at(self.listener)

    def endpoints(
        self, endpoint_class: Callable[..., EndpointT], node_ids: Collection[int]
    ) -> tuple[EndpointT, ...]:
        """Return those of the brokers as endpoints of a response, with their racks."""
        if not node_ids:
            return ()
        racks = self.cluster.racks
        return tuple(
            endpoint_class(node_id=node_id, host=node.host, port=node.port, rack=racks.get(node_id))
            for node_id, node in self.nodes.items()
            if node_id in node_ids
        )

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with an id; None if there is none."""
        topic = self.cluster.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def ask_controller(self, view: BrokerView, request: AnyRequest) -> ApiResponse | Delayed:
        """Return the controller's response to a request, which this broker forwards (KIP-590).

        Raises RefusedError if the controller has not responded in time, or this broker has stopped.
        """
        forwarded = self.kept
        if not isinstance(forwarded, Forwarded):
            forwarded = view.forward(request, self.version, self.now)
        if forwarded.is_pending:
            return Delayed(self.now + _CONTROLLER_TIMEOUT, frozenset({forwarded}), forwarded)
        return forwarded.result()

    def failed(
        self, result_class: type[ResultT], refused: RefusedError, **names: object
    ) -> ResultT:
        """Return the result of an item that was refused; `names` are the fields that name it."""
        return failed_result(result_class, self.version, refused, names)

    def each_result(
        self,
        result_class: type[ResultT],
        name: str,
        items: Iterable[str],
        handle: Callable[[str], ResultT],
    ) -> tuple[ResultT, ...]:
        """Return the result of each item, which `name` names in it, also of those refused.

        Duplicates are dropped: a small request that repeats an item would get a huge response.
        """
        results = []
        for item in dict.fromkeys(items):
            try:
                result = handle(item)
            except RefusedError as refused:
                result = self.failed(result_class, refused, **{name: item})
            results.append(result)
        return tuple(results)

    def allows(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the client may do something with a resource."""
        authorizer = self.cluster.authorizer
        return authorizer is None or authorizer.allows(
            Client(self.principal, self.client_host), operation, resource_type, name
        )

    def allows_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether there may be a resource with which the client may do something."""
        authorizer = self.cluster.authorizer
        return authorizer is None or authorizer.may_use_any(
            Client(self.principal, self.client_host), operation, resource_type
        )

    def check_right(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Raise RefusedError unless the client may do something with a resource."""
        if not self.allows(operation, resource_type, name):
            raise not_authorized(resource_type)

    def authorized_operations(self, resource_type: ResourceType, name: str) -> int:
        """Return what the client may do with a resource as a bit field of operations."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.allows(operation, resource_type, name)
        )

    def check_fault(self, topic_partition: TopicPartition) -> None:
        """Raise RefusedError if a fault gives the partition an error code."""
        fault = self.fault
        if isinstance(fault, PartitionError) and _affects(fault, topic_partition):
            raise RefusedError(fault.error_code, "a fault was injected")

    def altered(
        self, topic_partition: TopicPartition, batches: Sequence[Buffer]
    ) -> tuple[Buffer, ...]:
        """Return what to send of a partition's batches, which a fault may replace."""
        if isinstance(self.fault, AlterRecords) and _affects(self.fault, topic_partition):
            altered = self.fault.alter(b"".join(batches))
            return (altered,) if altered else ()
        return tuple(batches)

    def omits(self, topic_partition: TopicPartition) -> bool:
        """Return whether a fault removes the partition from the response."""
        return isinstance(self.fault, OmitPartitions) and _affects(self.fault, topic_partition)

    def decode_budget(self) -> DecodeBudget:
        """Return a new budget for decoding the record batches of this request."""
        return DecodeBudget(
            self.settings.request_max_decompressed_bytes, self.settings.request_max_decoded_elements
        )

    def fenced_as_of(self, first_version: int, error_code: ErrorCode) -> ErrorCode:
        """Return the error, with PRODUCER_FENCED only from `first_version` on.

        Before that version it is INVALID_PRODUCER_EPOCH (KIP-588).
        """
        if error_code is ErrorCode.PRODUCER_FENCED and self.version < first_version:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return error_code

    def quota(self, key: str) -> Quota | None:
        """Return the client's quota of a kind; None if it is not limited."""
        quotas = self.cluster.client_quotas
        if not quotas:
            return None
        return find_quota(quotas, key, self.principal.partition(":")[2], self.client_id)

    @property
    def client_id(self) -> str:
        """The client id of the request; empty if it has none."""
        return self.header.client_id or ""

    @property
    def now_ms(self) -> int:
        """The time in milliseconds since 1970."""
        return int(self.now * 1000)


def _affects(fault: PartitionFault, topic_partition: TopicPartition) -> bool:
    return fault.partitions is None or topic_partition in fault.partitions


@dataclass(frozen=True, slots=True)
class Delayed:
    """A delayed response; the request is handled again at `until` or after a watched change."""

    #: Seconds since 1970.
    until: float
    #: Partitions, or other objects that the cluster reports as changed.
    watched: frozenset[Hashable] = frozenset()
    #: Passed back with the request as `RequestContext.kept`.
    kept: object = None


#: Returns the response to a request that failed as a whole; None if the protocol has no response.
ErrorResponse: TypeAlias = "Callable[[RequestContext, Any, ErrorCode, str], ApiResponse | None]"


@dataclass(frozen=True, slots=True)
class Handler:
    """The handler of one API."""

    request_class: type[AnyRequest]
    #: Returns None if the protocol has no response. Raises RefusedError to reject the request as a
    #: whole, CloseConnectionError to close the connection instead of responding.
    handle: Callable[[RequestContext, Any], ApiResponse | Delayed | None]
    error_response: ErrorResponse

    @property
    def versions(self) -> VersionRange:
        """The versions of the API that the broker supports."""
        return self.request_class.versions


def handles(
    request_class: type[RequestT],
    *,
    when_failed: Mapping[str, object] = MappingProxyType({}),
    producer_fenced_from: int = 0,
    error_response: ErrorResponse | None = None,
) -> Callable[[Callable[[RequestContext, RequestT], ApiResponse | Delayed | None]], Handler]:
    """Make a function the handler of an API.

    The response to a request that failed as a whole follows from the schema.
    `when_failed` has the values that its fields have apart from the error, if those are not their
    defaults, and only from version `producer_fenced_from` on it says PRODUCER_FENCED. Where it
    does not follow from the schema, `error_response` returns it.
    """

    def failed(
        context: RequestContext, request: RequestT, error_code: ErrorCode, message: str
    ) -> ApiResponse:
        error_code = context.fenced_as_of(producer_fenced_from, error_code)
        return failed_response(
            request,
            context.version,
            {"error_code": error_code, "error_message": message, **when_failed},
        )

    return lambda handle: Handler(request_class, handle, error_response or failed)


#: The fields with which a result names its item.
_NAMES: Final = frozenset(
    {
        "group_id",
        "index",
        "key",
        "name",
        "partition",
        "partition_index",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
        "transactional_id",
    }
)


def failed_result(
    result_class: type[ResultT], version: int, refused: RefusedError, names: Mapping[str, object]
) -> ResultT:
    """Return the result of an item that was refused; `names` are the fields that name the item."""
    empty = _empty_result(result_class, version)  # type: ignore[arg-type]  # a class is hashable
    values: dict[str, Any] = {**empty, **names}
    values["error_code"] = refused.error_code
    if "error_message" in values:
        values["error_message"] = refused.message
    return result_class(**values)


@cache
def _empty_result(result_class: type, version: int) -> dict[str, object]:
    """Return the fields that have no default, and the error message if the version has one."""
    return {
        declared.name: _EMPTY.get(type(declared.spec.type), 0)
        for declared in declared_fields(result_class)
        if declared.default is dataclasses.MISSING
        or (declared.name == "error_message" and version in declared.spec.versions)
    }


def failed_response(request: AnyRequest, version: int, values: Mapping[str, object]) -> ApiResponse:
    """Return the response to a request that failed as a whole, as Kafka's getErrorResponse.

    `values` are those of the response's fields, the error code and others, at whatever depth.
    """
    request_class = type(request)
    fail = _failing(request_class.response_class(), request_class, version, values)
    response: ApiResponse = fail(request)
    return response


def _failing(
    result_class: type, item_class: type | None, version: int, values: Mapping[str, object]
) -> Callable[[Any], Any]:
    """Return the function from an item to its failed result; no class means plain values."""
    fields = {
        declared.name: declared
        for declared in declared_fields(result_class)
        if version in declared.spec.versions
    }
    constants = {
        name: values.get(name, _EMPTY.get(type(declared.spec.type), 0))
        for name, declared in fields.items()
        if name in values or declared.default is dataclasses.MISSING
    }
    names = fields.keys() & _NAMES
    if item_class is not None:
        names &= {declared.name for declared in declared_fields(item_class)}

    def named(item: Any) -> dict[str, Any]:
        if item_class is None:
            return dict.fromkeys(names, item)
        return {name: getattr(item, name) for name in names}

    if "error_code" in fields:
        return lambda item: result_class(**constants | named(item))
    results, class_of_results = _array(result_class, version)
    items, class_of_items = _array(item_class, version)
    fail = _failing(class_of_results, class_of_items, version, values)

    def mirror(item: Any) -> Any:
        mirrored = tuple(map(fail, getattr(item, items)))
        return result_class(**constants | named(item) | {results: mirrored})

    return mirror


def _array(message_class: Any, version: int) -> tuple[str, Any]:
    """Return the name of the only array, and the class of its elements; None for plain values."""
    [(name, element)] = [
        (declared.name, declared.spec.type.element)
        for declared in declared_fields(message_class)
        if isinstance(declared.spec.type, Array)
        and version in declared.spec.versions
        and declared.spec.tag is None
    ]
    return name, element.message_class if isinstance(element, Struct) else None
