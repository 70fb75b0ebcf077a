"""What every API's handler is, and what it is given.

A handler turns one decoded request into one answer. It has no clock, no socket and no state of its
own: the time comes with the request's context, the state is the cluster's. What it refuses as a
whole it raises as RefusedError, which the broker turns into the API's own error answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from spark_kafka_sink.devbroker.topic_config import TopicConfig

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster_state import ClusterState
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.protocol.api_keys import ApiKey
    from spark_kafka_sink.protocol.error_codes import ErrorCode
    from spark_kafka_sink.protocol.headers import RequestHeader
    from spark_kafka_sink.protocol.schema import VersionRange

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What can be set about a broker; names are Kafka's broker settings where it has them."""

    #: A topic that a client asks metadata for is created (auto.create.topics.enable).
    auto_create_topics: bool = True
    #: Partitions of a topic for which nobody said how many (num.partitions).
    num_partitions: int = 1
    #: Settings of topics for which nobody said otherwise.
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    #: Most bytes of records in one Fetch answer (fetch.max.bytes).
    fetch_max_bytes: int = 55 * 1024 * 1024
    #: Largest request in bytes (socket.request.max.bytes).
    socket_request_max_bytes: int = 100 * 1024 * 1024
    #: Decode every record that is appended, and refuse what cannot be decoded.
    validate_records: bool = False


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """A request's surroundings."""

    header: RequestHeader
    #: When the request is handled, in seconds since 1970.
    now: float
    #: When it arrived. Earlier than `now` if it has waited.
    arrived: float
    #: The broker that was asked.
    node_id: int
    cluster: ClusterState
    settings: BrokerSettings
    #: Partitions that this request has appended to: waiting fetches look again.
    appended: set[TopicPartition] = field(default_factory=set)

    @property
    def version(self) -> int:
        """API version of the request and its answer."""
        return self.header.request_api_version

    @property
    def now_ms(self) -> int:
        """The time in milliseconds since 1970."""
        return int(self.now * 1000)


@dataclass(frozen=True, slots=True)
class Delayed:
    """No answer yet: ask again when one of the partitions has grown, or when the time is up."""

    #: Seconds since 1970.
    until: float
    partitions: frozenset[TopicPartition]


class Handler(ABC, Generic[RequestT, ResponseT]):
    """One API."""

    api_key: ClassVar[ApiKey]
    versions: ClassVar[VersionRange]

    @abstractmethod
    def handle(self, context: RequestContext, request: RequestT) -> ResponseT | Delayed | None:
        """Answer a request; None where the protocol has no answer.

        Raises RefusedError to refuse the request as a whole, CloseConnectionError to end the
        connection instead of answering.
        """

    @abstractmethod
    def error_response(
        self, context: RequestContext, request: RequestT, error_code: ErrorCode, message: str
    ) -> ResponseT | None:
        """Answer that all of a request failed, as Kafka's getErrorResponse; None: no answer."""
