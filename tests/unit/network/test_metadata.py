import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata, MetadataQuestion, PartitionMetadata
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
    return Metadata(
        refresh_backoff=ExponentialBackoff(0.1, 1.0, _NoJitter()), max_age=300.0, max_idle=60.0
    )


def _response(
    *leaders: tuple[int, int],
    error: int = 0,
    topic_id: int = 1,
    rights: int = -(2**31),
    name: str = "t",
    cluster_id: str | None = None,
) -> MetadataResponse:
    """Describe one topic with partitions led by (leader id, leader epoch)."""
    return MetadataResponse(
        brokers=tuple(MetadataResponseBroker(node_id=n, host="h", port=9092 + n) for n in range(3)),
        cluster_id=cluster_id,
        topics=(
            MetadataResponseTopic(
                error_code=error,
                name=name,
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


def test_a_response_provides_leaders_and_partitions(metadata):
    """A response gives the number of a topic's partitions and the leader of each."""
    metadata.update(_response((0, 1), (2, 1)), now=0.0)
    assert 2 == metadata.snapshot.partition_count("t")
    assert Node(2, "h", 9094) == metadata.snapshot.leader_of(TopicPartition("t", 1))


def test_an_unknown_topic_partition_or_broker_has_no_leader(metadata):
    """A topic, a partition or a broker that was not named has no leader."""
    metadata.update(_response((9, 1)), now=0.0)
    assert None is metadata.snapshot.leader_of(TopicPartition("t", 0))
    assert None is metadata.snapshot.leader_of(TopicPartition("t", 1))
    assert None is metadata.snapshot.leader_of(TopicPartition("u", 0))
    assert 0 == metadata.snapshot.partition_count("u")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 5)), min_size=1, max_size=20))
def test_the_leader_epoch_never_decreases(answers):
    """Whatever brokers respond in whatever order, a leader epoch never goes back."""
    metadata = _metadata()
    highest = -1
    for answer in answers:
        metadata.update(_response(answer), now=0.0)
        epoch = metadata.snapshot.topics["t"].partitions[0].leader_epoch
        if answer[1] >= 0:
            highest = max(highest, answer[1])
            assert highest == epoch


def test_another_leader_of_the_same_epoch_is_accepted(metadata):
    """Only an older epoch means an older response; of equal ones the last counts."""
    metadata.update(_response((0, 7)), now=0.0)
    metadata.update(_response((1, 7)), now=0.0)
    assert PartitionMetadata(1, 7) == metadata.snapshot.topics["t"].partitions[0]


def test_a_recreated_topic_has_new_epochs(metadata):
    """A topic that was deleted and created again is another topic with epochs of its own."""
    metadata.update(_response((0, 7)), now=0.0)
    metadata.update(_response((1, 0), topic_id=2), now=0.0)
    assert PartitionMetadata(1, 0) == metadata.snapshot.topics["t"].partitions[0]


def test_a_transient_error_of_a_topic_keeps_its_partitions(metadata):
    """A transient error does not discard what is known."""
    metadata.update(_response((0, 1)), now=0.0)
    metadata.update(_response(error=ErrorCode.LEADER_NOT_AVAILABLE), now=0.0)
    assert 1 == metadata.snapshot.partition_count("t")
    assert ErrorCode.LEADER_NOT_AVAILABLE == metadata.snapshot.topics["t"].error_code


def test_a_response_with_missing_partitions_is_ignored(metadata):
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
def test_the_authorization_to_write_is_read_from_the_response(metadata, rights, expected):
    """Whether this client may write is known if the broker says so, and otherwise unknown."""
    metadata.update(_response((0, 1), rights=rights), now=0.0)
    assert expected is metadata.snapshot.topics["t"].can_write


def test_the_first_request_is_due_at_once(metadata):
    """The first request is due at once."""
    assert 0.0 == metadata.next_update_at()


def test_a_complete_response_is_valid_until_its_maximum_age(metadata):
    """Without any sign of change the next request is due after metadata.max.age.ms."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=10.0)
    assert 310.0 == metadata.next_update_at()


def test_a_requested_update_waits_only_for_the_backoff(metadata):
    """An error that shows the metadata to be out of date leads to an early update."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=10.0)
    metadata.request_update()
    assert 10.1 == metadata.next_update_at()


