from __future__ import annotations

import builtins
import json
import logging
import os
import threading

import openlineage.client
import pytest

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.spark import lineage
from spark_kafka_sink.spark.lineage import (
    EventSender,
    LineageStore,
    PlannedRead,
    best_effort,
    check_library,
    connect_client,
    is_process_alive,
    report_trouble,
)
from spark_kafka_sink.spark.lineage_events import (
    COMPLETE,
    LineageRun,
    OffsetRange,
    input_dataset,
    output_dataset,
)
from tests.support.spark.lineage_backend import LineageBackend

RUN = LineageRun("5f6b9a30-0000-4000-8000-000000000000", "copy")
#: Longer than anything takes here.
LONG = 120.0


@pytest.fixture(autouse=True)
def _idle_threads_end(monkeypatch):
    """Make idle threads end with their test."""
    monkeypatch.setattr(lineage, "_IDLE_SECONDS", 0.01)
    yield
    for thread in threading.enumerate():
        if thread.name == "kafka-lineage":
            thread.join(LONG)


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """Yield a backend that the client of OpenLineage finds by its environment variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    backend = LineageBackend()
    monkeypatch.setenv("OPENLINEAGE_URL", backend.url)
    yield backend
    backend.close()


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Make this process look like one that Spark has started on the driver."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


class Gate:
    """Sends events only when it is open."""

    def __init__(self):
        self.sent = []
        self.open = threading.Event()
        self.is_second_sent = threading.Event()

    def connect(self):
        """Return what sends an event."""
        return self._emit

    def _emit(self, event):
        assert self.open.wait(LONG)
        self.sent.append(event["n"])
        if len(self.sent) == 2:
            self.is_second_sent.set()


class Troubles(list):
    """Keeps what a sender says."""

    def __call__(self, reason):
        """Keep a reason."""
        self.append(reason)


def a_read(job=None, at=1.0, topic="t", process_id=None):
    inputs = [input_dataset("kafka://a:1", topic, [], [])]
    return PlannedRead(job, inputs, at, process_id)


def test_the_client_of_openlineage_sends_events(backend):
    """An event arrives as it was made, through the client and its environment variables."""
    troubles = Troubles()
    sender = EventSender(connect_client, troubles)
    ranges = [OffsetRange(0, 0, 4)]
    event = RUN.event(
        COMPLETE,
        at=1.5,
        environ={},
        inputs=[input_dataset("kafka://a:1", "t", [{"name": "v", "type": "string"}], ranges)],
        outputs=[output_dataset("kafka://a:1", "u", [], ranges, rows=4, size=99)],
        spark_version="4.3.0",
    )
    assert sender.send(event, LONG)
    [arrived] = backend.events
    assert event["inputs"] == arrived["inputs"]
    assert event["outputs"] == arrived["outputs"]
    assert event["job"] == arrived["job"]
    engine = "processing_engine"
    assert event["run"]["facets"][engine] == arrived["run"]["facets"][engine]
    assert ("COMPLETE", event["eventTime"], event["producer"]) == (
        arrived["eventType"],
        arrived["eventTime"],
        arrived["producer"],
    )
    assert [] == troubles


def test_openlineage_disabled_sends_nothing(backend, monkeypatch):
    """OPENLINEAGE_DISABLED is obeyed, as are the other settings of the client."""
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    troubles = Troubles()
    assert EventSender(connect_client, troubles).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    assert ([], []) == (backend.events, troubles)


def test_a_refusal_is_told_by_its_status(backend):
    """A backend that refuses an event is named by its HTTP status, without its address."""
    backend.status = 401
    troubles = Troubles()
    EventSender(connect_client, troubles).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    assert ["the backend answered HTTP 401"] == troubles


def test_an_absent_backend_is_one_line(backend, monkeypatch, caplog, driver, unused_port):
    """The client's retries log nothing, and only the first failure of an application does."""
    config = driver / "lineage.yml"
    url = f"http://user:secret@127.0.0.1:{unused_port}"
    retry = {"total": 2, "backoff_factor": 0}
    config.write_text(json.dumps({"transport": {"type": "http", "url": url, "retry": retry}}))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    for sender in (EventSender(connect_client, report_trouble) for _ in range(2)):
        for _ in range(2):
            sender.send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["spark_kafka_sink.spark.lineage"] == [record.name for record in told]
    assert "lineage is incomplete: ConnectionError." in told[0].getMessage()
    assert "secret" not in caplog.text


