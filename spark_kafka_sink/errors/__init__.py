"""Errors, as a small tree plus data.

There are three branches: mistakes of the caller (`ConfigError`, `SchemaError`,
`SerializationError`, `RecordError`, `ProducerClosedError`), invalid bytes from the network
(`DecodeError`), and error codes from a broker (`BrokerError`, which keeps the code even if it is
unknown). Beside them are the transient conditions, `NetworkError` and `KafkaTimeoutError`,
`AuthenticationError`, which may come from either side, and what happens to a consumer: its group
rebalances (`CommitFailedError`, `RebalanceInProgressError`), or its position is not in the log
(`NoOffsetForPartitionError`, `OffsetOutOfRangeError`).

Whether a retry may help is an attribute, `retriable`, and does not depend on the error's type.
Messages say what happened, where, and what to do; they never contain a secret.
"""

from __future__ import annotations

from spark_kafka_sink.errors.base_errors import (
    AdminError,
    AuthenticationError,
    BrokerError,
    ConfigError,
    CorruptRecordError,
    DecodeError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    SerializationError,
    UnsupportedVersionError,
)
from spark_kafka_sink.errors.consumer_errors import (
    CommitFailedError,
    DataLossError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    RecordDeserializationError,
    WakeupError,
)
from spark_kafka_sink.errors.producer_errors import (
    BufferExhaustedError,
    DeliveryError,
    DeliveryTimeoutError,
    FatalProducerError,
    InvalidPartitionError,
    InvalidTopicError,
    ProducerClosedError,
    ProducerFencedError,
    RecordError,
    RecordTooLargeError,
    SchemaError,
    TransactionAbortableError,
    TransactionAbortedError,
)

__all__ = [
    "AdminError",
    "AuthenticationError",
    "BrokerError",
    "BufferExhaustedError",
    "CommitFailedError",
    "ConfigError",
    "CorruptRecordError",
    "DataLossError",
    "DecodeError",
    "DeliveryError",
    "DeliveryTimeoutError",
    "FatalProducerError",
    "IllegalStateError",
    "InvalidPartitionError",
    "InvalidTopicError",
    "KafkaError",
    "KafkaTimeoutError",
    "LogTruncationError",
    "NetworkError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
    "ProducerClosedError",
    "ProducerFencedError",
    "RebalanceInProgressError",
    "RecordDeserializationError",
    "RecordError",
    "RecordTooLargeError",
    "SchemaError",
    "SerializationError",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "UnsupportedVersionError",
    "WakeupError",
]

# Tracebacks and pickles name this package, from which users import the errors, and not the module
# of a family, which may change.
for _name in __all__:
    globals()[_name].__module__ = __name__
