"""A strict, small, single-process Kafka broker for demos and tests."""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.broker_settings import ConnectionLimits
from spark_kafka_sink.devbroker.dev_broker import DevBroker
from spark_kafka_sink.devbroker.net.listener import Listener, SaslSettings
from spark_kafka_sink.security.tls import TlsSettings

__all__ = ["ConnectionLimits", "DevBroker", "Listener", "SaslSettings", "TlsSettings"]
