"""Sends the requests of TransactionManager to their brokers, one at a time.

This is the IO half of Java's Sender.maybeSendAndPollTransactionalRequest. Like the Sender's own
loop, `advance` only checks and starts: it never waits, and returns when to call it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import KafkaError, NetworkError
from spark_kafka_sink.network.base.times import NEVER
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import CoordinatorType

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.network_client import NetworkClient
    from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager
    from spark_kafka_sink.producer.transactions.txn_request_handlers import TxnRequestHandler
    from spark_kafka_sink.protocol.schema import ApiResponse

#: The finalized feature that decides which transaction protocol applies (KIP-890).
TRANSACTION_VERSION_FEATURE = "transaction.version"


class TransactionRequestSender:
    """The holder of the next request until it is sent; it passes the answer to the manager."""

    def __init__(
        self,
        client: NetworkClient,
        manager: TransactionManager,
        *,
        retry_backoff: ExponentialBackoff,
        request_timeout: float,
        clock: Callable[[], float],
        start: Callable[[Coroutine[Any, Any, None]], object],
        wakeup: Callable[[], None],
    ) -> None:
        """Create it; `start` runs a coroutine on the loop, `wakeup` calls `advance` again soon."""
        self._client = client
        self._manager = manager
        self._retry_backoff = retry_backoff
        self._request_timeout = request_timeout
        self._clock = clock
        self._start = start
        self._wakeup = wakeup
        #: The request that is waiting for its back-off or its connection.
        self._waiting: TxnRequestHandler | None = None
        self._send_at = 0.0
        self._give_up_at = 0.0
        #: Why the last request that was answered is to be sent again; None if it is not.
        self.postponed_by: BrokerError | None = None

    def advance(self, now: float, *, has_incomplete_batches: bool) -> float:
        """Send the next request if possible; return the latest time at which to call this again."""
        while True:
            if self._waiting is None:
                handler = self._manager.next_request(has_incomplete_batches=has_incomplete_batches)
                if handler is None:
                    return NEVER
                self._waiting = handler
                self._send_at = now + self._delay(handler)
                self._give_up_at = self._send_at + self._request_timeout
            if self._send_at > now:
                return self._send_at
            run_again_at = self._try_to_send(self._waiting, now)
            if run_again_at is not None:
                return run_again_at

    def _delay(self, handler: TxnRequestHandler) -> float:
        if not handler.attempts:
            return 0.0
        if handler.retry_delay is not None:
            return handler.retry_delay
        return self._retry_backoff.delay(handler.attempts - 1)

    def _try_to_send(self, handler: TxnRequestHandler, now: float) -> float | None:
        """Return when to check again if it must wait; None if the next request may be tried."""
        if handler.coordinator_type is None:
            self._waiting = None
            self._start(self._send_to_any(handler))
            return None
        node = self._manager.coordinator(handler)
        if node is None:
            self._waiting = None
            self._manager.find_coordinator(handler)
            return None
        connection = self._client.ready_connection(node)
        if connection is None:
            return self._wait_for_connection(handler, node, now)
        self._waiting = None
        self._send(handler, connection)
        return None

    def _wait_for_connection(
        self, handler: TxnRequestHandler, node: Node, now: float
    ) -> float | None:
        throttled_until = self._client.throttled_until(node)
        if throttled_until > now:
            self._give_up_at = throttled_until + self._request_timeout
            return throttled_until
        # A failed connection is backing off: by its end another broker may be the coordinator.
        if self._client.ready_at(node) > now or now >= self._give_up_at:
            self._waiting = None
            self._manager.find_coordinator_and_retry(handler)
            return None
        return self._give_up_at

    async def _send_to_any(self, handler: TxnRequestHandler) -> None:
        try:
            connection = await self._client.least_loaded_connection(
                self._clock() + self._request_timeout
            )
        except NetworkError:
            # The client stores it as its last error, for the message of a timeout.
            self.postponed_by = None
            self._manager.retry(handler)
        except Exception as error:  # noqa: BLE001  the caller that waits gets it
            self._fail(handler, error)
        else:
            self._send(handler, connection)
        self._wakeup()

    def _send(self, handler: TxnRequestHandler, connection: BrokerConnection) -> None:
        versions = connection.api_versions
        if handler.coordinator_type is CoordinatorType.TRANSACTION:
            _, init_producer_id_version = versions.versions.get(ApiKey.INIT_PRODUCER_ID, (0, 0))
            self._manager.handle_coordinator_ready(
                init_producer_id_version=init_producer_id_version,
                transaction_version=versions.finalized_features.get(TRANSACTION_VERSION_FEATURE, 0),
            )
        try:
            version = versions.version_for(handler.api_key, handler.max_version)
            handler.was_sent = True
            answer = connection.send(handler.request(version), max_version=version)
        except NetworkError:
            self._manager.find_coordinator_and_retry(handler)
        except Exception as error:  # noqa: BLE001  the caller that waits gets it
            self._fail(handler, error)
        else:
            answer.add_done_callback(lambda done: self._on_answer(handler, done))

    def _on_answer(self, handler: TxnRequestHandler, done: asyncio.Future[ApiResponse]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            try:
                self.postponed_by = self._manager.handle_response(handler, done.result())
            except Exception as raised:  # noqa: BLE001  the caller that waits gets it
                # With an IllegalStateError the manager has ended the producer (KAFKA-14831).
                self._fail(handler, raised)
        elif isinstance(error, NetworkError):
            self.postponed_by = None
            self._manager.find_coordinator_and_retry(handler)
        else:
            self._fail(handler, error)
        self._wakeup()

    def _fail(self, handler: TxnRequestHandler, error: BaseException) -> None:
        """Fail a request, whoever waits for it, and the producer."""
        if not isinstance(error, KafkaError):
            unexpected = error
            error = KafkaError(f"the request {handler.api_key.name} failed: {unexpected!r}")
            error.__cause__ = unexpected
        self._manager.handle_failure(handler, error)
        # The batches fail, too.
        self._wakeup()
