"""WriteTxnMarkers: ends transactions in partitions.

The transaction coordinator sends it to the partitions' leaders, and so does an administrator who
ends a transaction that its coordinator has forgotten (KIP-664). Version 2 has the transaction's
version (KIP-1228). All versions are flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class WritableTxnMarkerTopic:
    """The partitions of one topic."""

    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@message
class WritableTxnMarker:
    """The end of a producer's transaction."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    #: Whether the transaction is committed, and not aborted.
    transaction_result: bool = field(BOOL)
    topics: tuple[WritableTxnMarkerTopic, ...] = field(array(WritableTxnMarkerTopic))
    #: The leader epoch of the coordinator's partition of `__transaction_state`.
    coordinator_epoch: int = field(INT32)
    transaction_version: int = field(INT8, versions="2+", default=0, ignorable=True)


@message
class WriteTxnMarkersRequest(ApiRequest["WriteTxnMarkersResponse"]):
    """A request to the partitions' leader."""

    api_key = ApiKey.WRITE_TXN_MARKERS
    versions = VersionRange(1, 2)

    markers: tuple[WritableTxnMarker, ...] = field(array(WritableTxnMarker))


@message
class WritableTxnMarkerPartitionResult:
    """The result of one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@message
class WritableTxnMarkerTopicResult:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = field(
        array(WritableTxnMarkerPartitionResult)
    )


@message
class WritableTxnMarkerResult:
    """The results of one producer's transaction."""

    producer_id: int = field(INT64)
    topics: tuple[WritableTxnMarkerTopicResult, ...] = field(array(WritableTxnMarkerTopicResult))


@message
class WriteTxnMarkersResponse(ApiResponse, request=WriteTxnMarkersRequest):
    """A response with the results of each partition."""

    markers: tuple[WritableTxnMarkerResult, ...] = field(array(WritableTxnMarkerResult))