def test_an_incomplete_response_causes_another_request(metadata):
    """A missing topic or leader is requested again, at growing intervals."""
    metadata.add_topic("t", now=0.0)
    waits = []
    for _ in range(3):
        metadata.update(_response((-1, 1)), now=10.0)
        waits.append(round(metadata.next_update_at() - 10.0, 3))
    assert [0.1, 0.2, 0.4] == waits
    metadata.add_topic("u", now=0.0)
    metadata.update(_response((0, 1)), now=20.0)
    assert metadata.next_update_at() < 30.0


def test_failures_delay_the_next_request(metadata):
    """While no broker answers, each wait before the next request is longer."""
    metadata.failed(now=1.0)
    assert 1.1 == metadata.next_update_at()
    metadata.failed(now=2.0)
    assert 2.2 == metadata.next_update_at()


def test_a_new_topic_is_requested(metadata):
    """A topic that was not requested yet makes the metadata incomplete."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=10.0)
    metadata.add_topic("u", now=0.0)
    assert ("t", "u") == metadata.topics
    assert metadata.next_update_at() < 11.0


def test_a_response_without_a_topic_id_keeps_the_leader_epochs(metadata):
    """A transient error carries no id, and the known leader epochs still count."""
    metadata.update(_response((0, 7)), now=0.0)
    metadata.update(_response(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic_id=0), now=0.0)
    metadata.update(_response((1, 6)), now=0.0)
    assert PartitionMetadata(0, 7) == metadata.snapshot.topics["t"].partitions[0]
    metadata.update(_response((2, 0), topic_id=2), now=0.0)
    assert PartitionMetadata(2, 0) == metadata.snapshot.topics["t"].partitions[0]


def test_a_missing_leader_is_requested_until_it_is_known(metadata):
    """A partition without a leader keeps its place in the topic and is requested again."""
    metadata.update(_response((0, 1), (1, 1)), now=0.0)
    metadata.update(_response((0, 1), (-1, 2)), now=10.0)
    assert metadata.snapshot.leader_of(TopicPartition("t", 1)) is None
    assert 2 == metadata.snapshot.partition_count("t")
    assert 10.1 == pytest.approx(metadata.next_update_at())
    metadata.update(_response((0, 1), (2, 3)), now=10.1)
    assert 2 == metadata.snapshot.leader_of(TopicPartition("t", 1)).node_id
    assert 310.1 == pytest.approx(metadata.next_update_at())


def test_a_leader_missing_from_the_list_of_brokers_is_ignored(metadata):
    """A broker that has just gone down may still be named as leader, but has no address."""
    metadata.update(_response((9, 1)), now=0.0)
    assert metadata.snapshot.leader_of(TopicPartition("t", 0)) is None


def _partitions(metadata: Metadata) -> tuple[PartitionMetadata, ...]:
    return metadata.snapshot.topics["t"].partitions


def test_a_recreated_topic_with_fewer_partitions_has_fewer(metadata):
    """Nothing of the earlier topic is left, neither partitions nor epochs."""
    metadata.update(_response((0, 7), (1, 7), (2, 7)), now=0.0)
    metadata.update(_response((1, 0), topic_id=2), now=0.0)
    assert (PartitionMetadata(1, 0),) == _partitions(metadata)
    assert UUID(int=2) == metadata.snapshot.topic_id("t")


def test_an_unknown_topic_has_no_id(metadata):
    """The id is all zero until a broker returns it."""
    assert UUID(int=0) == metadata.snapshot.topic_id("t")


def test_epochs_of_another_cluster_are_ignored(metadata):
    """After a move to another cluster its leaders are used, however low their epochs are."""
    metadata.update(_response((0, 7), topic_id=0, cluster_id="a"), now=0.0)
    metadata.update(_response((1, 7), topic_id=0, name="u", cluster_id="a"), now=0.0)
    metadata.update(_response((1, 0), topic_id=0, cluster_id="b"), now=0.0)
    assert (PartitionMetadata(1, 0),) == _partitions(metadata)
    assert {"t"} == set(metadata.snapshot.topics)


def test_a_response_without_a_cluster_id_is_of_the_same_cluster(metadata):
    """A broker too old to return its cluster's id does not discard what is known."""
    metadata.update(_response((0, 7), cluster_id="a"), now=0.0)
    metadata.update(_response((1, 6)), now=0.0)
    assert (PartitionMetadata(0, 7),) == _partitions(metadata)


# --- what is requested, and how soon


def test_a_new_topic_is_requested_alone_and_at_once(metadata):
    """Known topics are not requested again because of a new one."""
    metadata.add_topic("t", now=0.0)
    assert MetadataQuestion(("t",), is_full=True) == metadata.question(now=0.0)
    metadata.update(_response((0, 1)), now=10.0)
    metadata.add_topic("u", now=10.01)
    assert metadata.next_update_at() <= 10.01
    assert MetadataQuestion(("u",), is_full=False) == metadata.question(now=10.01)


