"""A broker without sockets or a clock: requests in, responses out.

`handle` looks up the handler of the API and turns its errors into what Kafka would respond:
RefusedError into the error response of the API, a disk error into KAFKA_STORAGE_ERROR, anything
unexpected into UNKNOWN_SERVER_ERROR. An API, or a version of one, that this broker does not support
gets no response: it raises CloseConnectionError. Only ApiVersions responds to unsupported versions,
so that client and broker can agree on one (KIP-511).

The handlers are those of `handlers.registry`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import ANONYMOUS
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.client_quotas import (
    PRODUCER_BYTE_RATE,
    ClientRates,
    find_quota,
)
from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError, RefusedError
from spark_kafka_sink.devbroker.cluster.fetch_sessions import FetchSessions
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.devbroker.handlers.api_versions import unsupported_version
from spark_kafka_sink.devbroker.handlers.handler import Delayed, Handler, RequestContext
from spark_kafka_sink.devbroker.handlers.registry import HANDLERS
from spark_kafka_sink.devbroker.handlers.required_rights import check_rights
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.codec import read_message
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.primitives import Buffer, Reader
from spark_kafka_sink.protocol.registry import decode_request_header, encode_response, request_class

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.base.partition_faults import PartitionFault
    from spark_kafka_sink.devbroker.handlers.handler import Cluster
    from spark_kafka_sink.protocol.registry import RequestHeader
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

logger = logging.getLogger(__name__)


class Broker:
    """One broker of a cluster."""

    def __init__(
        self,
        *,
        settings: BrokerSettings | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """Join a cluster, by default a new one of this broker alone."""
        if settings is None:
            settings = BrokerSettings() if cluster is None else cluster.settings
        self.settings = settings
        self.node_id = settings.node_id
        self.cluster: Cluster = cluster or StandaloneCluster(settings=settings)
        self.client_rates = ClientRates()
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots,
            settings.fetch_session_cache_max_bytes,
        )

    def advertise(self, host: str, port: int, *, listener: str | None = None) -> None:
        """Register the address at which clients reach this broker, which now counts as running.

        `listener` names a listener whose clients use an address of their own. The broker leads
        stored partitions once `StandaloneCluster.elect` was called.
        """
        addresses = self.cluster.nodes
        if listener is not None:
            addresses = self.cluster.other_addresses.setdefault(listener, {})
        addresses[self.node_id] = Node(self.node_id, host, port)

    def decode_request(self, frame: Buffer) -> tuple[RequestHeader, AnyRequest]:
        """Decode a request, given without its size; its records are slices of `frame`.

        An ApiVersions request of an unsupported version is decoded as an empty one. Bytes after the
        request are ignored, as in Kafka: librdkafka sends three of them after a Metadata request
        for all topics. Raises DecodeError for bytes that are not a request and for a request with
        too many elements (`BrokerSettings.request_max_elements`), CloseConnectionError for an API
        or version that this broker does not support.
        """
        header, body = decode_request_header(frame)
        if self._handler(header) is None:
            return header, ApiVersionsRequest()
        cls = request_class(ApiKey(header.request_api_key))
        reader = Reader(body, self.settings.request_max_elements)
        return header, read_message(cls, reader, header.request_api_version)

    def encode_response(self, header: RequestHeader, response: ApiResponse) -> list[Buffer]:
        """Encode the response to a request as buffers, starting with its size."""
        version = 0 if self._handler(header) is None else header.request_api_version
        return encode_response(header.correlation_id, response, version)

    def handle(
        self,
        header: RequestHeader,
        request: AnyRequest,
        now: float,
        *,
        arrived: float | None = None,
        kept: object = None,
        client_host: str = "",
        principal: str = ANONYMOUS,
        listener: str = "",
        fault: PartitionFault | None = None,
        throttled: bool = False,
    ) -> ApiResponse | Delayed | None:
        """Handle a request that arrived at `arrived` (by default `now`); seconds since 1970.

        None means no response (acks=0). `Delayed` requests another call, with the same `arrived`
        and its `kept`, when something that it watches has changed or its time is up. Timers that
        are due by `now` run first. `fault` affects partitions of the response; with `throttled` the
        response is that of a client over its quota. Raises CloseConnectionError.
        """
        handler = self._handler(header)
        if handler is None:
            return unsupported_version()
        self.tick(now)
        context = self._context(header, now)
        context.arrived = now if arrived is None else arrived
        context.kept = kept
        context.client_host = client_host
        context.principal = principal
        context.listener = listener
        context.fault = fault
        context.throttled = throttled
        try:
            if self.cluster.authorizer is not None and kept is None:
                check_rights(context, request)
            return handler.handle(context, request)
        except RefusedError as refused:
            error_code, message = refused.error_code, refused.message
        except CloseConnectionError:
            raise
        except OSError as error:
            # Handlers use nothing of the operating system but the disk.
            logger.warning("cannot handle %s: %s", header, error)
            error_code, message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        except Exception:
            # As KafkaApis does: the client gets an error, the operator finds the reason in the log.
            logger.exception("cannot handle %s", header)
            error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            message = "unexpected error: see the broker's log"
        return _error(handler, context, request, error_code, message)

    def error_response(
        self, header: RequestHeader, request: AnyRequest, error_code: ErrorCode, now: float
    ) -> ApiResponse:
        """Return a response that fails the whole request, without handling it.

        Raises CloseConnectionError with acks=0, where only closing can signal a failure.
        """
        handler = self._handler(header)
        if handler is None:
            return unsupported_version()
        context = self._context(header, now)
        return _error(handler, context, request, error_code, error_code.name)

    def record_produced(
        self, header: RequestHeader, principal: str, size: int, now: float
    ) -> float:
        """Record the size of a Produce request; return for how many seconds it exceeds a quota."""
        quotas = self.cluster.client_quotas
        if not quotas:
            return 0.0
        user = principal.partition(":")[2]
        quota = find_quota(quotas, PRODUCER_BYTE_RATE, user, header.client_id or "")
        return 0.0 if quota is None else self.client_rates.record(quota, size, now)

    def tick(self, now: float) -> float | None:
        """Run the timers that are due by `now`; return when the next is due, None for never."""
        self.cluster.timers.run_due(now)
        return self.cluster.timers.next_deadline

    def _handler(self, header: RequestHeader) -> Handler | None:
        """Find the handler; return None for ApiVersions in an unsupported version."""
        handler = HANDLERS.get(header.request_api_key)
        if handler is not None and header.request_api_version in handler.versions:
            return handler
        if header.request_api_key == ApiKey.API_VERSIONS:
            return None
        raise CloseConnectionError(
            f"version {header.request_api_version} of API "
            f"{ApiKey(header.request_api_key).name} is not supported"
        )

    def _context(self, header: RequestHeader, now: float) -> RequestContext:
        return RequestContext(
            header=header,
            now=now,
            arrived=now,
            node_id=self.node_id,
            cluster=self.cluster,
            settings=self.settings,
            fetch_sessions=self.fetch_sessions,
            client_rates=self.client_rates,
        )


def _error(
    handler: Handler,
    context: RequestContext,
    request: AnyRequest,
    error_code: ErrorCode,
    message: str,
) -> ApiResponse:
    response = handler.error_response(context, request, error_code, message)
    if response is None:
        raise CloseConnectionError(f"{error_code.name} cannot be returned with acks=0: {message}")
    return response
