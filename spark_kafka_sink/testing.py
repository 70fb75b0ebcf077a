"""An embedded Kafka broker for tests, notebooks and demos.

    from spark_kafka_sink.testing import ApiKey, CloseConnection, DevBroker

    with DevBroker(topics={"orders": 3}) as broker:
        broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)

Wherever the package is installed, pytest provides the fixtures `devbroker`, a `DevBroker`, and
`start_devbroker`, a `StartDevBroker`.
"""

from __future__ import annotations

from typing import Any, Protocol

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings, ConnectionLimits
from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError, RefusedRecord
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.dev_broker import DevBroker
from spark_kafka_sink.devbroker.net.faults import (
    Action,
    AlterResponse,
    AnswerError,
    CloseConnection,
    Corrupt,
    Decide,
    Delay,
    FaultContext,
    FaultHook,
    NeverAnswer,
    Throttle,
)
from spark_kafka_sink.devbroker.net.listener import Listener, SaslSettings
from spark_kafka_sink.devbroker.net.sasl_servers import TokenRules
from spark_kafka_sink.devbroker.registry.registry_faults import (
    AnswerStatus,
    RegistryFaultContext,
    RegistryFaultHook,
)
from spark_kafka_sink.devbroker.registry.rest_api import RestRequest
from spark_kafka_sink.devbroker.registry.schema_registry import SchemaRegistry
from spark_kafka_sink.devbroker.topic_records import TopicRecords
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.registry import RequestHeader
from spark_kafka_sink.record.decode import Header, Record
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.tls import ClientAuth, TlsSettings

__all__ = [
    "Action",
    "AlterRecords",
    "AlterResponse",
    "AnswerError",
    "AnswerStatus",
    "ApiKey",
    "BrokerSettings",
    "ClientAuth",
    "CloseConnection",
    "ConnectionLimits",
    "Corrupt",
    "Decide",
    "Delay",
    "DevBroker",
    "ErrorCode",
    "FaultContext",
    "FaultHook",
    "Header",
    "Listener",
    "NeverAnswer",
    "OmitPartitions",
    "PartitionError",
    "Record",
    "RefusedError",
    "RefusedRecord",
    "RegistryFaultContext",
    "RegistryFaultHook",
    "RequestHeader",
    "RestRequest",
    "SaslMechanism",
    "SaslSettings",
    "SchemaRegistry",
    "SecurityProtocol",
    "StartDevBroker",
    "Throttle",
    "TlsSettings",
    "TokenRules",
    "TopicConfig",
    "TopicRecords",
]


class StartDevBroker(Protocol):
    """The type of the fixture `start_devbroker`: starts embedded brokers for one test.

    >>> def test_a_broker_may_stop(start_devbroker: StartDevBroker) -> None:
    ...     cluster = start_devbroker(brokers=3, topics={"orders": 3})
    ...     cluster.stop(2)
    """

    def __call__(self, **settings: Any) -> DevBroker:
        """Start a broker that runs until the test ends; `settings` are those of `DevBroker`."""


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
