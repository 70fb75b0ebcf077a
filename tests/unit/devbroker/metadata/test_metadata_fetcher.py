"""A broker finds the controller, and fetches the metadata log from it."""

from __future__ import annotations

import uuid

from spark_kafka_sink.devbroker.metadata.image import MetadataImage
from spark_kafka_sink.devbroker.metadata.metadata_fetcher import MetadataFetcher
from spark_kafka_sink.devbroker.metadata.quorum import (
    NO_CONTROLLER,
    FetchMetadataRequest,
    FetchMetadataResponse,
)
from spark_kafka_sink.devbroker.metadata.records import TopicRecord

TOPICS = tuple(TopicRecord(topic_id=uuid.UUID(int=index), name=f"t{index}") for index in range(3))


def fetcher_of(node_id=2):
    """Return the fetcher of a broker among 1, 2 and 3."""
    return MetadataFetcher(node_id, MetadataImage(), {3, 1, 2})


def answer(*records, offset=0, controller_id=1):
    return FetchMetadataResponse(
        controller_id=controller_id, controller_epoch=1, offset=offset, records=records
    )


def receivers(fetcher, times):
    """Return which brokers are asked, if each attempt fails."""
    asked = []
    for _ in range(times):
        now = fetcher.deadline
        asked.append(fetcher.next_request(now).receiver)
        fetcher.fail(now)
    return asked


def test_records_are_fetched_one_after_another():
    """The next fetch follows at once, from the record after the last one."""
    fetcher = fetcher_of()
    assert (1, FetchMetadataRequest(node_id=2, offset=0, max_wait=0.5)) == fetcher.next_request(0.0)
    assert fetcher.next_request(0.0) is None
    fetcher.handle(1, answer(*TOPICS[:2]), 0.1, is_expected=True)
    assert 0.1 == fetcher.deadline
    assert 2 == fetcher.next_request(0.1).request.offset


def test_brokers_are_asked_in_turn_until_one_answers():
    """After a failure as after a time without an answer."""
    fetcher = fetcher_of()
    assert [1, 2, 3, 1] == receivers(fetcher, 4)
    assert 2 == fetcher.next_request(fetcher.deadline).receiver
    expired = fetcher.deadline
    assert 3 == fetcher.next_request(expired).receiver


def test_a_broker_that_is_not_the_controller_names_it():
    """And if it knows of none, the next one is asked, after a moment."""
    fetcher = fetcher_of()
    fetcher.next_request(0.0)
    fetcher.handle(1, answer(controller_id=3), 0.0, is_expected=True)
    assert (3, 0.02) == (fetcher.controller_id, fetcher.deadline)
    assert 3 == fetcher.next_request(0.02).receiver
    fetcher.handle(3, answer(controller_id=NO_CONTROLLER), 0.02, is_expected=True)
    assert 1 == fetcher.next_request(fetcher.deadline).receiver


def test_each_record_is_applied_once_and_in_order():
    """Responses may overtake each other, or come after they were given up."""
    image = MetadataImage()
    fetcher = MetadataFetcher(2, image, {1, 2})
    assert fetcher.handle(1, answer(TOPICS[1], offset=1), 0.0, is_expected=False) is None
    assert fetcher.handle(1, answer(*TOPICS[:2]), 0.0, is_expected=False) is not None
    assert fetcher.handle(1, answer(*TOPICS[:2]), 0.0, is_expected=False) is None
    assert fetcher.handle(1, answer(*TOPICS), 0.0, is_expected=False) is not None
    assert ["t0", "t1", "t2"] == [topic.name for topic in image.topics.values()]
    assert 2 == image.offset


def test_a_response_that_was_given_up_changes_nothing_else():
    """The fetch that is in flight stays so."""
    fetcher = fetcher_of()
    fetcher.next_request(0.0)
    fetcher.handle(3, answer(controller_id=3), 0.1, is_expected=False)
    assert 1 == fetcher.controller_id
    assert fetcher.next_request(0.1) is None
