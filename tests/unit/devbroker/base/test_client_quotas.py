"""Which quota applies to a client, and how long it waits."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.client_quotas import (
    CLIENT_ID,
    PRODUCER_BYTE_RATE,
    USER,
    ClientRates,
    Quota,
    entity_of,
    find_quota,
)

#: The entities of a client from the most to the least specific, with those who share the quota.
LEVELS = [
    ({USER: "alice", CLIENT_ID: "app"}, ("alice", "app")),
    ({USER: "alice", CLIENT_ID: None}, ("alice", "app")),
    ({USER: "alice"}, ("alice", None)),
    ({USER: None, CLIENT_ID: "app"}, ("alice", "app")),
    ({USER: None, CLIENT_ID: None}, ("alice", "app")),
    ({USER: None}, ("alice", None)),
    ({CLIENT_ID: "app"}, (None, "app")),
    ({CLIENT_ID: None}, (None, "app")),
]


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_most_specific_quota_applies(level):
    """Each level takes precedence over all that come after it."""
    quotas = {
        entity_of(names): {PRODUCER_BYTE_RATE: float(place)}
        for place, (names, _) in list(enumerate(LEVELS))[level:]
    }

    found = find_quota(quotas, PRODUCER_BYTE_RATE, "alice", "app")

    assert Quota(float(level), (PRODUCER_BYTE_RATE, *LEVELS[level][1])) == found


def test_a_quota_of_another_client_or_kind_does_not_apply():
    """A client without a quota is not limited."""
    quotas = {
        entity_of({USER: "bob"}): {PRODUCER_BYTE_RATE: 1.0},
        entity_of({USER: "alice"}): {"consumer_byte_rate": 1.0},
    }

    assert find_quota(quotas, PRODUCER_BYTE_RATE, "alice", "app") is None


QUOTA = Quota(100.0, ("k", "alice", None))


def test_a_client_may_send_what_it_is_allowed_in_ten_seconds_at_once():
    """The rate counts as if ten seconds had passed."""
    rates = ClientRates()

    assert 0 == rates.record(QUOTA, 1000, 5.0)
    assert 0.01 == pytest.approx(rates.record(QUOTA, 1, 5.0))


def test_a_client_waits_until_its_rate_is_the_quota():
    """Twice as much as allowed in ten seconds means a wait of ten seconds."""
    assert 10.0 == pytest.approx(ClientRates().record(QUOTA, 2000, 5.0))


def test_what_was_sent_is_forgotten_after_eleven_seconds():
    """A window that is eleven seconds old no longer counts."""
    rates = ClientRates()
    rates.record(QUOTA, 1000, 0.0)

    assert rates.record(QUOTA, 1000, 10.9) > 0

    rates = ClientRates()
    rates.record(QUOTA, 1000, 0.0)
    assert 0 == rates.record(QUOTA, 1000, 11.0)


def test_what_a_client_does_not_get_does_not_count():
    """A refused record leaves the rate as it was."""
    rates = ClientRates()

    assert rates.try_record(QUOTA, 2000, 0.0) > 0
    assert 0 == rates.try_record(QUOTA, 1000, 0.0)


def test_clients_share_a_quota_only_by_the_same_names():
    """One client's rate does not count for another's."""
    rates = ClientRates()
    rates.record(QUOTA, 1000, 0.0)

    assert 0 == rates.record(Quota(100.0, ("k", "bob", None)), 1000, 0.0)


def test_idle_clients_are_forgotten():
    """The rates of many clients take no memory once they are idle."""
    rates = ClientRates()
    for number in range(1000):
        rates.record(Quota(100.0, ("k", str(number), None)), 1, 0.0)

    rates.record(QUOTA, 1, 20.0)

    assert 1 == len(rates._rates)
