"""Ctrl-C at a moment that a test chooses."""

from __future__ import annotations

import signal
import threading

import pytest

from spark_kafka_sink.devbroker.net.faults import NeverAnswer

needs_signals = pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="the system cannot send a signal to a thread"
)


def interrupt() -> None:
    """Interrupt the main thread as Ctrl-C does, wherever it waits."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def interrupting(*_: object) -> NeverAnswer:
    """Interrupt the main thread when a request arrives at a broker, and do not answer it."""
    interrupt()
    return NeverAnswer()
