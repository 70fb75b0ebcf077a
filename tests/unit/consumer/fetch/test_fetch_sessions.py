"""Fetch sessions: what each request lists, and which responses are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    FetchSession,
    PartitionToFetch,
    SessionRequest,
)
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    MAX_INT32,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOO0, FOO1, BAR0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)
FOO_ID, BAR_ID, NEW_ID = UUID(int=1), UUID(int=2), UUID(int=3)
IDS = {"foo": FOO_ID, "bar": BAR_ID}

both_ways = pytest.mark.parametrize("with_ids", [False, True], ids=["names", "ids"])


def want(offset: int = 0, topic_id: UUID = ZERO_UUID) -> PartitionToFetch:
    return PartitionToFetch(topic_id, offset, 4, NO_LEADER_EPOCH, 200)


class Exchange:
    """A session with what its broker does."""

    def __init__(self, *, with_ids: bool) -> None:
        self.session = FetchSession()
        self.with_ids = with_ids
        self.request = SessionRequest(0, 0, {})

    def wanted(self, *partitions: TopicPartition, offset: int = 0) -> dict:
        """Return the same offset of some partitions."""
        return {
            each: want(offset, IDS[each.topic] if self.with_ids else ZERO_UUID)
            for each in partitions
        }

    def ask(self, partitions: Mapping[TopicPartition, PartitionToFetch]) -> SessionRequest:
        """Build the next request."""
        self.request = self.session.next_request(partitions, uses_topic_ids=self.with_ids)
        return self.request

    def answer(
        self,
        partitions: Iterable[TopicPartition] = (),
        *,
        session_id: int = 123,
        error: int = 0,
        throttle: int = 0,
    ) -> bool:
        """Handle a response about some partitions; return whether it was accepted."""
        response = FetchResponse(
            throttle_time_ms=throttle,
            error_code=error,
            session_id=session_id,
            responses=tuple(
                FetchableTopicResponse(
                    topic="" if self.with_ids else topic,
                    topic_id=IDS[topic] if self.with_ids else ZERO_UUID,
                    partitions=(
                        PartitionData(partition_index=index, high_watermark=10, records=None),
                    ),
                )
                for topic, index in partitions
            ),
        )
        return self.session.answered(response, self.request.topic_names)


@pytest.fixture
def exchange() -> Exchange:
    """Return an exchange by topic ids, with an open session of FOO0 and FOO1."""
    exchange = Exchange(with_ids=True)
    exchange.ask(exchange.wanted(FOO0, FOO1))
    assert exchange.answer([FOO0, FOO1])
    return exchange


@both_ways
def test_without_a_session_each_request_lists_all_partitions(with_ids):
    """A broker that opens no session is sent all partitions again, in their order."""
    exchange = Exchange(with_ids=with_ids)

    first = exchange.ask(exchange.wanted(FOO1, FOO0))
    accepted = exchange.answer([FOO0, FOO1], session_id=0)
    second = exchange.ask(exchange.wanted(FOO1, FOO0))

    assert accepted
    assert (0, 0, True) == (first.session_id, first.session_epoch, first.is_full)
    assert [FOO1, FOO0] == list(first.to_send) == list(first.partitions)
    assert first == second
    assert 0 == exchange.session.session_id


@both_ways
def test_a_session_is_sent_only_what_is_new_or_changed(with_ids):
    """In a session, unchanged partitions are left out, and new ones precede those that changed."""
    exchange = Exchange(with_ids=with_ids)
    exchange.ask(exchange.wanted(FOO0, FOO1))
    exchange.answer([FOO0, FOO1])
    changed = exchange.wanted(FOO1, offset=10)

    request = exchange.ask({**exchange.wanted(FOO0), **changed, **exchange.wanted(BAR0)})

    assert (123, 1, False) == (request.session_id, request.session_epoch, request.is_full)
    assert [*exchange.wanted(BAR0).items(), *changed.items()] == list(request.to_send.items())
    assert [FOO0, FOO1, BAR0] == list(request.partitions) == list(exchange.session.partitions)
    assert 10 == request.partitions[FOO1].offset
    assert not request.to_forget
    assert not request.to_replace
    assert with_ids == request.uses_topic_ids
    assert ({FOO_ID: "foo", BAR_ID: "bar"} if with_ids else {}) == request.topic_names


def test_the_session_keeps_its_order(exchange):
    """The order of the partitions is that in which they came into the session."""
    request = exchange.ask({**exchange.wanted(BAR0), **exchange.wanted(FOO1, FOO0)})

    assert [FOO0, FOO1, BAR0] == list(request.partitions)
    assert [BAR0] == list(request.to_send)


@pytest.mark.parametrize(
    "change",
    [{"offset": 1}, {"leader_epoch": 5}, {"last_fetched_epoch": 2}, {"max_bytes": 300}],
    ids=lambda change: next(iter(change)),
)
def test_each_field_counts_as_a_change(exchange, change):
    """A partition is sent again if anything about it has changed."""
    wanted = exchange.wanted(FOO0, FOO1)
    wanted[FOO1] = wanted[FOO1]._replace(**change)

    assert {FOO1: wanted[FOO1]} == exchange.ask(wanted).to_send


@both_ways
def test_a_session_forgets_partitions_that_are_no_longer_wanted(with_ids):
    """Removed partitions are named once, with their topic ids."""
    exchange = Exchange(with_ids=with_ids)
    exchange.ask(exchange.wanted(FOO0, FOO1, BAR0))
    exchange.answer([FOO0, FOO1, BAR0])

    request = exchange.ask(exchange.wanted(FOO1))
    exchange.answer()
    after = exchange.ask(exchange.wanted(FOO1))

    ids = (FOO_ID, BAR_ID) if with_ids else (ZERO_UUID, ZERO_UUID)
    assert [(FOO0, ids[0]), (BAR0, ids[1])] == list(request.to_forget.items())
    assert not request.to_send
    assert [FOO1] == list(request.partitions)
    assert not after.to_forget


@both_ways
def test_a_session_can_become_empty_and_be_filled_again(with_ids):
    """A session without partitions continues, by ids if it did so before."""
    exchange = Exchange(with_ids=with_ids)
    exchange.ask(exchange.wanted(FOO0))
    exchange.answer([FOO0])

    emptied = exchange.ask({})
    exchange.answer()
    filled = exchange.ask({FOO0: want(topic_id=NEW_ID if with_ids else ZERO_UUID)})

    assert [FOO0] == list(emptied.to_forget)
    assert (123, 1, with_ids) == (
        emptied.session_id,
        emptied.session_epoch,
        emptied.uses_topic_ids,
    )
    assert (123, 2, with_ids) == (filled.session_id, filled.session_epoch, filled.uses_topic_ids)
    assert [FOO0] == list(filled.to_send)
    assert not filled.to_replace


@pytest.mark.parametrize("partition", [FOO0, FOO1], ids=["changed", "added"])
def test_a_session_by_names_goes_on_by_ids_once_all_are_known(partition):
    """Topic ids that become known are used, unless the session forgets a topic without one."""
    exchange = Exchange(with_ids=False)
    exchange.ask(exchange.wanted(FOO0))
    exchange.answer([FOO0])

    request = exchange.session.next_request({partition: want(10, FOO_ID)}, uses_topic_ids=True)

    assert (123, 1) == (request.session_id, request.session_epoch)
    assert (partition is FOO0) == request.uses_topic_ids
    assert not request.to_replace


@pytest.mark.parametrize("partition", [FOO0, FOO1, BAR0], ids=["changed", "added", "other topic"])
def test_a_session_by_ids_goes_on_by_names_if_one_is_unknown(exchange, partition):
    """One topic without an id makes the whole request name its topics."""
    request = exchange.ask({**exchange.wanted(FOO0), partition: want()})

    assert (123, 1) == (request.session_id, request.session_epoch)
    assert not request.uses_topic_ids
    assert {} == request.topic_names
    assert not request.to_replace


def test_ids_are_not_used_with_a_broker_that_has_none():
    """Known ids are of no use if the version of Fetch names topics."""
    session = FetchSession()

    request = session.next_request({FOO0: want(0, FOO_ID)}, uses_topic_ids=False)

    assert not request.uses_topic_ids
    assert {} == request.topic_names


@both_ways
def test_a_recreated_topic_is_replaced_in_the_session(with_ids):
    """A partition with a new topic id is sent, and the old id is forgotten where ids are used."""
    session = FetchSession()
    first = session.next_request({FOO0: want(0, FOO_ID)}, uses_topic_ids=with_ids)
    answer = FetchableTopicResponse(
        topic="" if with_ids else "foo",
        topic_id=FOO_ID if with_ids else ZERO_UUID,
        partitions=(PartitionData(partition_index=0, high_watermark=10, records=None),),
    )
    session.answered(FetchResponse(session_id=123, responses=(answer,)), first.topic_names)

    request = session.next_request({FOO0: want(0, NEW_ID)}, uses_topic_ids=with_ids)

    assert {FOO0: want(0, NEW_ID)} == request.to_send == request.partitions
    assert ({FOO0: FOO_ID} if with_ids else {}) == request.to_replace
    assert not request.to_forget
    assert ({NEW_ID: "foo"} if with_ids else {}) == request.topic_names


def test_the_epochs_of_a_session_wrap_around(exchange):
    """After the largest epoch comes 1, because 0 would open another session."""
    exchange.session._epoch = MAX_INT32 - 1

    epochs = []
    for _ in range(3):
        epochs.append(exchange.ask(exchange.wanted(FOO0, FOO1)).session_epoch)
        exchange.answer()

    assert [MAX_INT32 - 1, MAX_INT32, 1] == epochs


def test_a_session_that_the_broker_has_lost_is_not_closed(exchange):
    """After FETCH_SESSION_ID_NOT_FOUND, the next request opens a session and names none."""
    exchange.ask(exchange.wanted(FOO0))

    accepted = exchange.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    request = exchange.ask(exchange.wanted(FOO0))

    assert not accepted
    assert "FETCH_SESSION_ID_NOT_FOUND" in exchange.session.problem
    assert (0, 0) == (request.session_id, request.session_epoch)
    assert exchange.wanted(FOO0) == request.to_send == request.partitions


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        999,
    ],
)
def test_any_other_error_closes_the_session(exchange, error):
    """After an error of the whole response, the next request closes the session it names."""
    exchange.ask(exchange.wanted(FOO0, FOO1))

    accepted = exchange.answer([FOO0], error=error)
    request = exchange.ask(exchange.wanted(FOO0, FOO1))

    assert not accepted
    assert (123, 0) == (request.session_id, request.session_epoch)
    assert [FOO0, FOO1] == list(request.to_send)
    assert not request.to_forget


def test_a_failed_request_closes_the_session(exchange):
    """If the broker may not have received a request, the next one closes the session."""
    exchange.ask(exchange.wanted(FOO0, BAR0))

    exchange.session.failed()
    request = exchange.ask(exchange.wanted(FOO0, BAR0))

    assert (123, 0) == (request.session_id, request.session_epoch)
    assert [FOO0, BAR0] == list(request.to_send)


def test_a_session_replaces_the_one_that_was_closed(exchange):
    """The response to a request that closes a session opens the next one."""
    exchange.session.failed()
    exchange.ask(exchange.wanted(FOO0))

    assert exchange.answer([FOO0], session_id=456)
    request = exchange.ask(exchange.wanted(FOO0))

    assert (456, 1) == (request.session_id, request.session_epoch)


def test_a_broker_can_end_a_session(exchange):
    """The response with session id 0 is used, and then there is no session."""
    exchange.ask(exchange.wanted(FOO0, FOO1))

    assert exchange.answer([FOO0], session_id=0)
    request = exchange.ask(exchange.wanted(FOO0, FOO1))

    assert (0, 0) == (request.session_id, request.session_epoch)
    assert [FOO0, FOO1] == list(request.to_send)


@both_ways
def test_a_full_response_has_all_partitions_and_no_others(with_ids):
    """A response without a session is refused if it lacks a partition or has another one."""
    exchange = Exchange(with_ids=with_ids)
    problems = []
    for answered in ([FOO0], [FOO0, FOO1, BAR0], [FOO0, BAR0], [FOO0, FOO0, FOO1]):
        exchange.ask(exchange.wanted(FOO0, FOO1))
        assert not exchange.answer(answered)
        assert (0, 0) == exchange.ask({})[:2]
        problems.append(exchange.session.problem)
    exchange.ask(exchange.wanted(FOO0, FOO1))

    assert exchange.answer([FOO1, FOO0])
    other = str(BAR_ID if with_ids else BAR0)
    assert ["foo-1", other, other, "foo-0"] == [
        next(name for name in ("foo-1", other, "foo-0") if name in problem) for problem in problems
    ]
    assert "" == exchange.session.problem


def test_a_partition_of_a_known_topic_is_unexpected_too(exchange):
    """A response is refused for a partition that was not asked for, whatever its topic."""
    exchange.ask(exchange.wanted(FOO0))

    assert not exchange.answer([FOO1])
    assert "foo-1, which was not asked for" in exchange.session.problem
    assert (123, 0) == exchange.ask(exchange.wanted(FOO0))[:2]


def test_a_response_in_a_session_may_have_any_of_its_partitions(exchange):
    """Partitions without news are left out of responses in a session."""
    for answered in ([], [FOO1], [FOO1, FOO0]):
        exchange.ask(exchange.wanted(FOO0, FOO1))
        assert exchange.answer(answered)
    assert 4 == exchange.ask(exchange.wanted(FOO0, FOO1)).session_epoch


def test_a_throttled_client_asks_again(exchange):
    """An empty response with a throttle is not a problem of a session, and opens none."""
    other = Exchange(with_ids=True)
    other.ask(other.wanted(FOO0))
    exchange.ask(exchange.wanted(FOO0, FOO1))

    assert not other.answer(throttle=1)
    assert "throttles this client for 1 ms" in other.session.problem
    assert (0, 0) == other.ask(other.wanted(FOO0))[:2]
    assert exchange.answer(throttle=50)
    assert (123, 2) == exchange.ask(exchange.wanted(FOO0))[:2]


def test_a_full_response_with_a_throttle_is_used(exchange):
    """Only an empty response says nothing: one with the partitions opens a session."""
    other = Exchange(with_ids=True)
    other.ask(other.wanted(FOO0))

    assert other.answer([FOO0], throttle=50)
    assert (123, 1) == other.ask(other.wanted(FOO0))[:2]


def test_a_session_is_closed_by_a_request_without_partitions(exchange):
    """The last request names the session and has the final epoch; then there is no session."""
    request = exchange.session.close_request()

    assert request is not None
    assert (123, -1, {}, {}) == request[:4]
    assert request.is_full
    assert request.uses_topic_ids
    assert exchange.session.close_request() is None
    assert () == exchange.session.partitions
    assert (0, 0) == exchange.ask(exchange.wanted(FOO0))[:2]


def test_there_is_nothing_to_close_without_a_session():
    """A broker that opened no session is not asked to close one."""
    assert FetchSession().close_request() is None


def test_a_session_shows_itself(exchange):
    """The text names the session, its epoch and its size."""
    assert "<FetchSession 123, epoch 1: 2 partitions>" == repr(exchange.session)
