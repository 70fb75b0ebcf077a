"""A leader moves its high watermark, and proposes the ISR, by what its followers have fetched."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.replication.leader_replica import ACKS_ALL, LeaderReplica
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.replication.three_replicas import (
    KEY,
    broker_epoch,
    change,
    fence,
    three_replicas,
)
from tests.support.record.plain_batches import plain_batch

MAX_LAG = 10.0


class Leading:
    """Broker 0 as the leader of three replicas, and what its followers do."""

    def __init__(self, *, isr=(0, 1, 2), min_insync_replicas=1):
        self.image = three_replicas(isr=isr, min_insync_replicas=min_insync_replicas)
        log = PartitionLog(config=TopicConfig(min_insync_replicas=min_insync_replicas))
        log.begin_replication(0)
        self.log = log
        self.now = 0.0
        self.leader = LeaderReplica(0, broker_epoch(0), log, max_lag=MAX_LAG)
        self.update()

    def update(self, *records):
        """Apply records to the image, and continue with the partition that it has then."""
        self.image.apply(records)
        self.leader.lead(self.image.find_partition(KEY), self.image, self.now)

    def append(self, acks=ACKS_ALL):
        """Append a record as a producer does."""
        batch = memoryview(bytearray(plain_batch(1)))
        self.leader.append(batch, decode_header(batch), acks=acks, now_ms=0)
        self.leader.maybe_increment_high_watermark(self.image, self.now)

    def fetch(self, follower, offset=None, epoch=None):
        """Fetch as a follower does, by default from the log end."""
        return self.leader.follower_fetched(
            follower,
            broker_epoch(follower) if epoch is None else epoch,
            self.log.log_end_offset if offset is None else offset,
            0,
            image=self.image,
            now=self.now,
        )

    def recorded(self, *isr, epoch):
        """Respond to the open proposal as the controller does."""
        return self.leader.isr_recorded(
            self.leader.proposal, frozenset(isr), epoch, self.image, self.now
        )


def test_the_high_watermark_waits_for_all_in_sync_replicas():
    """It is the lowest log end of the ISR, as far as the fetches show it."""
    leading = Leading()
    leading.append()
    leading.append()
    assert leading.log.high_watermark == 0
    assert not leading.fetch(1, 2)
    assert leading.log.high_watermark == 0
    assert leading.fetch(2, 1)
    assert leading.log.high_watermark == 1
    assert leading.fetch(2, 2)
    assert leading.log.high_watermark == 2


def test_a_leader_alone_commits_at_once():
    """Without other in-sync replicas all that is appended is committed."""
    leading = Leading(isr=(0,))
    leading.append()
    assert leading.log.high_watermark == 1


def test_a_follower_that_is_about_to_join_holds_the_high_watermark():
    """A caught-up follower outside of the ISR is waited for, so that it can stay caught up."""
    leading = Leading(isr=(0,))
    leading.append()
    leading.fetch(1)
    assert leading.leader.proposal.joining == 1
    leading.append()
    assert leading.log.high_watermark == 1
    leading.now += MAX_LAG + 1
    leading.append()
    # It may be in sync by now, whatever the controller says later.
    assert leading.log.high_watermark == 1
    leading.leader.isr_refused(leading.leader.proposal, ErrorCode.INELIGIBLE_REPLICA)
    leading.append()
    assert leading.log.high_watermark == 4


def test_a_follower_joins_once_it_has_what_is_committed():
    """The proposal has its broker's epoch, and counts when the controller has recorded it."""
    leading = Leading(isr=(0, 1))
    leading.append()
    leading.append()
    leading.fetch(1)
    assert leading.log.high_watermark == 2
    leading.fetch(2, 1)
    assert leading.leader.proposal is None
    leading.fetch(2, 2)
    proposal = leading.leader.proposal
    assert (proposal.isr, proposal.broker_epochs) == ((0, 1, 2), (100, 101, 102))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (3, 0)
    assert leading.leader.isr == {0, 1}
    leading.recorded(0, 1, 2, epoch=1)
    assert leading.leader.isr == {0, 1, 2}
    assert leading.leader.proposal is None


def test_a_follower_must_have_all_from_before_the_epoch_to_join():
    """The high watermark of a new leader may be too low to tell."""
    leading = Leading(isr=(0, 1))
    for _ in range(3):
        leading.append()
    leading.update(change(leader=0))
    assert (leading.leader.epoch_start_offset, leading.log.high_watermark) == (3, 0)
    leading.fetch(2, 2)
    assert leading.leader.proposal is None
    leading.fetch(2, 3)
    assert leading.leader.proposal.joining == 2


@pytest.mark.parametrize("why", ["fenced", "older incarnation"])
def test_a_follower_whose_broker_may_not_be_in_sync_does_not_join(why):
    """Its broker must be active, and registered with the epoch of its fetches."""
    leading = Leading(isr=(0, 1))
    if why == "fenced":
        leading.image.apply([fence(2)])
    leading.fetch(2, epoch=102 if why == "fenced" else 500)
    assert leading.leader.proposal is None


