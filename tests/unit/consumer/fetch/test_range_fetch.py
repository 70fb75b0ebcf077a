"""The reading of a range, step by step, on a simulated clock."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.consumer.fetch.range_fetch import (
    ASKS_UNTIL_SHORT,
    EMPTY_UNTIL_DONE,
    GONE_SECONDS,
    DataLoss,
    Done,
    LogBounds,
    LookUpBounds,
    Lose,
    Refresh,
    Rows,
    SendFetch,
    Wait,
)
from spark_kafka_sink.errors import (
    BrokerError,
    CorruptRecordError,
    KafkaTimeoutError,
    NetworkError,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import EpochEndOffset
from tests.support.consumer.range_script import (
    END,
    FOLLOWER,
    LEADER,
    OTHER,
    REPLICA_MAX_AGE,
    TIMEOUT,
    RangeScript,
    partition_data,
    view,
)

ID, OTHER_ID = UUID(int=7), UUID(int=8)
LOST = NetworkError("the connection was lost")


def loss_of(step: object) -> DataLoss:
    """Return the loss that a step reports."""
    assert isinstance(step, Lose), step
    return step.loss


# --- progress


def test_the_first_fetch_asks_for_the_start_of_the_range():
    """The first step is a Fetch at the leader, with its epoch and the topic's id."""
    script = RangeScript(start=10)
    script.view = view(topic_id=ID)

    assert SendFetch(LEADER, False, ID, 5, -1, 10, END - 10, True, True) == script.step()


def test_a_range_ends_when_the_position_reaches_its_end():
    """The position after an answer is that after its last batch, even if that is past the end."""
    script = RangeScript()
    assert Rows(0, END) == script.read(60)
    assert 60 == script.until_fetch().offset
    assert Rows(60, END) == script.read(END + 20)
    assert isinstance(script.step(), Done)


@pytest.mark.parametrize("end", [0, 5, 10])
def test_an_empty_range_needs_no_broker(end):
    """A range without offsets is done at once."""
    assert isinstance(RangeScript(start=10, end=end).step(), Done)


def test_a_fetch_names_the_epoch_of_the_last_batch():
    """The epoch of the last batch is sent, for the leader to detect a log that has diverged."""
    script = RangeScript()
    script.read(50, leader_epoch=3)

    assert 3 == script.until_fetch().last_fetched_epoch


def test_the_first_fetch_names_the_epoch_of_the_start():
    """A leader that lacks records before the start says so, and the loss is that of a cut log."""
    script = RangeScript(start=50, start_epoch=3)
    assert 3 == script.until_fetch().last_fetched_epoch
    script.answer(partition_data(diverging_epoch=EpochEndOffset(epoch=2, end_offset=40)))
    loss = loss_of(script.step())
    assert (50, 40, 10) == (loss.wanted, loss.available, loss.lost)
    assert -1 == script.until_fetch().last_fetched_epoch


def test_bytes_without_a_batch_are_an_error():
    """A first batch always comes whole, so an answer without one would be repeated for ever."""
    with pytest.raises(CorruptRecordError, match=r"t-0, offset 0: .*without a complete batch"):
        RangeScript().answer(partition_data(), next_offset=0, batch_count=0)


def test_batches_before_the_position_are_not_asked_for_again_at_once():
    """An answer that does not move the position is followed by a back-off."""
    script = RangeScript(start=50)
    assert script.read(40) is None
    assert isinstance(script.step(), Wait)


# --- empty answers


def read_nothing(script):
    """Return empty answers until the bounds of the log are in doubt."""
    for _ in range(EMPTY_UNTIL_DONE):
        fetch = script.until_fetch()
        assert LEADER == fetch.node
        script.answer(partition_data(high_watermark=END))
    assert LookUpBounds(LEADER, 5, needs_local_start=True) == script.step()


def test_a_deleted_end_ends_the_range():
    """If nothing comes of what is on the leader's own disk, asked twice, that is all."""
    script = RangeScript()
    script.read(60)
    read_nothing(script)
    script.state.bounds_found(LogBounds(0, END, END, local_start=60), script.now)

    assert isinstance(script.step(), Done)


