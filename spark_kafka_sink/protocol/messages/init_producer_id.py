"""InitProducerId: returns a producer id and epoch for an idempotent or transactional producer.

Version 2 is flexible; 3 lets a producer bump its own epoch (KIP-360); 4 adds PRODUCER_FENCED, 5
TRANSACTION_ABORTABLE. Version 6 (two-phase commit, KIP-939) is not stable in Kafka 4.4.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class InitProducerIdRequest(ApiRequest["InitProducerIdResponse"]):
    """A request for a new producer id, or for a new epoch of the given one."""

    api_key = ApiKey.INIT_PRODUCER_ID
    versions = VersionRange(0, 5)

    #: None: the producer is idempotent only.
    transactional_id: str | None = field(STRING, nullable="0+")
    #: How long a transaction may be open; ignored without a transactional id.
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, versions="3+", default=NO_PRODUCER_ID)
    producer_epoch: int = field(INT16, versions="3+", default=NO_PRODUCER_EPOCH)


@message
class InitProducerIdResponse(ApiResponse, request=InitProducerIdRequest):
    """A response with the producer id and epoch, or an error."""

    throttle_time_ms: int = field(INT32, ignorable=True, default=0)
    error_code: int = field(INT16, default=0)
    producer_id: int = field(INT64, default=NO_PRODUCER_ID)
    producer_epoch: int = field(INT16, default=0)