def test_a_fetch_of_an_older_incarnation_is_refused():
    """A broker that was registered again has another epoch, and may have lost records."""
    leading = Leading()
    with pytest.raises(RefusedError, match="registered with epoch 102; the request has 7") as error:
        leading.fetch(2, epoch=7)
    assert error.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_stays_behind_leaves_the_isr():
    """After replica.lag.time.max.ms without what the leader had, it is out of sync."""
    leading = Leading()
    leading.append()
    leading.fetch(1)
    leading.now = MAX_LAG
    leading.leader.maybe_shrink_isr(leading.now)
    assert leading.leader.proposal is None
    leading.now += 1
    leading.leader.maybe_shrink_isr(leading.now)
    assert leading.leader.proposal.isr == (0, 1)
    # It counts until the controller has agreed.
    assert leading.log.high_watermark == 0
    assert leading.recorded(0, 1, epoch=1)
    assert leading.log.high_watermark == 1


def test_a_follower_that_is_always_a_little_behind_stays_in_sync():
    """With each fetch it has what the leader had at the fetch before."""
    leading = Leading()
    for _ in range(5):
        leading.now += MAX_LAG * 0.6
        leading.append()
        leading.fetch(1)
        leading.fetch(2, leading.log.log_end_offset - 1)
        leading.leader.maybe_shrink_isr(leading.now)
    assert leading.leader.proposal is None


def test_one_proposal_is_open_at_a_time():
    """Another change of the ISR waits for the answer to the first."""
    leading = Leading(isr=(0,))
    leading.fetch(1)
    first = leading.leader.proposal
    leading.fetch(2)
    leading.now += MAX_LAG * 2
    leading.leader.maybe_shrink_isr(leading.now)
    assert leading.leader.proposal is first


@pytest.mark.parametrize(
    ("code", "is_open", "again"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, False),
        (ErrorCode.INVALID_UPDATE_VERSION, True, False),
        (ErrorCode.FENCED_LEADER_EPOCH, True, False),
        (ErrorCode.NEW_LEADER_ELECTED, True, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, True, False),
        (ErrorCode.NETWORK_EXCEPTION, True, True),
        (ErrorCode.NOT_CONTROLLER, True, True),
    ],
)
def test_a_refused_proposal(code, is_open, again):
    """It is dropped if the controller rejected it, kept if the leader is out of date, or sent."""
    leading = Leading(isr=(0, 1))
    leading.fetch(2)
    leading.leader.must_propose = False
    leading.leader.isr_refused(leading.leader.proposal, code)
    assert (leading.leader.proposal is not None) == is_open
    assert leading.leader.must_propose == again


def test_an_answer_to_another_proposal_is_ignored():
    """Newer metadata have ended the proposal, so its answer means nothing any more."""
    leading = Leading(isr=(0, 1))
    leading.fetch(2)
    proposal = leading.leader.proposal
    leading.update(change(isr=(0,)))
    assert not leading.leader.isr_recorded(
        proposal, frozenset({0, 1, 2}), 1, leading.image, leading.now
    )
    leading.leader.isr_refused(proposal, ErrorCode.NETWORK_EXCEPTION)
    assert (leading.leader.isr, leading.leader.must_propose) == ({0}, False)


def test_metadata_that_are_not_newer_do_not_end_a_proposal():
    """The metadata of the last answer arrive after it, when the next proposal may be open."""
    leading = Leading(isr=(0,))
    leading.fetch(1)
    leading.recorded(0, 1, epoch=1)
    leading.fetch(2)
    leading.update(change(isr=(0, 1)))
    assert leading.leader.proposal.joining == 2


def test_a_new_epoch_of_the_same_leader_keeps_what_followers_have():
    """They need not fetch again before the high watermark can move."""
    leading = Leading()
    leading.append()
    leading.fetch(1)
    leading.update(change(leader=0))
    assert leading.log.leader_epoch == 4
    assert leading.leader.followers[1].log_end_offset == 1


def test_a_removed_replica_is_forgotten():
    """After a reassignment only the replicas of the partition count."""
    leading = Leading()
    leading.append()
    leading.fetch(1)
    leading.update(change(replicas=(0, 1), isr=(0, 1)))
    assert list(leading.leader.followers) == [1]
    assert leading.log.high_watermark == 1


def test_too_few_replicas_refuse_a_write():
    """With acks=all nothing is appended, and what is appended otherwise is not committed."""
    leading = Leading(isr=(0,), min_insync_replicas=2)
    with pytest.raises(RefusedError, match="1 replicas are in sync") as error:
        leading.append()
    assert error.value.error_code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leading.log.log_end_offset == 0
    leading.append(acks=1)
    assert (leading.log.log_end_offset, leading.log.high_watermark) == (1, 0)


def test_a_write_may_be_committed_by_too_few():
    """The ISR that has shrunk below the minimum since is an error after the append."""
    leading = Leading(min_insync_replicas=2)
    leading.append()
    assert leading.leader.check_replicated(1) is None
    leading.fetch(1)
    leading.fetch(2)
    assert leading.leader.check_replicated(1) is ErrorCode.NONE
    leading.update(change(isr=(0,)))
    assert leading.leader.check_replicated(1) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
