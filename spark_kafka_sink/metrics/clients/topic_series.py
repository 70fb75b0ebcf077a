"""The metrics of single topics, which end when a client no longer uses their topic.

A client may meet any number of topics in its life: a column of rows names them, or others create
and delete them for years. So the sensors of a topic are removed, together with their metrics, when
it was not used for a given time and another topic appears; and there are at most `MAX_TOPICS`, of
which the one that was used least recently gives way. A topic that is used again afterwards begins
with new totals.

Does no I/O and reads no clock. It needs no lock: the callers use it on one thread, or under theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.metrics.sensor import Sensor

#: The most topics of one client that have metrics at a time.
MAX_TOPICS: Final = 5000

SensorsT = TypeVar("SensorsT", bound="tuple[Sensor, ...]")


class TopicSeries(Generic[SensorsT]):
    """The sensors of the topics that a client uses."""

    def __init__(
        self, metrics: Metrics, create: Callable[[str], SensorsT], *, expiration: float
    ) -> None:
        """Begin without topics.

        `create` registers the sensors of a topic in `metrics`; they replace what is left of older
        ones. They stay for `expiration` seconds after their last use; infinity keeps them, up to
        `MAX_TOPICS`.
        """
        self._metrics = metrics
        self._create = create
        self._expiration = expiration
        #: With the time of the last use, in the order of these times.
        self._topics: dict[str, tuple[SensorsT, float]] = {}

    def get(self, topic: str) -> SensorsT | None:
        """Return the sensors of a topic, None if it has none; this is not a use."""
        known = self._topics.get(topic)
        return None if known is None else known[0]

    def use(self, topic: str, now: float) -> SensorsT:
        """Return the sensors of a topic that is used at `now`; create them if it has none."""
        sensors = self.get(topic)
        if sensors is None:
            self._make_room(now)
            sensors = self._create(topic)
        # Ctrl-C in between makes the next use create them again.
        self._topics.pop(topic, None)
        self._topics[topic] = sensors, now
        return sensors

    def _make_room(self, now: float) -> None:
        while self._topics:
            topic = next(iter(self._topics))
            sensors, used_at = self._topics[topic]
            if now - used_at <= self._expiration and len(self._topics) < MAX_TOPICS:
                return
            del self._topics[topic]
            for sensor in sensors:
                self._metrics.remove_sensor(sensor.name)
