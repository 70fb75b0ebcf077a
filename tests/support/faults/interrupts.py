"""Ctrl-C at a moment that a test chooses."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_kafka_sink
from spark_kafka_sink.devbroker.net.faults import NeverAnswer
from spark_kafka_sink.spark.worker import without_collector

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

#: Seconds in which a thread handles a signal, unless it has missed it.
_MISSED_AFTER = 0.2
#: The sources in which `interrupted_anew` strikes: the package, and what of Python has locks.
_INTERRUPTED = (
    str(Path(spark_kafka_sink.__file__).parent),
    str(Path(asyncio.__file__).parent),
    str(Path(concurrent.futures.__file__).parent),
    contextlib.__file__,
    threading.__file__,
)

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


def interrupted_anew(
    seen: set[tuple[CodeType, int, str]], call: Callable[[], object]
) -> KeyboardInterrupt | None:
    """Raise KeyboardInterrupt in a call at the first place that is not among `seen`; add it there.

    Places are those at which Python handles signals: when a function begins, and after each
    function of the C library, but not when a `with` has called one of the latter to enter. Return
    the error, which holds all frames, as that of an interactive Python does; None without one.
    """
    struck: list[KeyboardInterrupt] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event not in {"call", "c_return"} or not code.co_filename.startswith(_INTERRUPTED):
            return
        place = code, frame.f_lineno, event
        if place not in seen:
            sys.setprofile(None)
            seen.add(place)
            name = f"{Path(code.co_filename).name}:{frame.f_lineno} ({event})"
            struck.append(KeyboardInterrupt(name))
            raise struck[0]

    # Python itself drops what is raised while it closes a generator.
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
    # The finalizers of what other tests have left would be calls, too.
    with without_collector():
        sys.setprofile(profile)
        try:
            call()
        except KeyboardInterrupt:
            assert struck
        finally:
            sys.setprofile(None)
            sys.unraisablehook = unraisable
    return next(iter(struck), None)
