"""AddPartitionsToTxn: adds partitions, to which records will be written, to a transaction.

Version 2 adds PRODUCER_FENCED, 3 is flexible. Clients use versions up to 3, for one transaction; 4
and 5 are for brokers, which send many transactions at once (KIP-890). 5 adds TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *

#: The highest version for clients; later ones are for brokers.
LAST_CLIENT_VERSION = 3


@message
class AddPartitionsToTxnTopic:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class AddPartitionsToTxnTransaction:
    """The partitions of one transaction."""

    transactional_id: str = field(STRING, versions="4+")
    producer_id: int = field(INT64, versions="4+")
    producer_epoch: int = field(INT16, versions="4+")
    #: Only check whether the partitions are in the transaction already.
    verify_only: bool = field(BOOL, versions="4+", default=False)
    topics: tuple[AddPartitionsToTxnTopic, ...] = field(
        array(AddPartitionsToTxnTopic), versions="4+"
    )


@message
class AddPartitionsToTxnRequest(ApiRequest["AddPartitionsToTxnResponse"]):
    """A request to the transactional id's coordinator."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    versions = VersionRange(0, 5)

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = field(
        array(AddPartitionsToTxnTransaction), versions="4+", default=()
    )
    v3_and_below_transactional_id: str = field(STRING, versions="0-3", default="")
    v3_and_below_producer_id: int = field(INT64, versions="0-3", default=NO_PRODUCER_ID)
    v3_and_below_producer_epoch: int = field(INT16, versions="0-3", default=NO_PRODUCER_EPOCH)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = field(
        array(AddPartitionsToTxnTopic), versions="0-3", default=()
    )


@message
class AddPartitionsToTxnPartitionResult:
    """The result for one partition."""

    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16, default=0)


@message
class AddPartitionsToTxnTopicResult:
    """The results for the partitions of one topic."""

    name: str = field(STRING)
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = field(
        array(AddPartitionsToTxnPartitionResult)
    )


@message
class AddPartitionsToTxnResult:
    """The results for one transaction."""

    transactional_id: str = field(STRING, versions="4+")
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = field(
        array(AddPartitionsToTxnTopicResult), versions="4+"
    )


@message
class AddPartitionsToTxnResponse(ApiResponse, request=AddPartitionsToTxnRequest):
    """A response with one result per partition; either all were added or none."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, versions="4+", ignorable=True, default=0)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = field(
        array(AddPartitionsToTxnResult), versions="4+", default=()
    )
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = field(
        array(AddPartitionsToTxnTopicResult), versions="0-3", default=()
    )
