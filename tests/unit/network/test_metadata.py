import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata, PartitionMetadata
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class _NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.fixture
def metadata() -> Metadata:
    return _metadata()


def _metadata() -> Metadata:
    return Metadata(refresh_backoff=ExponentialBackoff(0.1, 1.0, _NoJitter()), max_age=300.0)


def _response(
    *leaders: tuple[int, int], error: int = 0, topic_id: int = 1, rights: int = -(2**31)
) -> MetadataResponse:
    """Describe topic `t` with partitions led by (leader id, leader epoch)."""
    return MetadataResponse(
        brokers=tuple(MetadataResponseBroker(node_id=n, host="h", port=9092 + n) for n in range(3)),
        topics=(
            MetadataResponseTopic(
                error_code=error,
                name="t",
                topic_id=UUID(int=topic_id),
                partitions=tuple(
                    MetadataResponsePartition(
                        partition_index=index,
                        leader_id=leader,
                        leader_epoch=epoch,
                        replica_nodes=(),
                        isr_nodes=(),
                    )
                    for index, (leader, epoch) in enumerate(leaders)
                ),
                topic_authorized_operations=rights,
            ),
        ),
    )


def test_leaders_and_partitions_are_known_after_an_answer(metadata):
    """An answer tells how many partitions a topic has and who leads each."""
    metadata.update(_response((0, 1), (2, 1)), now=0.0)
    assert 2 == metadata.snapshot.partition_count("t")
    assert Node(2, "h", 9094) == metadata.snapshot.leader_of(TopicPartition("t", 1))


def test_what_is_not_known_has_no_leader(metadata):
    """A topic, a partition or a broker that was not named gives no leader."""
    metadata.update(_response((9, 1)), now=0.0)
    assert None is metadata.snapshot.leader_of(TopicPartition("t", 0))
    assert None is metadata.snapshot.leader_of(TopicPartition("t", 1))
    assert None is metadata.snapshot.leader_of(TopicPartition("u", 0))
    assert 0 == metadata.snapshot.partition_count("u")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 5)), min_size=1, max_size=20))
def test_the_leader_epoch_never_goes_back(answers):
    """Whatever brokers answer in whatever order, a known leader epoch is never replaced by less."""
    metadata = _metadata()
    highest = -1
    for answer in answers:
        metadata.update(_response(answer), now=0.0)
        epoch = metadata.snapshot.topics["t"].partitions[0].leader_epoch
        if answer[1] >= 0:
            highest = max(highest, answer[1])
            assert highest == epoch


def test_a_recreated_topic_starts_its_epochs_anew(metadata):
    """A topic that was deleted and created again is another one, epochs and all."""
    metadata.update(_response((0, 7)), now=0.0)
    metadata.update(_response((1, 0), topic_id=2), now=0.0)
    assert PartitionMetadata(1, 0) == metadata.snapshot.topics["t"].partitions[0]


def test_a_topic_that_cannot_be_described_keeps_its_partitions(metadata):
    """A passing error does not make us forget what we knew."""
    metadata.update(_response((0, 1)), now=0.0)
    metadata.update(_response(error=ErrorCode.LEADER_NOT_AVAILABLE), now=0.0)
    assert 1 == metadata.snapshot.partition_count("t")
    assert ErrorCode.LEADER_NOT_AVAILABLE == metadata.snapshot.topics["t"].error_code


def test_an_answer_with_gaps_changes_nothing(metadata):
    """A list of partitions that cannot be right is refused as a whole."""
    response = _response((0, 1), (0, 1))
    topic = response.topics[0]
    broken = MetadataResponse(
        brokers=response.brokers,
        topics=(
            MetadataResponseTopic(
                name="t", topic_id=topic.topic_id, partitions=(topic.partitions[1],)
            ),
        ),
    )
    with pytest.raises(DecodeError, match="'t' has gaps"):
        metadata.update(broken, now=0.0)
    assert 0 == metadata.snapshot.partition_count("t")


