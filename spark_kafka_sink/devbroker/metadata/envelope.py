"""Messages between the brokers of a cluster, with the brokers that send and receive them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from spark_kafka_sink.devbroker.metadata.quorum import (
    FetchMetadataRequest,
    FetchMetadataResponse,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

#: The receiver of a request to the controller, whichever broker that is.
CONTROLLER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    """A client's request for the controller, forwarded by the broker that got it (KIP-590).

    It stands for Kafka's Envelope request, which has the bytes of the client's.
    """

    request: AnyRequest
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedResponse:
    """The controller's response for a client; None if the receiver is not the controller."""

    response: ApiResponse | None
    error_code: ErrorCode = ErrorCode.NONE


Request: TypeAlias = AnyRequest | FetchMetadataRequest | ForwardedRequest
Response: TypeAlias = ApiResponse | FetchMetadataResponse | ForwardedResponse


class Envelope(NamedTuple):
    """A message between two brokers, or a client and a broker, by their ids.

    A response has the sender, the receiver and the correlation id of its request reversed.
    """

    sender: int
    receiver: int
    correlation_id: int
    message: Request | Response

    def response(self, message: Response) -> Envelope:
        """Return the envelope of the response to this request."""
        return Envelope(self.receiver, self.sender, self.correlation_id, message)
