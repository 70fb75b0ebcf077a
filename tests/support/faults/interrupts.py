"""Ctrl-C at a moment that a test chooses."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.devbroker.net.faults import NeverAnswer

if TYPE_CHECKING:
    from types import FrameType

#: Seconds in which a thread handles a signal, unless it has missed it.
_MISSED_AFTER = 0.2

needs_signals = pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="the system cannot send a signal to a thread"
)


def interrupt() -> None:
    """Interrupt the main thread as Ctrl-C does, wherever it waits.

    Python misses a signal that arrives just before a wait: nobody sees it until the wait ends. A
    user would press Ctrl-C again, and so does this.
    """
    main = threading.main_thread().ident
    assert main is not None
    frame = sys._current_frames()[main]
    place = frame.f_lasti
    signal.pthread_kill(main, signal.SIGINT)
    if main != threading.get_ident():
        threading.Thread(target=_repeat_if_missed, args=(main, frame, place), daemon=True).start()


def _repeat_if_missed(main: int, frame: FrameType, place: int) -> None:
    """Interrupt the main thread again as long as it has not left a place."""
    while True:
        time.sleep(_MISSED_AFTER)
        if sys._current_frames().get(main) is not frame or frame.f_lasti != place:
            return
        signal.pthread_kill(main, signal.SIGINT)


def interrupting(*_: object) -> NeverAnswer:
    """Interrupt the main thread when a request arrives at a broker, and do not answer it."""
    interrupt()
    return NeverAnswer()