def test_a_partial_response_does_not_affect_other_topics(metadata):
    """Topics that a partial response does not name are unchanged, and their age counts on."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=10.0)
    metadata.add_topic("u", now=20.0)
    metadata.update(_response((2, 5), name="u"), now=20.0, is_full=False)
    assert {"t", "u"} == set(metadata.snapshot.topics)
    assert 310.0 == metadata.next_update_at()
    assert ("t", "u") == metadata.question(now=30.0).topics


def test_a_full_update_is_not_replaced_by_a_partial_one(metadata):
    """A new topic does not turn an update that has to be full into a partial one."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=10.0)
    metadata.add_topic("u", now=10.0)
    metadata.request_update()
    assert MetadataQuestion(("t", "u"), is_full=True) == metadata.question(now=10.0)


def test_a_topic_added_during_a_request_is_requested_next(metadata):
    """A topic that is added while a request is under way is due next."""
    metadata.add_topic("t", now=0.0)
    metadata.add_topic("u", now=0.0)
    metadata.update(_response((0, 1)), now=10.0)
    assert metadata.is_unanswered("u")
    assert not metadata.is_unanswered("t")
    assert 10.1 == pytest.approx(metadata.next_update_at())
    assert MetadataQuestion(("u",), is_full=False) == metadata.question(now=10.1)


def test_responses_without_news_delay_the_next_request(metadata):
    """An old leader, named by brokers that do not know the new one, causes no request storm."""
    metadata.add_topic("t", now=0.0)
    waits = []
    for _ in range(4):
        metadata.update(_response((0, 1)), now=10.0)
        metadata.request_update()
        waits.append(round(metadata.next_update_at() - 10.0, 3))
    metadata.update(_response((1, 2)), now=10.0)
    metadata.request_update()
    waits.append(round(metadata.next_update_at() - 10.0, 3))
    assert [0.1, 0.2, 0.4, 0.8, 0.1] == waits


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (_response((0, 1), topic_id=2), 0.2),
        (_response((0, 1), topic_id=1), 0.1),
        (_response((0, 1), topic_id=3), 0.1),
        (_response((0, 2), topic_id=2), 0.1),
        (_response((0, 1), (0, 0), topic_id=2), 0.1),
    ],
)
def test_another_id_more_partitions_or_a_later_leader_are_news(metadata, answer, pause):
    """In these cases the next request does not wait longer than before."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1), topic_id=2), now=10.0)
    metadata.update(answer, now=10.0)
    metadata.request_update()
    assert pause == round(metadata.next_update_at() - 10.0, 3)


def test_responses_without_epochs_always_count_as_news(metadata):
    """Without an epoch, a leader cannot be recognized as the same as before."""
    metadata.add_topic("t", now=0.0)
    for _ in range(2):
        metadata.update(_response((0, -1)), now=10.0)
    metadata.request_update()
    assert 0.1 == round(metadata.next_update_at() - 10.0, 3)


# --- topics that are not in use, or refused


def test_an_unused_topic_expires(metadata):
    """After metadata.max.idle.ms without use a topic is neither requested nor known."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=0.0)
    assert ("t",) == metadata.question(now=59.9).topics
    assert () == metadata.question(now=60.0).topics
    assert 0 == metadata.snapshot.partition_count("t")


def test_a_used_topic_does_not_expire(metadata):
    """Each use delays a topic's expiry without requesting anything."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=0.0)
    metadata.add_topic("t", now=50.0)
    assert 300.0 == metadata.next_update_at()
    assert ("t",) == metadata.question(now=109.0).topics
    assert 1 == metadata.snapshot.partition_count("t")


def test_a_topic_without_a_response_does_not_expire(metadata):
    """While the brokers are unavailable, the topics that are waited for are not dropped."""
    metadata.add_topic("t", now=0.0)
    assert ("t",) == metadata.question(now=1_000.0).topics


def test_an_expired_topic_can_be_used_again(metadata):
    """A topic that is used again after its expiry is requested like a new one."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1)), now=0.0)
    metadata.question(now=60.0)
    metadata.add_topic("t", now=61.0)
    assert metadata.next_update_at() <= 61.0
    assert MetadataQuestion(("t",), is_full=False) == metadata.question(now=61.0)


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION]
)
def test_a_permanently_refused_topic_is_requested_only_by_age(metadata, code):
    """A topic that was permanently refused waits for the next update by age, and expires."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response(error=code), now=10.0)
    assert metadata.snapshot.topics["t"].is_refused
    assert 310.0 == metadata.next_update_at()
    metadata.ask_again("t")
    assert metadata.next_update_at() <= 10.0
    assert MetadataQuestion(("t",), is_full=False) == metadata.question(now=10.0)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REPLICATION_FACTOR]
)
def test_a_topic_that_may_be_created_is_requested_again(metadata, code):
    """A topic that does not exist yet, or has too few brokers yet, is requested soon."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response(error=code), now=10.0)
    assert not metadata.snapshot.topics["t"].is_refused
    assert 10.1 == pytest.approx(metadata.next_update_at())