def test_slow_remote_storage_does_not_end_the_range():
    """If nothing comes of what is in remote storage, it is asked for until time runs out."""
    script = RangeScript()
    script.read(60)
    with pytest.raises(  # noqa: PT012 - each answer is a step
        KafkaTimeoutError, match=r"Records from offset 60 on are in remote storage.* at offset 61$"
    ):
        for _ in range(10_000):
            read_nothing(script)
            script.state.bounds_found(LogBounds(0, END, END, local_start=61), script.now)
            assert isinstance(script.step(), Wait)
    assert 60 == script.state.position


def test_remote_storage_is_named_at_whichever_step_the_time_runs_out():
    """The error says that the records are in remote storage, also after one more empty answer."""
    script = RangeScript()
    read_nothing(script)
    script.state.bounds_found(LogBounds(0, END, END, local_start=END), script.now)
    script.until_fetch()
    script.answer(partition_data(high_watermark=END))
    script.now = script.state.deadline
    with pytest.raises(KafkaTimeoutError, match=r"returned no records.* are in remote storage, "):
        script.step()


def test_remote_storage_that_answers_in_the_end_is_read():
    """After empty answers the records of remote storage are rows like any others."""
    script = RangeScript()
    read_nothing(script)
    script.state.bounds_found(LogBounds(0, END, END, local_start=END), script.now)

    assert script.until_fetch().may_wait
    assert script.read(END) is not None
    assert isinstance(script.step(), Done)


def test_retention_of_an_end_that_seemed_deleted_is_a_loss():
    """If retention removes the records at the end meanwhile, they are lost."""
    script = RangeScript()
    read_nothing(script)
    script.state.bounds_found(LogBounds(END, END, END, local_start=END), script.now)

    assert END == loss_of(script.step()).lost


def test_the_second_question_does_not_wait():
    """The broker answers the question whether there is really nothing without waiting."""
    script = RangeScript()
    assert script.step().may_wait
    script.answer(partition_data())
    assert not script.step().may_wait


def test_read_committed_goes_by_the_last_stable_offset():
    """Under read_committed a high watermark past the end does not end the range."""
    script = RangeScript(is_committed=True)
    for _ in range(EMPTY_UNTIL_DONE):
        script.answer(partition_data(high_watermark=END, last_stable_offset=END - 1))
    assert not script.state.is_done


@pytest.mark.parametrize("data", [None, partition_data()], ids=["lacking", "empty"])
def test_a_throttled_answer_says_nothing(data):
    """A throttled answer may lack the partition; the Fetch is repeated after the throttle."""
    script = RangeScript()
    script.answer(data, throttle=2.0)

    assert Wait(2.0) == script.step()
    assert script.until_fetch().may_wait


def test_an_answer_without_the_partition_is_repeated_after_a_back_off():
    """An answer that lacks the partition without being throttled is followed by a back-off."""
    script = RangeScript()
    script.answer(None)
    assert isinstance(script.step(), Wait)


def test_a_log_that_ends_before_the_range_is_a_loss_only_when_confirmed():
    """A log that is too short is looked up several times before its end counts as a loss."""
    script = RangeScript()
    script.read(60)
    script.answer(partition_data(high_watermark=60))
    for _ in range(ASKS_UNTIL_SHORT):
        step = script.until(LookUpBounds)
        assert LookUpBounds(LEADER, 5) == step
        script.state.bounds_found(LogBounds(0, 60, 60), script.now)

    loss = loss_of(script.step())
    assert (END, 60, END - 60) == (loss.wanted, loss.available, loss.lost)
    assert isinstance(script.step(), Done)


def test_a_high_watermark_that_lags_is_no_loss():
    """A leader whose watermark catches up is asked again."""
    script = RangeScript()
    script.answer(partition_data(high_watermark=10))
    script.until(LookUpBounds)
    script.state.bounds_found(LogBounds(0, END, END), script.now)

    assert 0 == script.until_fetch().offset


def test_an_open_transaction_is_named_when_time_runs_out():
    """If the last stable offset stays behind, the error says that a transaction is open."""
    script = RangeScript(is_committed=True)
    script.read(60)
    answer = partition_data(high_watermark=END, last_stable_offset=60)
    with pytest.raises(  # noqa: PT012 - each answer is a step
        KafkaTimeoutError, match=r"An open transaction holds back.*offset 60 on"
    ):
        for _ in range(1000):
            script.until(SendFetch, LookUpBounds)
            if isinstance(script.step(), LookUpBounds):
                script.state.bounds_found(LogBounds(0, END, 60), script.now)
            else:
                script.answer(answer)
            script.now += 0.1


