"""EndTxn: commits or aborts a transaction.

2 adds PRODUCER_FENCED, 3 is flexible, 4 adds TRANSACTION_ABORTABLE. From 5 on the coordinator gives
the producer a new epoch with each transaction's end, and tells it (KIP-890).
"""

from __future__ import annotations

from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    ApiMessage,
    VersionRange,
    field,
    message,
)

#: The last version that leaves the producer's epoch as it is: for transaction.version 0 and 1.
LAST_VERSION_WITHOUT_EPOCH_BUMP = 4


@message
class EndTxnRequest(ApiMessage):
    """Asks the coordinator of the transactional id."""

    api_key = ApiKey.END_TXN
    versions = VersionRange(0, 5)

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    #: False: the transaction is aborted.
    committed: bool = field(BOOL)


@message
class EndTxnResponse(ApiMessage):
    """Says whether the transaction will end so; from version 5 on with the next one's identity."""

    api_key = ApiKey.END_TXN
    versions = VersionRange(0, 5)

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    producer_id: int = field(INT64, versions="5+", ignorable=True, default=NO_PRODUCER_ID)
    producer_epoch: int = field(INT16, versions="5+", ignorable=True, default=NO_PRODUCER_EPOCH)