def test_retries_of_other_threads_are_logged(backend, caplog):
    """Only what the sending thread's retries log is dropped."""
    said = logging.getLogger("urllib3.connectionpool")
    with lineage._ClientLines(Troubles()):
        said.warning("mine")
        thread = threading.Thread(target=said.warning, args=("of another",))
        thread.start()
        thread.join()
    said.warning("later")
    assert ["of another", "later"] == [record.getMessage() for record in caplog.records]


def test_what_the_client_logs_about_failures_is_trouble_without_its_arguments(caplog):
    """A failure that the client only logs is reported, and no secret of it; a hint is logged."""
    troubles = Troubles()
    with lineage._ClientLines(troubles):
        logging.getLogger("openlineage.client.client").error("Couldn't read `%s`: ", "secret")
        logging.getLogger("openlineage.client.client").error(ValueError("secret"))
        logging.getLogger("openlineage.client.client").warning("a hint")
        composite = logging.getLogger("openlineage.client.transport.composite")
        composite.warning("Transport %s failed: %s", "secret", "secret")
    assert ["a hint"] == [record.getMessage() for record in caplog.records]
    assert [
        "OpenLineage's client said: Couldn't read `...`",
        "OpenLineage's client said: ValueError",
        "OpenLineage's client said: Transport ... failed: ...",
    ] == troubles


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_would_lose_the_event_is_trouble(backend, status):
    """A redirect that is followed by a GET is not taken for success."""
    backend.status, backend.location = status, f"{backend.url}/elsewhere"
    troubles = Troubles()
    EventSender(connect_client, troubles).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    assert [f"the backend answered HTTP {status}"] == troubles


def test_a_redirect_that_keeps_the_event_is_followed(backend):
    """HTTP 307 sends the event to another address."""
    other = LineageBackend()
    backend.status, backend.location = 307, f"{other.url}/lineage"
    troubles = Troubles()
    EventSender(connect_client, troubles).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    other.close()
    assert ([], 1) == (troubles, len(other.events))


def test_without_a_backend_lineage_says_what_to_set(backend, monkeypatch, caplog):
    """A client without settings is trouble, instead of a line of its own for each process."""
    monkeypatch.delenv("OPENLINEAGE_URL")
    troubles = Troubles()
    EventSender(connect_client, troubles).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    assert 1 == len(troubles)
    assert "no setting of OpenLineage names a backend: set OPENLINEAGE_URL" in troubles[0]
    assert [] == caplog.records


