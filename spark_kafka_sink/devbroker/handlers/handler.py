"""What every API's handler is, and what it is given.

A handler turns one decoded request into one answer. It has no clock, no socket and no state of its
own: the time comes with the request's context, the state is the cluster's. What it refuses as a
whole it raises as RefusedError, which the broker turns into the API's own error answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.decode import DecodeBudget

if TYPE_CHECKING:
    from collections.abc import Hashable

    from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.cluster_state import ClusterState
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.api_keys import ApiKey
    from spark_kafka_sink.protocol.headers import RequestHeader
    from spark_kafka_sink.protocol.schema import VersionRange

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


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
    #: Address of the client, as far as it is known.
    client_host: str = ""
    #: Name of the listener that the client came to.
    listener: str = ""
    #: What the handler kept when it last answered `Delayed`; None the first time.
    kept: object = None

    @property
    def version(self) -> int:
        """API version of the request and its answer."""
        return self.header.request_api_version

    @property
    def nodes(self) -> dict[int, Node]:
        """All brokers, by id, with the addresses that they have for the client's listener."""
        return self.cluster.nodes_at(self.listener)

    def decode_budget(self) -> DecodeBudget:
        """Return what the record batches of this request may cost to decode."""
        return DecodeBudget(
            self.settings.request_max_decompressed_bytes, self.settings.request_max_decoded_elements
        )

    def fenced_as_of(self, first_version: int, error_code: ErrorCode) -> ErrorCode:
        """Return an error as a client can read it that has known PRODUCER_FENCED since a version.

        Before that, it is INVALID_PRODUCER_EPOCH (KIP-588).
        """
        if error_code is ErrorCode.PRODUCER_FENCED and self.version < first_version:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return error_code

    @property
    def client_id(self) -> str:
        """What the client calls itself."""
        return self.header.client_id or ""

    @property
    def now_ms(self) -> int:
        """The time in milliseconds since 1970."""
        return int(self.now * 1000)


@dataclass(frozen=True, slots=True)
class Delayed:
    """No answer yet: ask again when something watched has changed, or when the time is up."""

    #: Seconds since 1970.
    until: float
    #: Partitions, or whatever else the cluster reports as changed.
    watched: frozenset[Hashable] = frozenset()
    #: Handed back with the request as `RequestContext.kept`.
    kept: object = None


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
