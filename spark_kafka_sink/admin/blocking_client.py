"""What the blocking clients have in common: their thread, and how it is opened and closed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

from spark_kafka_sink.admin.cluster_calls import ClusterCalls
from spark_kafka_sink.admin.loop_thread import LoopThread
from spark_kafka_sink.network.base.forgotten_clients import stop_if_forgotten

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from spark_kafka_sink.config.client_config import ClientConfig

T = TypeVar("T")


class BlockingClient:
    """A client whose calls run one at a time, on a thread of its own; `close` it."""

    def __init__(self, config: ClientConfig) -> None:
        """Create the client without connecting."""
        self._thread = LoopThread("kafka-admin", lambda: ClusterCalls(config))
        self._owner_end = stop_if_forgotten(self, self._thread.close, client_id=config.client_id)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close all connections; may be called more than once.

        A call that another thread is making ends with IllegalStateError.
        """
        self._owner_end.detach()
        self._thread.close()

    def _run(
        self, function: Callable[[ClusterCalls, float], Coroutine[Any, Any, T]], timeout: float
    ) -> T:
        """Call `function` on the client's thread, with the deadline in `timeout` seconds.

        The time until the calls of other threads have ended counts.
        """
        # The loop has the same clock.
        deadline = time.monotonic() + timeout
        return self._thread.run(lambda calls: function(calls, deadline), timeout)