def test_a_console_that_was_asked_for_is_no_trouble(backend, monkeypatch):
    """The transport `console` logs events, if it is named."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "console")
    troubles = Troubles()
    EventSender(connect_client, troubles).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    assert [] == troubles


def test_a_broken_config_file_shows_no_line_of_it(backend, monkeypatch, tmp_path, caplog):
    """An unreadable file of settings is one reason, without a traceback."""
    monkeypatch.delenv("OPENLINEAGE_URL")
    config = tmp_path / "openlineage.yml"
    config.write_text('transport: {type: http, url: "http://u:secret@a')
    troubles = Troubles()
    EventSender(connect_client, troubles).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    assert "OpenLineage's client said: Couldn't read content" in troubles[0]
    assert [] == caplog.records
    assert "secret" not in str(troubles)


def test_an_event_of_an_asynchronous_transport_is_waited_for(backend, monkeypatch):
    """An event counts as sent when the backend has it, also if a thread of the client sends it."""
    calls = []

    class Asynchronous:
        kind = "async_http"

        def wait_for_completion(self, timeout):
            calls.append(timeout)

    class Client(openlineage.client.OpenLineageClient):
        def __init__(self):
            super().__init__(transport=Asynchronous())

        def emit(self, event):
            calls.append(event.job.name)

    monkeypatch.setattr(openlineage.client, "OpenLineageClient", Client)
    assert EventSender(connect_client, Troubles()).send(RUN.event(COMPLETE, at=0, environ={}), LONG)
    assert ["copy", lineage._SENT_SECONDS] == calls


def test_a_backend_that_hangs_is_waited_for_once():
    """After an event that was late nobody waits again, until one has been sent."""
    gate, troubles = Gate(), Troubles()
    sender = EventSender(gate.connect, troubles)
    assert not sender.send({"n": 1}, 0.01)
    assert ["an event could not be sent within 0.01 s"] == troubles
    # This would wait for ever.
    assert not sender.send({"n": 2}, LONG**4)
    gate.open.set()
    assert gate.is_second_sent.wait(LONG)
    assert sender.send({"n": 3}, LONG)
    assert ([1, 2, 3], 1) == (gate.sent, len(troubles))


def test_nothing_is_waited_for_unless_asked():
    """A sender without a wait returns at once."""
    gate, troubles = Gate(), Troubles()
    assert not EventSender(gate.connect, troubles).send({"n": 1})
    gate.open.set()
    assert [] == troubles


def test_events_that_a_slow_backend_does_not_take_are_dropped():
    """The queue has an end, and what finds no place in it is reported."""
    gate, troubles = Gate(), Troubles()
    sender = EventSender(gate.connect, troubles)
    for number in range(lineage._MOST_WAITING + 2):
        sender.send({"n": number})
    assert {"the backend takes events too slowly"} == set(troubles)
    gate.open.set()


def test_an_idle_thread_ends_and_a_later_event_starts_another():
    """The thread of a sender ends when there is nothing to send, and begins again."""
    gate, troubles = Gate(), Troubles()
    gate.open.set()
    sender = EventSender(gate.connect, troubles)
    for number in range(2):
        assert sender.send({"n": number}, LONG)
        thread = sender._thread
        if thread is not None:
            thread.join(LONG)
            assert not thread.is_alive()
    assert ([0, 1], []) == (gate.sent, troubles)


def test_a_client_that_cannot_be_created_is_trouble():
    """An error of the client's settings is no error of the job, and is tried again."""
    troubles = Troubles()
    calls = []

    def connect():
        calls.append(1)
        raise ValueError("url has a password")

    sender = EventSender(connect, troubles)
    assert sender.send({"n": 1}, LONG)
    assert sender.send({"n": 2}, LONG)
    assert (2, ["ValueError", "ValueError"]) == (len(calls), troubles)


