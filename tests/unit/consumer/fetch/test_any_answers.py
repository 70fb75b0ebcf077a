"""Whatever the brokers answer, a read ends in rows or an error, and never spins."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.fetch.range_fetch import (
    Done,
    LogBounds,
    LookUpBounds,
    Lose,
    Refresh,
    SendFetch,
    Wait,
)
from spark_kafka_sink.errors import KafkaError, NetworkError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import EpochEndOffset
from tests.support.consumer.range_script import (
    END,
    LEADER,
    NODES,
    OTHER,
    TIMEOUT,
    RangeScript,
    partition_data,
    view,
)

OFFSETS = st.integers(-1, END + 20)
CODES = st.sampled_from([*ErrorCode, 999])
EPOCHS = st.integers(-1, 9)
#: Steps in a row that may take no time: a Fetch, what it leads to, and a repetition.
MOST_STEPS = 25

answers = st.one_of(
    st.none(),
    st.builds(
        partition_data,
        error_code=CODES,
    ),
    st.builds(
        partition_data,
        high_watermark=OFFSETS,
        last_stable_offset=OFFSETS,
        preferred_read_replica=st.sampled_from([-1, -1, *NODES, 99]),
        diverging_epoch=st.just(EpochEndOffset())
        | st.builds(lambda e, o: EpochEndOffset(epoch=e, end_offset=o), EPOCHS, OFFSETS),
    ),
)
batches = st.none() | st.tuples(OFFSETS, EPOCHS)
views = st.builds(
    view,
    leader=st.sampled_from([None, LEADER, OTHER]),
    leader_epoch=EPOCHS,
    topic_id=st.sampled_from([UUID(int=0), UUID(int=1), UUID(int=1), UUID(int=2)]),
    topic_error=st.sampled_from([0, 0, 0, 3, 5, 29]),
    partition_count=st.integers(0, 1),
)
events = st.tuples(
    st.sampled_from(["answer", "answer", "answer", "lost", "bounds"]),
    answers,
    batches,
    st.sampled_from([0.0, 0.0, 0.0, 1.5]),
    st.tuples(OFFSETS, OFFSETS, OFFSETS, OFFSETS),
    views,
)


class _Play:
    """A read whose brokers do what the events say, over and over."""

    def __init__(self, script: RangeScript, events: list) -> None:
        self.script = script
        self.events = events
        self.number = 0
        self.lost = 0
        self.steps_without_time = 0

    def run(self) -> None:
        """Read to the end; raise KafkaError if the read fails."""
        script, state = self.script, self.script.state
        while True:
            before = (state.position, state.end, script.now)
            step = script.step()
            if isinstance(step, Done):
                assert state.position >= state.end
                return
            self.play(step)
            assert state.position >= before[0]
            if (state.position, state.end, script.now) != before:
                self.steps_without_time = 0
            self.steps_without_time += 1
            assert self.steps_without_time < MOST_STEPS

    def play(self, step: object) -> None:
        """Do what a step says, as the next event has it."""
        script, state = self.script, self.script.state
        kind, data, read, throttle, bounds, seen = self.events[self.number % len(self.events)]
        match step:
            case Wait(until):
                assert until > script.now
                script.now = until
                return
            case Lose(loss):
                assert loss.lost > 0
                self.lost += 1
                return
            case Refresh() if kind == "lost":
                state.failed(NetworkError("lost"), script.now)
            case Refresh():
                script.view = seen
                script.refresh()
            case LookUpBounds() if kind == "lost":
                state.failed(NetworkError("lost"), script.now, leader_epoch=step.leader_epoch)
            case LookUpBounds():
                state.bounds_found(LogBounds(*bounds), script.now)
            case SendFetch() if kind == "lost":
                state.failed(NetworkError("lost"), script.now, leader_epoch=step.leader_epoch)
            case SendFetch():
                next_offset, epoch = read or (None, -1)
                rows = script.answer(
                    data, next_offset=next_offset, leader_epoch=epoch, throttle=throttle
                )
                assert rows is None or rows.start < state.position
        self.number += 1


@given(
    st.lists(events, min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([None, UUID(int=1)]),
)
def test_every_read_ends(what, is_committed, topic_id):
    """A read ends in rows up to its end, or in an error; the position never goes back."""
    script = RangeScript(is_committed=is_committed, topic_id=topic_id)
    play = _Play(script, what)
    with suppress(KafkaError):
        play.run()
    # Each progress restarts the timeout, and there is at most one for each offset.
    assert script.now <= TIMEOUT * (END + play.lost + 2)
