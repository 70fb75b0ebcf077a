"""What a Python worker does between two tasks."""

from __future__ import annotations

import gc
import socket
from importlib.machinery import ModuleSpec

import pytest

from spark_kafka_sink.spark.worker import prepare_next_tasks

#: PySpark's daemon, in few lines: it is the main module of its process.
DAEMON = """
import gc

def worker(sock, authenticated):
    run()

def manager(sock, tasks):
    for _ in range(tasks):
        worker(sock, True)
        gc.collect()
"""
NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
QUICKACK = (socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", None), 1)
needs_quickack = pytest.mark.skipif(
    not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has TCP_QUICKACK"
)


class _Socket(socket.socket):
    """A socket that notes its options."""

    def __init__(self, family=socket.AF_INET):
        super().__init__(family)
        self.options = []

    def setsockopt(self, *option):
        super().setsockopt(*option)
        self.options.append(option)


@pytest.fixture
def freezes(monkeypatch):
    """Return a list that grows with each freeze; nothing is frozen in the process of the tests."""
    noted = []
    monkeypatch.setattr(gc, "freeze", lambda: noted.append("freeze"))
    return noted


@pytest.fixture
def tcp(freezes):
    """Yield a TCP socket, and forget it afterwards."""
    del freezes
    prepare_next_tasks.cache_clear()
    before = gc.callbacks[:]
    with _Socket() as made:
        yield made
    gc.callbacks[:] = before
    prepare_next_tasks.cache_clear()


def run_tasks(held, tasks, run=prepare_next_tasks, name="pyspark.daemon"):
    """Run tasks as PySpark's daemon does, which holds the socket."""
    module = {"__name__": "__main__", "__spec__": ModuleSpec(name, None), "run": run}
    exec(DAEMON, module)  # noqa: S102
    module["manager"](held, tasks)


@needs_quickack
def test_after_each_task_the_next_one_is_acknowledged_at_once(tcp):
    """The system forgets the option when the worker sends its result."""
    run_tasks(tcp, 4)
    assert [NODELAY, *[QUICKACK] * 4] == tcp.options


def test_what_the_first_tasks_have_left_is_frozen(tcp, freezes):
    """The collections after later tasks need not walk it."""
    run_tasks(tcp, 1)
    assert 1 == len(freezes)
    prepare_next_tasks.cache_clear()
    gc.callbacks.clear()
    run_tasks(tcp, 5)
    assert 3 == len(freezes)


def test_a_collection_within_a_task_is_no_end_of_one(tcp, freezes):
    """What a task uses for itself is not frozen, and acknowledgements are still delayed."""

    def task():
        prepare_next_tasks()
        gc.collect()
        assert [] == freezes
        assert [NODELAY] == tcp.options

    run_tasks(tcp, 1, task)
    assert 1 == len(freezes)


def test_a_unix_domain_socket_has_no_options(tcp, freezes):
    """Nothing delays what it sends; the collector is the same."""
    del tcp
    with _Socket(socket.AF_UNIX) as unix:
        run_tasks(unix, 2)
        assert [] == unix.options
    assert 2 == len(freezes)


@pytest.mark.parametrize(
    "run",
    [
        lambda tcp: prepare_next_tasks(),
        lambda tcp: run_tasks(tcp, 2, name="another.daemon"),
        lambda tcp: run_tasks("no socket", 2),
    ],
    ids=["no daemon", "another daemon", "another variable"],
)
def test_a_process_that_is_no_worker_of_the_daemon_is_left_alone(tcp, freezes, run):
    """Windows has no daemon, and a later PySpark may hold its socket elsewhere."""
    run(tcp)
    gc.collect()
    assert [] == tcp.options
    assert [] == freezes
