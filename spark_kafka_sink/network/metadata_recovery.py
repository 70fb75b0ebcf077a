"""When to forget the known brokers and begin with bootstrap.servers again.

Three occasions, with metadata.recovery.strategy=rebootstrap: no known broker can be reached, which
the network client sees for itself (KIP-899); a broker answers REBOOTSTRAP_REQUIRED; or brokers can
be reached, but none has given metadata for metadata.recovery.rebootstrap.trigger.ms (both
KIP-1102), which is counted here. With `none` the known brokers are all there is. Reads no clock.
"""

from __future__ import annotations

NEVER = float("inf")


class MetadataRecovery:
    """How long metadata has been asked for in vain; times are seconds, given by the caller."""

    def __init__(self, *, enabled: bool, trigger: float) -> None:
        """Take whether the strategy is `rebootstrap`, and the trigger in seconds."""
        self.is_enabled = enabled
        self._trigger = trigger
        self._asking_since: float | None = None

    def asking(self, now: float) -> None:
        """Note that metadata is being asked for."""
        if self._asking_since is None:
            self._asking_since = now

    def answered(self) -> None:
        """Note that metadata has come."""
        self._asking_since = None

    def due_at(self) -> float:
        """When to begin anew, whether or not brokers can be reached."""
        if not self.is_enabled or self._asking_since is None:
            return NEVER
        return self._asking_since + self._trigger

    def rebootstrapped(self, now: float) -> None:
        """Note that the known brokers were forgotten: what comes next has the full time again."""
        self._asking_since = now
