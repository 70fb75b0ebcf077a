"""Producer configurations from a few settings, and the errors of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError

#: The package of Java's OAUTHBEARER callback handlers.
OAUTH = "org.apache.kafka.common.security.oauthbearer"


def config(**settings: Any) -> ProducerConfig:
    """Create a configuration; the names have underscores for Kafka's dots."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092", **named})


def refusal(**settings: Any) -> str:
    """Return the message of the ConfigError that these settings raise."""
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    return str(caught.value)
