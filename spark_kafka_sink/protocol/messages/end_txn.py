"""EndTxn: commits or aborts a transaction.

Version 2 adds PRODUCER_FENCED, 3 is flexible, 4 adds TRANSACTION_ABORTABLE. From 5 on the
coordinator bumps the producer's epoch at the end of each transaction and returns it (KIP-890).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *

#: The last version that does not bump the producer's epoch, for transaction.version 0 and 1.
LAST_VERSION_WITHOUT_EPOCH_BUMP = 4


@message
class EndTxnRequest(ApiRequest["EndTxnResponse"]):
    """A request to the transactional id's coordinator."""

    api_key = ApiKey.END_TXN
    versions = VersionRange(0, 5)

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    #: True commits the transaction, False aborts it.
    committed: bool = field(BOOL)


@message
class EndTxnResponse(ApiResponse, request=EndTxnRequest):
    """A response with the result, and from version 5 on the next transaction's id and epoch."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    producer_id: int = field(INT64, versions="5+", ignorable=True, default=NO_PRODUCER_ID)
    producer_epoch: int = field(INT16, versions="5+", ignorable=True, default=NO_PRODUCER_EPOCH)
