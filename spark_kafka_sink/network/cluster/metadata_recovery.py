"""When to forget the known brokers and start again from bootstrap.servers.

With metadata.recovery.strategy=rebootstrap there are three triggers: no known broker can be
reached, which the network client detects itself (KIP-899); a broker answers REBOOTSTRAP_REQUIRED;
or brokers can be reached, but none has returned metadata for
metadata.recovery.rebootstrap.trigger.ms (both KIP-1102), which is timed here. With `none` the
client never rebootstraps. Reads no clock.
"""

from __future__ import annotations

from spark_kafka_sink.network.base.times import NEVER


class MetadataRecovery:
    """The time for which metadata requests have failed; callers pass times in seconds."""

    def __init__(self, *, enabled: bool, trigger: float) -> None:
        """Set whether the strategy is `rebootstrap`, and the trigger in seconds."""
        self.is_enabled = enabled
        self._trigger = trigger
        self._asking_since: float | None = None

    def asking(self, now: float) -> None:
        """Record that metadata is being requested."""
        if self._asking_since is None:
            self._asking_since = now

    def answered(self) -> None:
        """Record that metadata has arrived."""
        self._asking_since = None

    def due_at(self) -> float:
        """Return when to rebootstrap, whether or not brokers can be reached."""
        if not self.is_enabled or self._asking_since is None:
            return NEVER
        return self._asking_since + self._trigger

    def rebootstrapped(self, now: float) -> None:
        """Record that the known brokers were forgotten, and restart the timer."""
        self._asking_since = now
