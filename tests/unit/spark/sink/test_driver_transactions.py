"""The state that a driver keeps from one step of its exactly-once writes to the next."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.sink import exactly_once_write
from spark_kafka_sink.spark.sink.exactly_once_write import step_timeout, two_phase_commit


class _FakeAdmin:
    """An admin client that accepts every call and records its name."""

    def __init__(self, config):
        self.config = config
        self.calls = []

    def __getattr__(self, name):
        return lambda *_, **__: self.calls.append(name)

    def __repr__(self):
        return f"{self.calls}"


@pytest.fixture
def admins(monkeypatch):
    """Return the list of created clients, in a process that has none yet."""
    made = []

    def make(config):
        made.append(_FakeAdmin(config))
        return made[-1]

    monkeypatch.setattr(exactly_once_write, "DriverClient", make)
    monkeypatch.setattr(exactly_once_write, "ensure_ledger_topic", lambda *_, **__: None)
    monkeypatch.setattr(exactly_once_write, "_kept", {})
    return made


def options_of(prefix, **more):
    return SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "topic": "events",
            "deliveryGuarantee": "exactly_once",
            "transactionalIdPrefix": prefix,
            **more,
        }
    )


def step(prefix, **more):
    options = options_of(prefix, **more)
    with two_phase_commit(options.producer, options.exactly_once):
        pass


def test_a_client_is_kept_and_its_cluster_checked_once(admins):
    """The next step under the same prefix reuses the client and skips the checks."""
    for _ in range(3):
        step("orders")
    assert [["require_transaction_apis", "init_producer_id"]] == [admin.calls for admin in admins]


def test_a_step_after_the_tasks_does_not_check_the_cluster(admins):
    """It must not fail because a broker restarts; the next plan checks the cluster."""
    options = options_of("orders")
    with two_phase_commit(options.producer, options.exactly_once, checks=False):
        pass
    assert [] == admins[0].calls
    step("orders")
    assert [["require_transaction_apis", "init_producer_id"]] == [admin.calls for admin in admins]


@pytest.mark.parametrize(
    "more", [{"transactionalIdPrefix": "other"}, {"ledgerTopic": "l"}, {"kafka.linger.ms": "7"}]
)
def test_each_prefix_ledger_and_configuration_has_its_own_client(admins, more):
    """Clients are kept per prefix, ledger topic and configuration."""
    step("orders")
    step("orders", **more)
    assert 2 == len(admins)


def test_at_most_eight_clients_are_kept(admins):
    """With a ninth, the least recently used client is closed."""
    for number in range(8):
        step(f"p{number}")
    step("p0")
    assert [False] * 8 == ["close" in admin.calls for admin in admins]
    step("p8")
    assert [False, True, *[False] * 7] == ["close" in admin.calls for admin in admins]
    step("p0")
    assert 9 == len(admins)


def test_the_client_of_a_step_that_failed_is_closed(admins):
    """The next step creates a new client and checks the cluster again."""
    options = options_of("orders")
    with (
        pytest.raises(KafkaError, match="no leader"),
        two_phase_commit(options.producer, options.exactly_once),
    ):
        raise KafkaError("no leader")
    assert "close" == admins[0].calls[-1]
    step("orders")
    assert ["require_transaction_apis", "init_producer_id"] == admins[1].calls


def test_the_timeout_of_a_step_is_the_delivery_timeout():
    """The timeout of a step is delivery.timeout.ms, in seconds."""
    config = options_of("orders", **{"kafka.delivery.timeout.ms": "130001"}).producer
    assert 130.001 == step_timeout(config)
