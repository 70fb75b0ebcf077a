"""The rules of a fault proxy as data, and the counters by which they select frames.

A fault names a kind of frame (the request or the response of an API) and strikes the nth one that
passes after the fault was armed, counted over all connections. Every strike is recorded: a test
that relies on a fault must first check that the fault struck.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable


class Side(Enum):
    """The direction of a frame."""

    REQUEST = "request"
    ANSWER = "answer"


class Action(Enum):
    """What happens to the frame that is struck, and to its connection."""

    #: The frame is dropped; the connection is closed cleanly.
    SWALLOW = "swallow"
    #: The frame is dropped; the connection is reset.
    RESET = "reset"
    #: The frame and all later ones in that direction are dropped; the connection remains open.
    HANG = "hang"
    #: A part of the frame (`at`) is forwarded; the connection is closed cleanly.
    CUT = "cut"
    #: The frame is forwarded after `seconds`.
    DELAY = "delay"
    #: A part of the frame (`at`) is forwarded, the rest after `seconds`.
    STALL = "stall"
    #: The frame is forwarded byte by byte.
    SPLIT = "split"
    #: The frame is held for at most `seconds`, and forwarded in one piece with the next one.
    MERGE = "merge"
    #: A response: everything after the correlation id is replaced by random bytes.
    #: A request: the bit at `at` of its length is flipped.
    GARBLE = "garble"
    #: The correlation id is replaced by another one.
    WRONG_CORRELATION_ID = "wrong correlation id"
    #: The frame is forwarded twice.
    REPEAT = "repeat"
    #: The size prefix is replaced by `size`.
    WRONG_SIZE = "wrong size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One rule."""

    side: Side
    action: Action
    api_key: ApiKey = ApiKey.PRODUCE
    #: The first frame to strike, counted from 1 since the rule was armed.
    nth: int = 1
    #: How many consecutive frames are struck.
    times: int = 1
    seconds: float = 0.2
    #: The position at which a frame is cut, stalled or garbled, as a fraction of its length.
    at: float = 0.5
    size: int = 2**31 - 1

    def __str__(self) -> str:
        """Return a description for logs."""
        frames = f"{self.api_key.name} {self.side.value} {self.nth}"
        if self.times > 1:
            frames += f" to {self.nth + self.times - 1}"
        return f"{self.action.value}: {frames}"


@dataclass(frozen=True, slots=True)
class Strike:
    """The record that a fault struck a frame of `frame_bytes` bytes, including its size prefix."""

    fault: Fault
    connection: int
    frame_bytes: int


class _Armed:
    """A rule, and how many frames of its kind have passed."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0

    def strikes(self) -> bool:
        """Count one more frame; return whether to strike it."""
        self.seen += 1
        return self.fault.nth <= self.seen < self.fault.nth + self.fault.times

    @property
    def is_spent(self) -> bool:
        return self.seen >= self.fault.nth + self.fault.times - 1


class FaultRules:
    """The armed rules and their strikes; safe to use from several threads."""

    def __init__(self) -> None:
        """Create an empty set of rules."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._armed: list[_Armed] = []
        self._strikes: list[Strike] = []
        #: All frames that have passed, struck or not.
        self.frames: Counter[tuple[Side, int]] = Counter()

    def arm(self, *faults: Fault) -> None:
        """Add rules, which count frames from now on."""
        with self._lock:
            self._armed += map(_Armed, faults)

    def disarm(self) -> None:
        """Remove all rules, and forget their strikes."""
        with self._lock:
            self._armed.clear()
            self._strikes.clear()

    @property
    def strikes(self) -> list[Strike]:
        """The strikes so far, in order."""
        with self._lock:
            return list(self._strikes)

    def wait_for(self, condition: Callable[[list[Strike]], bool], seconds: float) -> bool:
        """Wait until the strikes fulfil a condition; return False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._strikes), seconds)

    def strike(
        self, side: Side, api_key: int, *, connection: int, frame_bytes: int
    ) -> Fault | None:
        """Count a frame for all rules, and return the first one that strikes it, or None."""
        with self._changed:
            self.frames[side, api_key] += 1
            hits = [
                armed.fault
                for armed in self._armed
                if armed.fault.side is side and armed.fault.api_key == api_key and armed.strikes()
            ]
            self._armed = [armed for armed in self._armed if not armed.is_spent]
            if not hits:
                return None
            self._strikes.append(Strike(hits[0], connection, frame_bytes))
            self._changed.notify_all()
            return hits[0]