# --- leader hints (KIP-951)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_hint_with_a_newer_leader_is_applied(metadata):
    """A hint changes only its own partition's leader, even to a previously unknown broker."""
    metadata.update(_response((0, 1), (1, 1)), now=0.0)
    node = Node(9, "new", 9092)
    assert {T1} == metadata.update_leaders({T1: (9, 2)}, [node])
    assert node == metadata.snapshot.leader_of(T1)
    assert (PartitionMetadata(0, 1), PartitionMetadata(9, 2)) == _partitions(metadata)


@pytest.mark.parametrize(
    ("partition", "leader"),
    [
        (T0, (2, 5)),
        (T0, (2, 4)),
        (T0, (-1, -1)),
        (T0, (8, 6)),
        (T1, (2, 6)),
        (TopicPartition("u", 0), (2, 6)),
    ],
    ids=["same epoch", "older", "unknown", "no address", "unknown partition", "unknown topic"],
)
def test_an_old_or_unusable_hint_is_ignored(metadata, partition, leader):
    """Epochs never go back, and a leader without an address is useless."""
    metadata.update(_response((0, 5)), now=0.0)
    before = metadata.snapshot
    assert set() == metadata.update_leaders({partition: leader}, [Node(9, "h", 1)])
    assert before is metadata.snapshot


def test_an_unusable_hint_does_not_affect_others(metadata):
    """The hints in one error response are judged separately, whatever their order."""
    metadata.update(_response((0, 1), (1, 1)), now=0.0)
    hints = {TopicPartition("u", 0): (2, 6), T0: (0, 1), T1: (2, 6)}
    assert {T1} == metadata.update_leaders(hints, [])
    assert (PartitionMetadata(0, 1), PartitionMetadata(2, 6)) == _partitions(metadata)


def test_an_older_response_does_not_undo_a_hint(metadata):
    """A hint counts as much as a metadata response."""
    metadata.update(_response((0, 1)), now=0.0)
    metadata.update_leaders({T0: (2, 3)}, [])
    metadata.update(_response((0, 2)), now=0.0)
    assert PartitionMetadata(2, 3) == _partitions(metadata)[0]


_LEADERS = st.tuples(st.integers(0, 2), st.integers(-1, 6))


@given(st.lists(st.tuples(st.booleans(), _LEADERS), max_size=30))
def test_hints_and_responses_in_any_order_never_lower_an_epoch(told):
    """The leader is always one that was named with the highest epoch so far."""
    metadata = _metadata()
    metadata.update(_response((0, 0)), now=0.0)
    named = {0: {0}}
    for is_hint, (leader, epoch) in told:
        if is_hint:
            metadata.update_leaders({T0: (leader, epoch)}, [])
        else:
            metadata.update(_response((leader, epoch)), now=0.0)
        highest = max(named)
        # A response without an epoch is applied, as from a broker too old to have epochs.
        believed = highest if epoch == -1 and not is_hint else epoch
        named.setdefault(believed, set()).add(leader)
        known = _partitions(metadata)[0]
        assert known.leader_epoch == max(highest, epoch)
        assert known.leader_id in named[known.leader_epoch]


# --- rebootstrapping


def test_a_rebootstrap_discards_brokers_and_keeps_topics(metadata):
    """There is no leader any more, but a topic keeps its partitions, and everything is due."""
    metadata.add_topic("t", now=0.0)
    metadata.update(_response((0, 1), (1, 1)), now=0.0)
    metadata.rebootstrap()
    assert {} == metadata.snapshot.nodes
    assert metadata.snapshot.leader_of(T0) is None
    assert 2 == metadata.snapshot.partition_count("t")
    assert MetadataQuestion(("t",), is_full=True) == metadata.question(now=1.0)
    metadata.update(_response((0, 1), (1, 1)), now=1.0)
    assert Node(0, "h", 9092) == metadata.snapshot.leader_of(T0)
