"""Ctrl-C at every moment of a call at which Python handles signals."""

from __future__ import annotations

import json
from itertools import chain, count

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.testing import ApiKey
from tests.support.consumer.commits import BY_HAND, committed_by
from tests.support.consumer.embedded_consuming import GROUP, PATIENCE, consuming, tp, values
from tests.support.consumer.reading import fill, numbered
from tests.support.faults.interrupts import interrupted_anew

#: More than there are moments; all have the same size.
MANY = numbered(2_000, 1_000)


@pytest.fixture(scope="module")
def broker():
    """Return a broker with many records in topic `t`."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", MANY)
        yield broker


def check_is_free(consumer, struck):
    """Check that no call has left a lock behind."""
    assert not consumer._context.lock._is_owned(), repr(struck)
    assert not consumer._guard.is_calling, repr(struck)


#: The schema of which they are values.
FIXED = json.dumps({"type": "fixed", "name": "Number", "size": len(MANY[0])})
READS = {
    "poll": lambda consumer: values(chain(*consumer.poll(PATIENCE).values())),
    "poll_arrow": lambda it: it.poll_arrow(PATIENCE, columns=["value"])["value"].to_pylist(),
    "poll_arrow with a format": lambda it: it.poll_arrow(
        PATIENCE, columns=["value"], value_format="avro", value_schema=FIXED
    )["value"].to_pylist(),
    "iterator": lambda consumer: [next(iter(consumer)).value],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_call_that_reads_skips_no_record_that_it_has_not_returned(broker, read):
    """The next call returns it, and a commit until then does not cover it."""
    returned, seen = [], set()
    with consuming(
        broker, **BY_HAND, max_poll_records=1, max_partition_fetch_bytes=1_000
    ) as consumer:
        consumer.assign([tp()])
        consumer.seek(tp(), 0)
        returned += read(consumer)
        while struck := interrupted_anew(seen, lambda: returned.extend(read(consumer))):
            check_is_free(consumer, struck)
            assert len(returned) == consumer.position(tp()), repr(struck)
        assert 10 < len(seen)
        consumer.commit(timeout=PATIENCE)
        assert len(returned) == committed_by(consumer)
        assert MANY[: len(returned)] == returned


def offset_of(request):
    """Return the only offset of an OffsetCommit request."""
    [topic] = request.topics
    [partition] = topic.partitions
    return partition.committed_offset


def test_a_commit_leaves_the_consumer_usable(broker):
    """A later commit is answered, and no earlier one comes after it."""
    sent, struck_at = [], []
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda request, _: sent.append(offset_of(request)))
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        seen = set()
        offsets = count(1)
        while struck := interrupted_anew(
            seen, lambda: consumer.commit({tp(): next(offsets)}, timeout=PATIENCE)
        ):
            check_is_free(consumer, struck)
            struck_at.append(str(struck))
        assert 30 < len(seen)
        assert sorted(set(sent)) == sent, struck_at
        assert len(seen) + 1 == committed_by(consumer), struck_at
    hook.remove()


def close_anew(broker, seen):
    """Interrupt `close` at another place; return whether there was one."""
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        consumer.seek(tp(), 1)
        struck = interrupted_anew(seen, consumer.close)
        check_is_free(consumer, struck)
        consumer.close()
        assert not consumer._core._thread.is_alive, repr(struck)
    return struck is not None


def test_a_close_can_be_repeated(broker):
    """Whatever Ctrl-C has prevented, another call does, so that no thread is left."""
    seen = set()
    while close_anew(broker, seen):
        pass
    assert 50 < len(seen)
