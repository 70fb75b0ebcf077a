"""What Ctrl-C, exceptions of the user and forks leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink.consumer.fetch.completed_fetches import CompletedFetch
from spark_kafka_sink.consumer.interceptors import ConsumerInterceptors
from spark_kafka_sink.consumer.records.fetched_records import FetchedRecords
from spark_kafka_sink.consumer.subscription.partition_state import LeaderAndEpoch
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import CorruptRecordError
from tests.support.consumer.embedded_consuming import consuming, poll_until, take, tp, values
from tests.support.consumer.reading import fill, numbered

CLASSIC = {"group.id": "g", "group.protocol": "classic"}
CONSUMER = {"group.id": "g", "group.protocol": "consumer"}
ROOT = Path(__file__).parents[4]


@pytest.fixture
def broker():
    """Return a broker with nine records in topic `t` of one partition."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", numbered(9))
        yield broker


class InterruptedLock:
    """The consumer's lock, whose next use by the user's thread Ctrl-C interrupts."""

    def __init__(self, consumer) -> None:
        """Replace the lock of a consumer."""
        self._context = consumer._polls._context
        self._lock = self._context.lock
        self._context.lock = self

    def __enter__(self):
        """Interrupt once."""
        self._context.lock = self._lock
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        """Do nothing: it is never called."""

    def __getattr__(self, name: str) -> object:
        """Return the attribute of the lock."""
        return getattr(self._lock, name)


@pytest.mark.parametrize("method", ["poll", "poll_arrow"])
def test_nothing_is_lost_if_the_leader_changes_during_an_interrupted_poll(
    broker, monkeypatch, method
):
    """The position is restored although it names another leader by now."""
    name = "take" if method == "poll" else "take_arrow"
    original = getattr(FetchedRecords, name)

    def interrupted(records, *args, **more):
        monkeypatch.setattr(FetchedRecords, name, original)
        original(records, *args, **more)
        # As the network thread does if the metadata name the leader at another address.
        with consumer._context.lock:
            known = consumer._subscriptions.position(tp()).current_leader
            moved = LeaderAndEpoch(known.leader._replace(host="localhost"), known.epoch)
            consumer._subscriptions.maybe_validate_position(tp(), moved)
        raise KeyboardInterrupt

    with consuming(broker, max_poll_records=3) as consumer:
        consumer.assign([tp()])
        assert numbered(3) == values(take(consumer, 3))
        monkeypatch.setattr(FetchedRecords, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(consumer, method)(30)
        assert 3 == consumer.position(tp())
        assert numbered(6, 3) == values(take(consumer, 6))


def test_nothing_is_lost_if_the_wait_for_the_lock_is_interrupted(broker, monkeypatch):
    """Records that were decoded, but whose position was not yet set, are returned later."""
    original = FetchedRecords.take

    def take_then_wait(records, *args, **more):
        monkeypatch.setattr(FetchedRecords, "take", original)
        taken = original(records, *args, **more)
        InterruptedLock(consumer)
        return taken

    with consuming(broker, max_poll_records=3) as consumer:
        consumer.assign([tp()])
        assert numbered(3) == values(take(consumer, 3))
        monkeypatch.setattr(FetchedRecords, "take", take_then_wait)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(30)
        assert 3 == consumer.position(tp())
        assert numbered(6, 3) == values(take(consumer, 6))


def test_records_before_a_corrupt_one_are_not_lost_by_an_interrupt(broker, monkeypatch):
    """They have not reached the user, although the position is already that of the error."""
    take_arrow, drain = FetchedRecords.take_arrow, CompletedFetch.drain

    def interrupted(_fetch):
        monkeypatch.setattr(CompletedFetch, "drain", drain)
        raise KeyboardInterrupt

    def corrupt(_records, _schema, **_limits):
        monkeypatch.setattr(FetchedRecords, "take_arrow", take_arrow)
        monkeypatch.setattr(CompletedFetch, "drain", interrupted)
        raise CorruptRecordError("the fourth record")

    def first_three(records, schema, **_limits):
        monkeypatch.setattr(FetchedRecords, "take_arrow", corrupt)
        return take_arrow(records, schema, 3)

    monkeypatch.setattr(FetchedRecords, "take_arrow", first_three)
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        with pytest.raises(KeyboardInterrupt):
            consumer.poll_arrow(30)
        assert 0 == consumer.position(tp())
        assert numbered(9) == consumer.poll_arrow(30)["value"].to_pylist()


def test_a_seek_is_not_undone_by_an_interrupt(broker, monkeypatch):
    """A position that the user has set during the poll is not that at which the poll began."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])

        def seek_then_interrupt(*_):
            monkeypatch.undo()
            consumer.seek(tp(), 7)
            raise KeyboardInterrupt

        monkeypatch.setattr(ConsumerInterceptors, "on_consume", seek_then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            take(consumer, 9)
        assert 7 == consumer.position(tp())
        assert numbered(2, 7) == values(take(consumer, 2))


@pytest.mark.parametrize("settings", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
@pytest.mark.parametrize("is_subscribed", [True, False])
def test_a_with_block_that_raises_commits_nothing(broker, settings, is_subscribed):
    """Records of its last poll may not have been processed; they come again."""

    def read(error=None):
        with consuming(broker, **settings) as consumer:
            if is_subscribed:
                consumer.subscribe("t")
            else:
                consumer.assign([tp()])
            take(consumer, 9)
            if error is not None:
                raise error

    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error):
            read(error)
        with consuming(broker, **settings) as consumer:
            assert {tp(): None} == consumer.committed([tp()])
    read()
    with consuming(broker, **settings) as consumer:
        assert 9 == consumer.committed([tp()])[tp()].offset


FORKED = """
import gc, os, sys, threading, warnings
from spark_kafka_sink import KafkaConsumer
from spark_kafka_sink.errors import IllegalStateError

consumer = KafkaConsumer({"bootstrap.servers": sys.argv[1], "group.id": "g",
                          "auto.offset.reset": "earliest"})
consumer.subscribe("t")
while not consumer.assignment():
    consumer.poll(0.1)

# The lock is held at the time of the fork, by a thread that does not exist in the child.
is_held, may_end = threading.Event(), threading.Event()

def hold():
    with consumer._context.lock:
        is_held.set()
        may_end.wait()

holder = threading.Thread(target=hold)
holder.start()
is_held.wait()
child = os.fork()
if child == 0:
    refused = 0
    for call in (consumer.poll, consumer.poll_arrow, consumer.commit, consumer.assignment,
                 consumer.unsubscribe, consumer.group_metadata):
        try:
            call()
        except IllegalStateError as error:
            refused += "create one in each process" in str(error)
    consumer.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        consumer = call = None
        gc.collect()
    has_warned = any("KafkaConsumer" in str(each.message) for each in caught)
    os._exit(0 if refused == 6 and not has_warned else 1)
_, status = os.waitpid(child, 0)
may_end.set()
holder.join()
while consumer.position(("t", 0)) < 9:
    consumer.poll(0.1)
consumer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_cannot_use_the_consumer(broker):
    """Its calls are refused, close and forgetting it do nothing; the parent's works on."""
    done = subprocess.run(  # noqa: S603  our own interpreter and code
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKED,
            broker.bootstrap_servers,
        ],
        cwd=ROOT,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    with consuming(broker, **CLASSIC) as consumer:
        assert 9 == consumer.committed([tp()])[tp()].offset
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
