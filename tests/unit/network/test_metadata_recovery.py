from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.metadata_updater import MetadataRecovery


def test_no_rebootstrap_is_due_without_requests():
    """Time alone causes no rebootstrap, only unanswered requests do."""
    assert NEVER == MetadataRecovery(enabled=True, trigger=300.0).due_at()


def test_the_time_counts_from_the_first_unanswered_request():
    """Further requests do not delay the end of metadata.recovery.rebootstrap.trigger.ms."""
    recovery = MetadataRecovery(enabled=True, trigger=300.0)
    recovery.asking(10.0)
    recovery.asking(200.0)
    assert 310.0 == recovery.due_at()


def test_a_response_resets_the_time():
    """After a response the next request has the full time."""
    recovery = MetadataRecovery(enabled=True, trigger=300.0)
    recovery.asking(10.0)
    recovery.answered()
    assert NEVER == recovery.due_at()
    recovery.asking(400.0)
    assert 700.0 == recovery.due_at()


def test_a_rebootstrap_resets_the_time():
    """The bootstrap servers have as much time to answer as the forgotten brokers had."""
    recovery = MetadataRecovery(enabled=True, trigger=300.0)
    recovery.asking(10.0)
    recovery.rebootstrapped(310.0)
    assert 610.0 == recovery.due_at()


def test_the_strategy_none_never_rebootstraps():
    """With metadata.recovery.strategy=none a rebootstrap is never due."""
    recovery = MetadataRecovery(enabled=False, trigger=0.0)
    recovery.asking(10.0)
    assert NEVER == recovery.due_at()
    assert not recovery.is_enabled
