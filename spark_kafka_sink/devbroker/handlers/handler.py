"""Request handlers, which are functions marked with `handles`, and the context of a request.

A handler turns one decoded request into one response. It has no clock, no socket and no state of
its own: the time comes with the request's context, and the state is the cluster's. To reject a
request as a whole, it raises RefusedError, which the broker turns into the API's error response.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.error_responses import failed_response, failed_result
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.schema import AnyRequest
from spark_kafka_sink.record.decode import DecodeBudget

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.partition_faults import PartitionFault
    from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
    from spark_kafka_sink.devbroker.cluster.fetch_sessions import FetchSessions
    from spark_kafka_sink.model import Node, TopicPartition
    from spark_kafka_sink.protocol.headers import RequestHeader
    from spark_kafka_sink.protocol.primitives import Buffer
    from spark_kafka_sink.protocol.schema import ApiResponse, VersionRange


EndpointT = TypeVar("EndpointT")
ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT", bound=AnyRequest)


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
    cluster: ClusterState
    settings: BrokerSettings
    #: The fetch sessions of this broker.
    fetch_sessions: FetchSessions
    #: Address of the client; empty if unknown.
    client_host: str = ""
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
        self, endpoint_class: Callable[..., EndpointT], node_ids: Container[int]
    ) -> tuple[EndpointT, ...]:
        """Return those of the brokers as endpoints of a response, with their racks."""
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

    The response to a request that failed as a whole follows from the schema (`error_responses`).
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
