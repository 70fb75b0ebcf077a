"""What a fault proxy does to which frame: rules as data, and the counting that aims them.

A fault names a kind of frame (the request or the answer of an API) and strikes the nth of that
kind that passes after it was armed, over all connections together. Every strike is written down:
a test that proves something by a fault must prove first that the fault struck.
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
    """Which way a frame goes."""

    REQUEST = "request"
    ANSWER = "answer"


class Action(Enum):
    """What happens to the frame that is struck, and to its connection."""

    #: It goes nowhere; the connection is closed in an orderly way.
    SWALLOW = "swallow"
    #: It goes nowhere; the connection is reset.
    RESET = "reset"
    #: It goes nowhere, nor does anything after it in that direction; the connection stays open.
    HANG = "hang"
    #: A part of it (`at`) goes on; the connection is closed in an orderly way.
    CUT = "cut"
    #: It goes on after `seconds`.
    DELAY = "delay"
    #: A part of it (`at`) goes on, the rest after `seconds`.
    STALL = "stall"
    #: It goes on byte by byte.
    SPLIT = "split"
    #: It waits for the next frame, `seconds` at most, and goes on in one piece with it.
    MERGE = "merge"
    #: An answer: all behind the correlation id is replaced by random bytes.
    #: A request: the bit at `at` of its length is turned over.
    GARBLE = "garble"
    #: The correlation id is another one.
    WRONG_CORRELATION_ID = "wrong correlation id"
    #: It goes on twice.
    REPEAT = "repeat"
    #: The size before it is `size`.
    WRONG_SIZE = "wrong size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One rule."""

    side: Side
    action: Action
    api_key: ApiKey = ApiKey.PRODUCE
    #: The first frame that is struck, counted from 1 since the rule was armed.
    nth: int = 1
    #: How many frames in a row are struck.
    times: int = 1
    seconds: float = 0.2
    #: Where a frame is cut, stalled or garbled, as a part of its length.
    at: float = 0.5
    size: int = 2**31 - 1

    def __str__(self) -> str:
        """Say it in the words of a log."""
        frames = f"{self.api_key.name} {self.side.value} {self.nth}"
        if self.times > 1:
            frames += f" to {self.nth + self.times - 1}"
        return f"{self.action.value}: {frames}"


@dataclass(frozen=True, slots=True)
class Strike:
    """That a fault struck a frame of `frame_bytes` bytes, size included."""

    fault: Fault
    connection: int
    frame_bytes: int


class _Armed:
    """A rule, and how many frames of its kind it has seen."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0

    def strikes(self) -> bool:
        """Count one more frame; tell whether it is one to strike."""
        self.seen += 1
        return self.fault.nth <= self.seen < self.fault.nth + self.fault.times

    @property
    def is_spent(self) -> bool:
        return self.seen >= self.fault.nth + self.fault.times - 1


class FaultRules:
    """The rules that are armed, and what has been struck. May be used from several threads."""

    def __init__(self) -> None:
        """Arm nothing."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._armed: list[_Armed] = []
        self._strikes: list[Strike] = []
        #: Frames seen, struck or not.
        self.frames: Counter[tuple[Side, int]] = Counter()

    def arm(self, *faults: Fault) -> None:
        """Add rules; each counts frames from now on."""
        with self._lock:
            self._armed += map(_Armed, faults)

    def disarm(self) -> None:
        """Drop all rules, and forget what they struck."""
        with self._lock:
            self._armed.clear()
            self._strikes.clear()

    @property
    def strikes(self) -> list[Strike]:
        """What has been struck, in order."""
        with self._lock:
            return list(self._strikes)

    def wait_for(self, condition: Callable[[list[Strike]], bool], seconds: float) -> bool:
        """Wait until the strikes fulfil a condition; False when they did not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._strikes), seconds)

    def strike(
        self, side: Side, api_key: int, *, connection: int, frame_bytes: int
    ) -> Fault | None:
        """Count a frame for all rules, and give the first of them that strikes it."""
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
