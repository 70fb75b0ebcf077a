"""The subjects of Confluent's strategies."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.registry.subjects import SubjectNameStrategy


@pytest.mark.parametrize(
    ("strategy", "key", "value"),
    [
        (SubjectNameStrategy.TOPIC_NAME, "orders-key", "orders-value"),
        (SubjectNameStrategy.RECORD_NAME, "shop.Order", "shop.Order"),
        (SubjectNameStrategy.TOPIC_RECORD_NAME, "orders-shop.Order", "orders-shop.Order"),
    ],
)
def test_a_strategy_makes_the_subject(strategy, key, value):
    """Only the subject by topic tells keys from values."""
    assert key == strategy.subject("orders", is_key=True, record="shop.Order")
    assert value == strategy.subject("orders", is_key=False, record="shop.Order")


@pytest.mark.parametrize("package", ["", "io.confluent.kafka.serializers.subject."])
def test_a_strategy_has_the_name_of_confluents_class(package):
    """The package may be left out."""
    for strategy in SubjectNameStrategy:
        assert strategy == SubjectNameStrategy.read(f"{package}{strategy}", "valueSubject")


@pytest.mark.parametrize(
    "strategy", [SubjectNameStrategy.RECORD_NAME, SubjectNameStrategy.TOPIC_RECORD_NAME]
)
def test_a_strategy_by_record_needs_one(strategy):
    """A schema that is not a record has no name."""
    assert strategy.needs_record
    with pytest.raises(ConfigError, match="the schema of the value of topic 'orders' is not one"):
        strategy.subject("orders", is_key=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("topicname", "must be one of: TopicNameStrategy, RecordNameStrategy, TopicRecord"),
        ("com.example.Mine", "must be one of"),
        ("AssociatedNameStrategy", "is not supported: set the subject itself"),
    ],
)
def test_another_strategy_is_refused(text, reason):
    """The error names the option."""
    with pytest.raises(ConfigError) as caught:
        SubjectNameStrategy.read(text, "valueSubjectNameStrategy")
    assert str(caught.value).startswith(f"valueSubjectNameStrategy {reason}")
