"""The producer ids that a broker gives to producers (Kafka's RPCProducerIdManager).

The controller gives each broker blocks of ids, so that no two producers ever have the same. The
first block is asked for when a producer needs an id, and the next one when most of a block is used.
While there is none, producers get COORDINATOR_LOAD_IN_PROGRESS, and ask again.

One request is in flight at a time. After a failure, the next one waits for a moment, and until a
producer needs an id. No IO: `next_request` returns what to send. Times are in seconds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.messages.allocate_producer_ids import (
        AllocateProducerIdsResponse,
    )

logger = logging.getLogger(__name__)

#: The part of a block after which the next one is asked for.
_PREFETCH_AFTER: Final = 0.9
#: The wait after a failure (RETRY_BACKOFF_MS).
_RETRY_BACKOFF: Final = 0.05
#: After which time a request without a response is given up (request.timeout.ms).
_REQUEST_TIMEOUT: Final = 30.0


class ProducerIdBlocks:
    """The block of ids that is being used, and the one after it."""

    def __init__(self, node_id: int) -> None:
        """Begin without a block."""
        self._node_id = node_id
        self._current = range(0)
        self._prefetch_at = -1
        self._next: range | None = None
        #: Whether a producer needs, or will soon need, the next block.
        self._is_needed = False
        self._is_in_flight = False
        self._send_at = 0.0
        self._expires_at = NEVER

    @property
    def deadline(self) -> float:
        """When `next_request` must be called at the latest."""
        if self._is_in_flight:
            return self._expires_at
        return self._send_at if self._is_needed else NEVER

    def next_id(self) -> int:
        """Return an id that no other producer has.

        Raises RefusedError with COORDINATOR_LOAD_IN_PROGRESS if there is no block; `next_request`
        then asks for one.
        """
        if not self._current:
            if self._next is None:
                self._is_needed = True
                raise RefusedError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"broker {self._node_id} waits for the next block of producer ids",
                )
            self._use(self._next)
        producer_id, self._current = self._current[0], self._current[1:]
        if producer_id == self._prefetch_at and self._next is None:
            self._is_needed = True
        return producer_id

    def _use(self, block: range) -> None:
        self._current, self._next = block, None
        self._prefetch_at = block[int(len(block) * _PREFETCH_AFTER)]

    def next_request(self, broker_epoch: int, now: float) -> AllocateProducerIdsRequest | None:
        """Return the request to send to the controller now; None to wait."""
        if self._is_in_flight and now >= self._expires_at:
            self.fail(now)
        if self._is_in_flight or not self._is_needed or now < self._send_at:
            return None
        self._is_in_flight = True
        self._expires_at = now + _REQUEST_TIMEOUT
        return AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=broker_epoch)

    def handle(self, response: AllocateProducerIdsResponse, now: float) -> None:
        """Handle the response to the request in flight."""
        if response.error_code != ErrorCode.NONE or response.producer_id_len < 1:
            logger.info(
                "the controller gave broker %d no producer ids: %s",
                self._node_id,
                ErrorCode(response.error_code).name,
            )
            self.fail(now)
            return
        self._is_in_flight = self._is_needed = False
        first = response.producer_id_start
        self._next = range(first, first + response.producer_id_len)

    def fail(self, now: float) -> None:
        """Handle that the request could not be sent, or was not answered in time."""
        self._is_in_flight = False
        self._send_at = now + _RETRY_BACKOFF