def test_a_missing_library_is_an_error_of_the_options(monkeypatch):
    """Without the extra, lineage=openlineage says how to install it."""
    monkeypatch.setattr(lineage, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'spark-kafka-sink\[lineage\]'"):
        check_library()


def test_an_installed_library_is_accepted():
    """With the extra, there is no error."""
    check_library()


def test_an_error_in_making_an_event_is_no_error_of_the_job(caplog):
    """Whatever goes wrong with lineage is a warning, without the error's text."""
    with best_effort():
        raise RuntimeError("secret")
    with best_effort():
        builtins.__import__("no_such_module_as_this")
    assert ["RuntimeError.", "No module named 'no_such_module_as_this'."] == [
        record.getMessage().partition(": ")[2].partition(": ")[2].partition(" Reads")[0]
        for record in caplog.records
    ]


def test_a_write_takes_the_reads_of_its_session(driver):
    """A read is an input of the next write of the session with the same job, and of no other."""
    mine, other = LineageStore(driver, "a"), LineageStore(driver, "b")
    for store, read in (
        (mine, a_read(at=1.0)),
        (mine, a_read(job="copy", at=2.0)),
        (mine, a_read(topic="u", at=3.0)),
        (other, a_read(topic="v")),
    ):
        store.add_read(read)
    assert ["t", "u"] == [read.inputs[0]["name"] for read in mine.take_reads(None)]
    assert [] == mine.take_reads(None)
    assert [a_read(job="copy", at=2.0)] == mine.take_reads("copy")
    assert ["v"] == [read.inputs[0]["name"] for read in other.take_reads(None)]


def test_reads_that_nobody_writes_are_forgotten(driver):
    """The oldest reads are removed."""
    store = LineageStore(driver, "a")
    for number in range(lineage._MOST_KEPT + 3):
        store.add_read(a_read(at=float(number), topic=f"t{number}"))
    assert lineage._MOST_KEPT == len(store.take_reads(None))


def test_many_streams_run_side_by_side(driver):
    """What was sent about a stream is not forgotten because of others that write, too."""
    store = LineageStore(driver, "a")
    for number in range(100):
        store.set_run_state(f"r{number}", {"sent_at": number})
        store.set_stream(f"s{number}", a_read(at=100.0))
    assert 100 == len(store.runs())
    assert 100 == len(store.streams(None, at=100.0, is_alive=lambda process_id: True))


def test_streams_count_that_have_planned_just_now_and_are_alive(driver):
    """A stream is an input if its process is alive and has planned within the last minute."""
    store = LineageStore(driver, "a")
    for name, read in {
        "old": a_read(at=39.0),
        "mine": a_read(at=41.0, topic="mine", process_id=1),
        "dead": a_read(at=41.0, process_id=2),
        "later": a_read(at=101.0),
        "named": a_read(job="copy", at=100.0),
    }.items():
        store.set_stream(name, read)
    found = store.streams(None, at=100.0, is_alive=lambda process_id: process_id == 1)
    assert ["mine"] == [read.inputs[0]["name"] for read in found]
    store.remove_stream("mine")
    store.remove_stream("mine")
    assert ["t"] == [
        read.inputs[0]["name"]
        for read in store.streams(None, at=100.0, is_alive=lambda process_id: True)
    ]


def test_what_was_sent_about_a_run_is_kept_until_it_ends(driver):
    """The state of a run is that of the last call, and empty at first and in the end."""
    store = LineageStore(driver, "a")
    assert ({}, {}) == (store.run_state("r"), store.runs())
    store.set_run_state("r", {"sent_at": 1})
    store.set_run_state("r", {"sent_at": 2})
    assert ({"sent_at": 2}, {"r": {"sent_at": 2}}) == (store.run_state("r"), store.runs())
    store.remove_run("r")
    store.remove_run("r")
    assert {} == store.run_state("r")


def test_there_is_no_store_outside_of_spark(tmp_path):
    """In a process that Spark has not started there is nothing to keep files in."""
    assert LineageStore.of_driver({}) is None
    assert LineageStore.of_driver({"SPARK_LOCAL_DIRS": str(tmp_path)}) is not None


def test_files_of_lineage_are_private(driver):
    """Directories and files can be read by their user alone."""
    LineageStore(driver / "root", "a").add_read(a_read())
    modes = {path.stat().st_mode & 0o077 for path in (driver / "root").rglob("*")}
    assert {0} == modes


def test_a_process_is_alive_until_it_ends(monkeypatch):
    """The process that asks is alive; one that is gone is not; one of another user is."""
    assert is_process_alive(os.getpid())
    monkeypatch.setattr(os, "kill", _raising(ProcessLookupError))
    assert not is_process_alive(1)
    monkeypatch.setattr(os, "kill", _raising(PermissionError))
    assert is_process_alive(1)


def _raising(error):
    def kill(*_):
        raise error

    return kill
