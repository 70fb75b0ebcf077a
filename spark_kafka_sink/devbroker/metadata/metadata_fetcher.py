"""A broker's fetcher of the metadata log: one fetch at a time, from the controller.

A fetch also finds the controller: whichever broker gets it names the controller that it knows. If
there is no answer, the next broker is asked. Records are applied to the image in their order and
once, even if their response was given up before it arrived.

No IO: `next_request` returns what to send, and the owner says what became of it. Times are in
seconds; `now` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.metadata.quorum import (
    NO_CONTROLLER,
    FetchMetadataRequest,
    FetchMetadataResponse,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from spark_kafka_sink.devbroker.metadata.image import MetadataDelta, MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchSettings:
    """The times of fetches, with the defaults of Kafka's brokers."""

    #: How long the controller may hold a fetch without news (KafkaRaftClient.MAX_FETCH_WAIT_MS).
    max_wait: float = 0.5
    #: How long to wait for a response (controller.quorum.request.timeout.ms).
    request_timeout: float = 2.0
    #: The wait after a fetch in vain (controller.quorum.retry.backoff.ms).
    retry_backoff: float = 0.02


class MetadataFetch(NamedTuple):
    """A fetch to send, and the broker to send it to."""

    receiver: int
    request: FetchMetadataRequest


class MetadataFetcher:
    """Keeps the image of one broker up to date."""

    def __init__(
        self,
        node_id: int,
        image: MetadataImage,
        nodes: Collection[int],
        settings: MetadataFetchSettings | None = None,
    ) -> None:
        """Begin with the first of `nodes`, the ids of all brokers."""
        self._node_id = node_id
        self._image = image
        self._nodes = sorted(nodes)
        self._settings = settings or MetadataFetchSettings()
        #: The broker that this one takes for the controller.
        self.controller_id = self._nodes[0]
        #: The latest epoch of the controller that this broker knows.
        self.controller_epoch = 0
        self._is_in_flight = False
        self._fetch_at = 0.0
        self._expires_at = NEVER

    @property
    def deadline(self) -> float:
        """When `next_request` must be called at the latest."""
        return self._expires_at if self._is_in_flight else self._fetch_at

    def next_request(self, now: float) -> MetadataFetch | None:
        """Return the fetch to send now; None to wait."""
        if self._is_in_flight and now >= self._expires_at:
            # The link may be cut, so nothing is known of the controller any more.
            self._ask_next()
            self._is_in_flight = False
            self._fetch_at = now
        if self._is_in_flight or now < self._fetch_at:
            return None
        self._is_in_flight = True
        self._expires_at = now + self._settings.request_timeout
        return MetadataFetch(
            self.controller_id,
            FetchMetadataRequest(
                node_id=self._node_id,
                offset=self._image.offset + 1,
                max_wait=self._settings.max_wait,
            ),
        )

    def fail(self, now: float) -> None:
        """Handle that the fetch could not be sent, or its connection was closed."""
        self._ask_next()
        self._retry(now)

    def handle(
        self, sender: int, response: FetchMetadataResponse, now: float, *, is_expected: bool
    ) -> MetadataDelta | None:
        """Apply the records of a response; return what they changed, or None without new ones.

        `is_expected` tells the response to the fetch in flight from one that was given up.
        """
        self.controller_epoch = max(self.controller_epoch, response.controller_epoch)
        if is_expected:
            if response.controller_id == sender:
                self._is_in_flight = False
                self._fetch_at = now
            else:
                self._retry(now)
                if response.controller_id == NO_CONTROLLER:
                    self._ask_next()
                else:
                    self.controller_id = response.controller_id
        next_offset = self._image.offset + 1
        records = response.records[max(0, next_offset - response.offset) :]
        if response.offset > next_offset or not records:
            return None
        return self._image.apply(records)

    def _ask_next(self) -> None:
        position = self._nodes.index(self.controller_id)
        self.controller_id = self._nodes[(position + 1) % len(self._nodes)]

    def _retry(self, now: float) -> None:
        self._is_in_flight = False
        self._fetch_at = now + self._settings.retry_backoff
