from __future__ import annotations

import pytest

from spark_kafka_sink.config.sink_options import ExactlyOnceOptions, SinkOptions
from spark_kafka_sink.errors import ConfigError

GIVEN = {
    "kafka.bootstrap.servers": "localhost:9092",
    "deliveryGuarantee": "exactly_once",
    "transactionalIdPrefix": "orders",
}


def options(**given):
    return SinkOptions.from_mapping({**GIVEN, **given})


def refusal(without=(), **given):
    settings = {name: value for name, value in GIVEN.items() if name not in without}
    with pytest.raises(ConfigError) as caught:
        SinkOptions.from_mapping({**settings, **given})
    return str(caught.value)


def test_the_minimal_options_suffice():
    """An exactly-once write needs only a prefix; all other options have defaults."""
    assert (
        ExactlyOnceOptions(
            prefix="orders",
            ledger_topic="spark-kafka-sink-ledger",
            ledger_replication_factor=-1,
            write_id=None,
            write_id_retention_ms=604_800_000,
            transaction_timeout_ms=900_000,
        )
        == options().exactly_once
    )


def test_every_option_is_read():
    """Every option, and the producer's transaction timeout, is read."""
    given = options(
        ledgerTopic="ledger",
        ledgerReplicationFactor="3",
        writeId="w",
        writeIdRetentionMs="5",
        **{"kafka.transaction.timeout.ms": "60000"},
    )
    assert (
        ExactlyOnceOptions(
            prefix="orders",
            ledger_topic="ledger",
            ledger_replication_factor=3,
            write_id="w",
            write_id_retention_ms=5,
            transaction_timeout_ms=60_000,
        )
        == given.exactly_once
    )


@pytest.mark.parametrize("word", ["exactly_once", "EXACTLY_ONCE", " Exactly_Once "])
def test_the_guarantee_is_case_insensitive(word):
    """The delivery guarantee is case-insensitive."""
    assert options(deliveryGuarantee=word).exactly_once is not None


def test_an_unknown_guarantee_is_rejected():
    """The error for an unknown guarantee lists both valid ones."""
    assert (
        "deliveryGuarantee must be one of: at_least_once, exactly_once, not 'exactly-once'"
        == refusal(deliveryGuarantee="exactly-once")
    )


def test_a_prefix_is_required():
    """An exactly-once write without a prefix is an error."""
    assert refusal(without=["transactionalIdPrefix"]).startswith(
        "deliveryGuarantee=exactly_once requires transactionalIdPrefix: a unique name for this "
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transactionalIdPrefix", "orders"),
        ("ledgerTopic", "ledger"),
        ("ledgerReplicationFactor", "3"),
        ("writeId", "w"),
        ("writeIdRetentionMs", "5"),
        ("kafka.transaction.timeout.ms", "5"),
    ],
)
def test_exactly_once_options_require_the_guarantee(name, value):
    """An exactly-once option without the guarantee is an error, since it would have no effect."""
    without = ["deliveryGuarantee", "transactionalIdPrefix"]
    assert refusal(without, **{name: value}) == (
        f"{name} is for exactly-once writes: set deliveryGuarantee=exactly_once, or remove it"
    )


@pytest.mark.parametrize(
    "setting", [{"kafka.acks": "1"}, {"kafka.retries": "0"}, {"kafka.enable.idempotence": "false"}]
)
def test_idempotence_is_required(setting):
    """Settings that disable idempotence contradict an exactly-once write."""
    assert "deliveryGuarantee=exactly_once requires kafka.enable.idempotence=true" in refusal(
        **setting
    )


def test_the_ledger_must_not_be_the_target_topic():
    """The ledger must not be the topic that rows are written to."""
    assert "ledgerTopic must not be the topic that rows are written to" == refusal(
        topic="events", ledgerTopic="events"
    )


@pytest.mark.parametrize("name", ["a b", "", ".."])
def test_the_ledger_needs_a_valid_topic_name(name):
    """An invalid topic name for the ledger is an error."""
    assert "opic" in refusal(ledgerTopic=name)


@pytest.mark.parametrize("factor", ["0", "-2", "32768"])
def test_the_replication_factor_is_positive_or_the_default(factor):
    """The replication factor is at least 1, or -1 for the cluster's default."""
    assert "ledgerReplicationFactor must be between 1 and 32767, or -1" in refusal(
        ledgerReplicationFactor=factor
    )


def test_a_retention_requires_a_write_id():
    """A retention without a writeId is an error, since it would have no effect."""
    assert "writeIdRetentionMs is for writes with a writeId: set writeId, or remove it" == refusal(
        writeIdRetentionMs="5"
    )
