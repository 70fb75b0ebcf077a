"""AllocateProducerIds: a broker asks the controller for a block of producer ids (KIP-730)."""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class AllocateProducerIdsRequest(ApiRequest["AllocateProducerIdsResponse"]):
    """A request for the controller."""

    api_key = ApiKey.ALLOCATE_PRODUCER_IDS
    versions = VersionRange(0, 0)

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)


@message
class AllocateProducerIdsResponse(ApiResponse, request=AllocateProducerIdsRequest):
    """A response with a block of ids that no other broker gets."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    producer_id_start: int = field(INT64, default=0)
    producer_id_len: int = field(INT32, default=0)
