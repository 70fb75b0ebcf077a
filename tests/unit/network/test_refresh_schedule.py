import random

import pytest

from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import RefreshSchedule


class _NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.fixture
def schedule() -> RefreshSchedule:
    return RefreshSchedule(backoff=ExponentialBackoff(0.1, 1.0, _NoJitter()), max_age=300.0)


def test_a_full_update_is_due_at_once_before_the_first_response(schedule):
    """After a partial response, or none, it is still due as soon as the back-off allows."""
    assert schedule.is_full_update_due(0.0)
    assert (0.0, 0.0) == (
        schedule.next_at(has_new_topics=False),
        schedule.next_at(has_new_topics=True),
    )
    schedule.failed(5.0)
    assert 5.1 == schedule.next_at(has_new_topics=False)
    schedule.answered(6.0, full=False, progressed=True)
    assert schedule.is_full_update_due(6.0)
    assert 6.1 == schedule.next_at(has_new_topics=False)
    assert schedule.last_full_answer is None


def test_a_full_update_is_due_at_the_maximum_age(schedule):
    """It is not due earlier, and earlier requests wait for the back-off alone."""
    schedule.answered(10.0, full=True, progressed=True)
    assert 10.0 == schedule.last_full_answer
    assert 310.0 == schedule.next_at(has_new_topics=False)
    assert not schedule.is_full_update_due(309.9)
    assert schedule.is_full_update_due(310.0)
    schedule.request_full_update()
    assert schedule.is_full_update_due(10.0)
    assert 10.1 == schedule.next_at(has_new_topics=False)


def test_responses_without_news_lengthen_the_backoff(schedule):
    """Each doubles it, up to the maximum, until one has news or a new topic is used."""
    pauses = []
    for now in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        schedule.answered(now, full=True, progressed=False)
        pauses.append(round(schedule.next_at(has_new_topics=True) - now, 9))
    assert [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == pauses
    schedule.allow_at_once()
    assert 0.0 == schedule.next_at(has_new_topics=True)
    schedule.answered(7.0, full=True, progressed=False)
    assert 7.1 == schedule.next_at(has_new_topics=True)
    schedule.answered(8.0, full=True, progressed=False)
    assert 8.2 == schedule.next_at(has_new_topics=True)
    schedule.answered(9.0, full=True, progressed=True)
    assert 9.1 == schedule.next_at(has_new_topics=True)


def test_partial_responses_without_news_lengthen_the_backoff(schedule):
    """Before the first full response nothing is too old."""
    pauses = []
    for now in (0.0, 1.0, 2.0):
        schedule.answered(now, full=False, progressed=False)
        pauses.append(round(schedule.next_at(has_new_topics=True) - now, 9))
    assert [0.1, 0.2, 0.4] == pauses


def test_failures_lengthen_a_backoff_of_their_own(schedule):
    """Each doubles it, up to the maximum, whatever the responses before."""
    schedule.answered(0.0, full=True, progressed=False)
    schedule.answered(0.0, full=True, progressed=False)
    pauses = []
    for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        schedule.failed(now)
        pauses.append(round(schedule.next_at(has_new_topics=True) - now, 9))
    assert [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == pauses


def test_a_response_due_by_age_does_not_lengthen_the_backoff(schedule):
    """A response without news to a request due by age does not lengthen the back-off."""
    for now in (0.0, 300.0, 600.0, 900.0):
        schedule.answered(now, full=True, progressed=False)
    schedule.request_full_update()
    assert 900.1 == pytest.approx(schedule.next_at(has_new_topics=False))


def test_a_response_resets_the_backoff_of_failures(schedule):
    """After a response the next failure waits as long as the first one did."""
    for now in (0.0, 1.0, 2.0):
        schedule.failed(now)
    assert 2.4 == pytest.approx(schedule.next_at(has_new_topics=False))
    schedule.answered(3.0, full=True, progressed=True)
    schedule.failed(4.0)
    assert 304.0 > schedule.next_at(has_new_topics=True) == pytest.approx(4.1)


def test_a_partial_response_does_not_replace_a_full_update(schedule):
    """A full update remains due until it has arrived."""
    schedule.answered(0.0, full=True, progressed=True)
    schedule.request_full_update()
    schedule.answered(1.0, full=False, progressed=True)
    assert schedule.is_full_update_due(1.0)
    schedule.answered(2.0, full=True, progressed=True)
    assert not schedule.is_full_update_due(2.0)


def test_an_expired_topic_is_requested_without_backoff(schedule):
    """No back-off delays it, and a response without news does not lengthen the next one."""
    for now in (0.0, 1.0, 2.0):
        schedule.answered(now, full=True, progressed=False)
    schedule.expire()
    assert 0.0 == schedule.next_at(has_new_topics=False)
    schedule.answered(2.0, full=False, progressed=True)
    assert schedule.is_full_update_due(2.0)
    for now in (2.0, 3.0, 4.0):
        schedule.expire()
        schedule.answered(now, full=True, progressed=False)
    assert 304.0 == schedule.next_at(has_new_topics=False)
    schedule.request_full_update()
    assert 4.1 == pytest.approx(schedule.next_at(has_new_topics=False))


def test_new_topics_are_requested_as_soon_as_the_backoff_allows(schedule):
    """A new topic is due when the back-off is over, all others after metadata.max.age.ms."""
    schedule.answered(0.0, full=True, progressed=True)
    assert 300.0 == schedule.next_at(has_new_topics=False)
    assert 0.1 == schedule.next_at(has_new_topics=True)
    schedule.allow_at_once()
    assert 0.0 == schedule.next_at(has_new_topics=True)