@pytest.mark.parametrize(
    ("rights", "expected"), [(-(2**31), None), (1 << 4, True), (0, False), (1 << 3, False)]
)
def test_the_right_to_write_is_a_bit_of_the_answer(metadata, rights, expected):
    """Whether we may write is known where the broker says so, and unknown elsewhere."""
    metadata.update(_response((0, 1), rights=rights), now=0.0)
    assert expected is metadata.snapshot.topics["t"].can_write


def test_nothing_known_is_asked_for_at_once(metadata):
    """The first question need not wait."""
    assert 0.0 == metadata.next_update_at()


def test_a_complete_answer_is_good_until_it_is_too_old(metadata):
    """Without a sign of change the next question comes after metadata.max.age.ms."""
    metadata.add_topic("t")
    metadata.update(_response((0, 1)), now=10.0)
    assert 310.0 == metadata.next_update_at()


def test_a_requested_update_waits_for_the_backoff_only(metadata):
    """An error that shows the picture to be old has it renewed soon."""
    metadata.add_topic("t")
    metadata.update(_response((0, 1)), now=10.0)
    metadata.request_update()
    assert 10.1 == metadata.next_update_at()


def test_an_answer_that_leaves_something_open_is_followed_by_another_question(metadata):
    """A missing topic or leader is asked for again, at growing intervals."""
    metadata.add_topic("t")
    waits = []
    for _ in range(3):
        metadata.update(_response((-1, 1)), now=10.0)
        waits.append(round(metadata.next_update_at() - 10.0, 3))
    assert [0.1, 0.2, 0.4] == waits
    metadata.add_topic("u")
    metadata.update(_response((0, 1)), now=20.0)
    assert metadata.next_update_at() < 30.0


def test_failures_put_the_next_question_off(metadata):
    """When nobody answers, the next question waits ever longer."""
    metadata.failed(now=1.0)
    assert 1.1 == metadata.next_update_at()
    metadata.failed(now=2.0)
    assert 2.2 == metadata.next_update_at()


def test_a_new_topic_is_asked_for(metadata):
    """A topic that was not asked about makes the picture incomplete."""
    metadata.add_topic("t")
    metadata.update(_response((0, 1)), now=10.0)
    metadata.add_topic("u")
    assert ("t", "u") == metadata.topics
    assert metadata.next_update_at() < 11.0


def test_an_answer_without_a_topic_id_does_not_make_the_topic_another_one(metadata):
    """A passing error names no id; the leader epochs that were known before it still count."""
    metadata.update(_response((0, 7)), now=0.0)
    metadata.update(_response(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic_id=0), now=0.0)
    metadata.update(_response((1, 6)), now=0.0)
    assert PartitionMetadata(0, 7) == metadata.snapshot.topics["t"].partitions[0]
    metadata.update(_response((2, 0), topic_id=2), now=0.0)
    assert PartitionMetadata(2, 0) == metadata.snapshot.topics["t"].partitions[0]


def test_a_leader_that_is_unknown_for_a_while_is_asked_for_until_it_is_there(metadata):
    """A partition without a leader keeps its topic's place, and the questions go on."""
    metadata.update(_response((0, 1), (1, 1)), now=0.0)
    metadata.update(_response((0, 1), (-1, 2)), now=10.0)
    assert metadata.snapshot.leader_of(TopicPartition("t", 1)) is None
    assert 2 == metadata.snapshot.partition_count("t")
    assert 10.1 == pytest.approx(metadata.next_update_at())
    metadata.update(_response((0, 1), (2, 3)), now=10.1)
    assert 2 == metadata.snapshot.leader_of(TopicPartition("t", 1)).node_id
    assert 310.1 == pytest.approx(metadata.next_update_at())


def test_a_leader_outside_the_list_of_brokers_is_no_leader(metadata):
    """A broker that went down a moment ago may still be named as leader; it has no address."""
    metadata.update(_response((9, 1)), now=0.0)
    assert metadata.snapshot.leader_of(TopicPartition("t", 0)) is None