# --- data loss


def test_retention_before_the_position_is_a_loss():
    """The position moves to the start of the log, and the offsets before it are lost."""
    script = RangeScript()
    script.answer(partition_data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert LookUpBounds(LEADER, 5) == script.step()
    script.state.bounds_found(LogBounds(30, END, END), script.now)

    loss = loss_of(script.step())
    assert ("t", 0, 0, 30, 30) == (
        loss.topic,
        loss.partition,
        loss.wanted,
        loss.available,
        loss.lost,
    )
    assert 30 == script.until_fetch().offset


def test_retention_past_the_end_ends_the_range():
    """If the log begins after the range, all of the range is lost and no more."""
    script = RangeScript()
    script.answer(partition_data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    script.step()
    script.state.bounds_found(LogBounds(END + 50, 200, 200), script.now)

    assert END == loss_of(script.step()).lost
    assert isinstance(script.step(), Done)


def test_an_offset_beyond_the_end_of_the_log_is_a_loss_when_confirmed():
    """If the log was truncated before the position, the rest of the range is lost."""
    script = RangeScript(start=50)
    script.answer(partition_data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    for _ in range(ASKS_UNTIL_SHORT):
        script.until(LookUpBounds)
        script.state.bounds_found(LogBounds(0, 40, 40), script.now)

    loss = loss_of(script.step())
    assert (50, 40, 50) == (loss.wanted, loss.available, loss.lost)
    assert isinstance(script.step(), Done)


def test_an_offset_that_the_log_has_is_asked_for_again():
    """A leader that refuses an offset which it has is asked again, without an unknown epoch."""
    script = RangeScript()
    script.read(50, leader_epoch=9)
    script.answer(partition_data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    script.until(LookUpBounds)
    script.state.bounds_found(LogBounds(0, END, END), script.now)

    assert isinstance(script.step(), Wait)
    fetch = script.until_fetch()
    assert (50, -1) == (fetch.offset, fetch.last_fetched_epoch)


def test_an_offset_within_a_log_that_is_too_short_is_not_lost():
    """A leader that refuses an offset which it has may not know its whole log (KAFKA-7703)."""
    script = RangeScript(start=50)
    for _ in range(ASKS_UNTIL_SHORT):
        script.until_fetch()
        script.answer(partition_data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        script.until(LookUpBounds)
        script.state.bounds_found(LogBounds(0, 60, 60), script.now)

    fetch = script.until_fetch()
    assert (50, END - 50) == (fetch.offset, fetch.left)


def test_a_log_that_diverges_before_the_position_is_a_loss():
    """Records were read that the log no longer has; reading goes on after them."""
    script = RangeScript()
    script.read(50)
    script.answer(partition_data(diverging_epoch=EpochEndOffset(epoch=4, end_offset=45)))

    loss = loss_of(script.step())
    assert (50, 45, 5) == (loss.wanted, loss.available, loss.lost)
    assert (50, -1) == (script.until_fetch().offset, script.until_fetch().last_fetched_epoch)


def test_a_log_that_diverges_after_the_position_is_no_loss():
    """What was read is still there, so reading goes on without the epoch."""
    script = RangeScript()
    script.read(50)
    script.answer(partition_data(diverging_epoch=EpochEndOffset(epoch=4, end_offset=50)))

    assert (50, -1) == (script.until_fetch().offset, script.until_fetch().last_fetched_epoch)


GONE = {
    "deleted": {"topic_error": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "leader": None},
    "recreated": {"topic_id": OTHER_ID},
    "shrunk": {"partition_count": 1, "leader": None},
}


@pytest.mark.parametrize("fields", GONE.values(), ids=GONE)
def test_a_topic_that_is_gone_is_a_loss_after_a_while(fields):
    """A partition of another topic of that name is never read; the rest of the range is lost."""
    script = RangeScript(partition=1, topic_id=ID)
    script.view = view(topic_id=ID, partition_count=2)
    script.read(60)
    script.view = view(**{"topic_id": ID, "partition_count": 2, **fields})

    loss = loss_of(script.until(Lose))
    assert script.now >= GONE_SECONDS
    assert (60, -1, END - 60) == (loss.wanted, loss.available, loss.lost)
    assert isinstance(script.step(), Done)


def test_a_topic_that_reappears_is_read():
    """Metadata of a broker that did not know the topic yet are no loss."""
    script = RangeScript()
    script.view = view(topic_error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert isinstance(script.step(), Refresh)
    script.refresh(topic_error=ErrorCode.NONE)

    assert isinstance(script.until_fetch(), SendFetch)


def test_a_topic_that_may_not_be_read_is_an_error_at_once():
    """The error names the missing right."""
    script = RangeScript()
    script.view = view(topic_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, leader=None)
    with pytest.raises(BrokerError, match="Grant this user READ"):
        script.step()


# --- leaders and followers


def test_a_lost_connection_leads_to_new_metadata_at_once():
    """After the first failure the metadata are requested at once, and later after a back-off."""
    script = RangeScript()
    script.state.failed(LOST, script.now, leader_epoch=5)
    assert isinstance(script.step(), Refresh)
    script.refresh()
    assert isinstance(script.step(), SendFetch)
    script.state.failed(LOST, script.now, leader_epoch=5)
    assert isinstance(script.step(), Wait)


def test_a_leader_that_the_answer_names_is_asked_at_once():
    """If the metadata have a newer leader already, none are requested (KIP-951)."""
    script = RangeScript()
    script.answer(partition_data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    script.view = view(leader=OTHER, leader_epoch=6)

    fetch = script.step()
    assert (OTHER, 6) == (fetch.node, fetch.leader_epoch)


def test_a_partition_without_a_leader_is_waited_for():
    """Without a leader, metadata are requested with back-offs until there is one."""
    script = RangeScript()
    script.view = view(leader=None)
    assert isinstance(script.step(), Refresh)
    script.refresh()
    assert isinstance(script.step(), Wait)
    script.view = view(leader=OTHER, leader_epoch=6)
    assert OTHER == script.until_fetch().node


def test_metadata_older_than_the_range_are_refreshed():
    """A leader epoch before that of the plan is not used."""
    script = RangeScript(leader_epoch=6)
    assert isinstance(script.step(), Refresh)
    script.refresh()
    assert isinstance(script.step(), Wait)
    script.view = view(leader=OTHER, leader_epoch=6)
    assert OTHER == script.until_fetch().node


def test_brokers_without_epochs_are_read():
    """Metadata of brokers that have no leader epochs are used although the range has one."""
    script = RangeScript(leader_epoch=6)
    script.view = view(leader_epoch=-1)
    assert isinstance(script.step(), SendFetch)


def test_a_recommended_follower_is_read_for_a_while():
    """The follower is asked until it is time to ask the leader for a recommendation again."""
    script = RangeScript()
    script.redirect()
    assert (FOLLOWER, True, 5) == (
        script.step().node,
        script.step().is_replica,
        script.step().leader_epoch,
    )
    script.read(50)
    assert FOLLOWER == script.until_fetch().node
    script.now += REPLICA_MAX_AGE
    script.state.resume(script.now)
    assert LEADER == script.until_fetch().node


def test_a_follower_that_has_nothing_does_not_end_the_range():
    """Only the leader says that nothing is left."""
    script = RangeScript()
    script.redirect()
    for _ in range(EMPTY_UNTIL_DONE - 1):
        script.answer(partition_data())
    fetch = script.until_fetch()
    assert (LEADER, False, True) == (fetch.node, fetch.may_redirect, fetch.may_wait)


def test_a_follower_without_an_address_is_not_recommended_again():
    """If the metadata lack the follower even though it is recommended again, the leader is read."""
    script = RangeScript()
    script.view = view(nodes={LEADER.node_id: LEADER})
    script.redirect()
    assert LEADER == script.step().node
    script.redirect()
    fetch = script.until_fetch()
    assert (LEADER, False) == (fetch.node, fetch.may_redirect)


def test_a_leader_that_insists_on_a_failed_follower_does_not_end_the_range():
    """An answer that only recommends the follower says nothing of records: it is tried again."""
    script = RangeScript()
    script.read(40)
    with pytest.raises(  # noqa: PT012 - each failure is a step
        KafkaTimeoutError, match=r"at offset 40; .*Last seen: "
    ):
        for _ in range(10_000):
            if script.until_fetch().is_replica:
                script.state.failed(LOST, script.now, leader_epoch=5)
            else:
                script.redirect()
    assert 40 == script.state.position


def test_a_follower_that_the_leader_insists_on_is_read_when_it_is_back():
    """A follower that failed once is read again if the leader recommends nothing else."""
    script = RangeScript()
    script.redirect()
    script.until_fetch()
    script.state.failed(LOST, script.now, leader_epoch=5)
    script.redirect()
    script.redirect()

    assert FOLLOWER == script.until_fetch().node


def test_a_follower_that_lags_decides_nothing_about_a_log_that_diverges():
    """A follower whose log ends earlier seems to diverge: the leader is asked."""
    script = RangeScript()
    script.read(40)
    script.redirect()
    assert script.until_fetch().is_replica
    script.answer(partition_data(diverging_epoch=EpochEndOffset(epoch=5, end_offset=30)))

    fetch = script.until_fetch()
    assert (LEADER, 40, 5) == (fetch.node, fetch.offset, fetch.last_fetched_epoch)


# --- time


def test_no_progress_ends_in_an_error_with_what_was_last_seen():
    """The error names place, offset and range, and the last failure."""
    script = RangeScript()
    script.read(60)
    with pytest.raises(KafkaTimeoutError) as raised:  # noqa: PT012 - each failure is a step
        while True:
            script.until_fetch()
            script.state.failed(LOST, script.now, leader_epoch=5)
    assert (
        "t-0: no progress within 60 s at offset 60; the range ends at offset 100. "
        "Last seen: the connection was lost"
    ) == str(raised.value)


@pytest.mark.parametrize(
    ("seen", "leader", "epoch"),
    [
        (r"the topic is unknown, or t-0 has no leader$", None, 5),
        (r"the metadata are older than those of the range: leader epoch 4, not 5$", LEADER, 4),
    ],
)
def test_metadata_that_are_of_no_use_are_named_when_time_runs_out(seen, leader, epoch):
    """The error distinguishes a partition without a leader from metadata that are too old."""
    script = RangeScript(leader_epoch=5)
    script.view = view(leader=leader, leader_epoch=epoch)
    script.state.refreshed(script.view, script.now)
    script.now = script.state.deadline
    with pytest.raises(KafkaTimeoutError, match=seen):
        script.step()


@pytest.mark.parametrize(
    ("data", "next_offset", "seen"),
    [
        (None, None, r"broker-1.* answered without the partition$"),
        (partition_data(), 40, r"broker-1.* returned only batches before offset 50$"),
        (partition_data(), None, r"broker-1.* returned no records; its high watermark is 100$"),
        (partition_data(error_code=6), None, r"t-0: Fetch from offset 50 at broker-1"),
    ],
)
def test_an_answer_of_no_use_is_named_when_time_runs_out(data, next_offset, seen):
    """The error says what the broker has answered last."""
    script = RangeScript(start=50)
    script.answer(data, next_offset=next_offset)
    script.now = script.state.deadline
    with pytest.raises(KafkaTimeoutError, match=f"Last seen: {seen}"):
        script.step()


def test_the_time_of_the_consumer_does_not_count():
    """A consumer that takes long for the rows of an answer may go on."""
    script = RangeScript()
    script.read(60)
    script.now += 10 * TIMEOUT
    script.state.resume(script.now)

    assert isinstance(script.step(), SendFetch)


def test_looking_ahead_takes_no_step():
    """Whether a Fetch may be sent ahead is known without reporting a loss or raising an error."""
    script = RangeScript()
    assert script.state.may_fetch(script.view, script.now)
    script.read(50)
    script.answer(partition_data(diverging_epoch=EpochEndOffset(epoch=4, end_offset=45)))
    assert not script.state.may_fetch(script.view, script.now)
    assert isinstance(script.step(), Lose)
    assert not script.state.may_fetch(script.view, script.now + 2 * TIMEOUT)
