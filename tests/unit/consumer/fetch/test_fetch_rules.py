"""Every row of the table of Fetch errors, and the codes that are not in it."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.fetch.fetch_rules import (
    FETCH_RULES,
    FetchAction,
    fetch_action,
)
from spark_kafka_sink.consumer.fetch.range_fetch import (
    LookUpBounds,
    Refresh,
    SendFetch,
    Wait,
)
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_invalid_metadata, is_retriable
from tests.support.consumer.range_script import LEADER, RangeScript, partition_data

#: The step after an error from the leader.
STEPS = {
    FetchAction.REFRESH: Refresh,
    FetchAction.WAIT: Wait,
    FetchAction.LOOK_UP_BOUNDS: LookUpBounds,
}
NOT_FATAL = [
    ErrorCode(code)
    for code, action in FETCH_RULES.items()
    if action not in {FetchAction.READ, FetchAction.FATAL}
]
FATAL = [ErrorCode(code) for code, action in FETCH_RULES.items() if action is FetchAction.FATAL]


@pytest.mark.parametrize("code", NOT_FATAL, ids=lambda code: code.name)
def test_an_error_leads_to_its_step(code):
    """After an error of the table, the next step is that of its row, and then a Fetch again."""
    script = RangeScript()
    script.answer(partition_data(error_code=code))

    assert isinstance(script.step(), STEPS[FETCH_RULES[code]])
    assert isinstance(script.until_fetch(), SendFetch)
    assert 0 == script.state.position


@pytest.mark.parametrize("code", FATAL, ids=lambda code: code.name)
def test_a_fatal_error_is_raised_with_its_place(code):
    """A fatal error is raised at once; it names the partition, the offset and the broker."""
    script = RangeScript()
    with pytest.raises(BrokerError) as raised:
        script.answer(partition_data(error_code=code))

    assert code == raised.value.code
    assert f"t-0: Fetch from offset 0 at {LEADER}" in str(raised.value)


@pytest.mark.parametrize("code", [*NOT_FATAL, *FATAL], ids=lambda code: code.name)
def test_an_error_of_a_follower_is_not_final(code):
    """Whatever a follower answers, the leader is asked next, which no longer recommends it."""
    script = RangeScript()
    script.redirect()
    script.answer(partition_data(error_code=code))

    fetch = script.until_fetch()
    assert (LEADER, False, False) == (fetch.node, fetch.is_replica, fetch.may_redirect)


@pytest.mark.parametrize("code", [*ErrorCode, 999], ids=str)
def test_a_code_without_a_row_follows_its_kind(code):
    """Codes that are not in the table are retried if Kafka calls them retriable, else fatal."""
    if code in FETCH_RULES:
        assert FETCH_RULES[code] is fetch_action(code)
    elif is_invalid_metadata(code):
        assert fetch_action(code) is FetchAction.REFRESH
    elif is_retriable(code):
        assert fetch_action(code) is FetchAction.WAIT
    else:
        assert fetch_action(code) is FetchAction.FATAL
