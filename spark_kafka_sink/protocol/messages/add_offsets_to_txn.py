"""AddOffsetsToTxn: adds a consumer group, whose offsets will be committed, to a transaction.

Version 2 adds PRODUCER_FENCED, 3 is flexible, 4 adds TRANSACTION_ABORTABLE. With
transaction.version 2 this API is not used any more: TxnOffsetCommit adds the group implicitly
(KIP-890).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class AddOffsetsToTxnRequest(ApiRequest["AddOffsetsToTxnResponse"]):
    """A request to the transactional id's coordinator."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN
    versions = VersionRange(0, 4)

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    group_id: str = field(STRING)


@message
class AddOffsetsToTxnResponse(ApiResponse, request=AddOffsetsToTxnRequest):
    """A response with the result."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
