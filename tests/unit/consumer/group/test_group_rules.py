"""Every row of the table of errors of a classic group, and the codes that are not in it."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.group.group_requests import (
    GROUP_ADVICE,
    GROUP_RULES,
    GroupAction,
    group_action,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode

_E, _A = ErrorCode, GroupAction
ROWS = [(key, code, action) for key, rules in GROUP_RULES.items() for code, action in rules.items()]


@pytest.mark.parametrize(("key", "code", "action"), ROWS)
def test_a_row_is_the_reaction(key, code, action):
    """Each row of the table is what its code means."""
    assert action is group_action(key, code)


@pytest.mark.parametrize("key", GROUP_RULES, ids=lambda key: key.name)
def test_codes_beside_the_table_are_retried_if_kafka_says_so(key):
    """A retriable code is retried; another one is fatal, except for a heartbeat."""
    assert _A.RETRY is group_action(key, _E.REQUEST_TIMED_OUT)
    expected = _A.RETRY if key is ApiKey.HEARTBEAT else _A.FATAL
    assert expected is group_action(key, _E.UNKNOWN_SERVER_ERROR)
    assert expected is group_action(key, 999)


def test_each_fatal_row_advises():
    """For each fatal code of the table there is something that the user can do."""
    fatal = {code for _, code, action in ROWS if action in {_A.FATAL, _A.FENCED}}
    assert fatal == GROUP_ADVICE.keys()
