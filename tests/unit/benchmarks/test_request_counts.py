from collections import Counter
from fractions import Fraction

from benchmarks.request_counts import (
    FEW_TASKS,
    MANY_TASKS,
    are_equal,
    counted,
    medians,
    per_task,
)
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from tests.support.network.raw_client import RawClient


def test_requests_sent_once_per_job_are_not_counted_per_task():
    """Only requests that grow with the number of tasks count, as often as sent per task."""
    few = {ApiKey.PRODUCE: FEW_TASKS, ApiKey.LIST_TRANSACTIONS: 2}
    many = {
        ApiKey.PRODUCE: MANY_TASKS,
        ApiKey.LIST_TRANSACTIONS: 2,
        ApiKey.END_TXN: 2 * (MANY_TASKS - FEW_TASKS),
    }
    assert {ApiKey.PRODUCE: 1, ApiKey.END_TXN: 2} == per_task(few, many)


def test_an_extra_request_in_one_job_is_ignored():
    """The result is the median of several jobs, in which a missing kind counts as 0."""
    usual = {ApiKey.PRODUCE: Fraction(1)}
    unusual = {ApiKey.PRODUCE: Fraction(21, 20), ApiKey.METADATA: Fraction(1, 20)}
    assert {ApiKey.PRODUCE: 1, ApiKey.METADATA: 0} == medians([usual, unusual, usual])


def test_counts_are_constant_only_if_each_kind_is():
    """Equal totals of different kinds are not equal."""
    one, other = Counter({ApiKey.FETCH: 2}), Counter({ApiKey.FETCH: 1, ApiKey.PRODUCE: 1})
    assert are_equal({(1, 2): one, (200, 2): one.copy()})
    assert not are_equal({(1, 2): one, (200, 2): other})


def test_each_request_to_a_broker_is_counted_and_answered():
    """Two requests are counted and answered, and a copy of the counts does not change."""
    with DevBroker() as broker, counted(broker) as requests, RawClient(broker.port) as client:
        client.ask(ApiVersionsRequest(), 0)
        before = requests.taken()
        client.ask(ApiVersionsRequest(), 0)
        assert [1, 2] == [before[ApiKey.API_VERSIONS], requests.taken()[ApiKey.API_VERSIONS]]
        requests.clear()
        assert Counter() == requests.taken()
