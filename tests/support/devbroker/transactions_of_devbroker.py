"""Helpers shared by the tests of transactions in the embedded broker."""

from __future__ import annotations

from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.broker_requests import broker_with
from tests.support.devbroker.transactional_client import (
    PRODUCE_TV1,
    PRODUCE_TV2,
    TransactionalClient,
)

OK = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
NO_MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
BAD_STATE = ErrorCode.INVALID_TXN_STATE
NOBODY = (-1, -1)
LAST_EPOCH = 2**15 - 1


def client_of(transaction_version=2, *, partitions=3, **settings):
    return TransactionalClient(
        broker_with({"t": partitions}, transaction_version=transaction_version, **settings)
    )


def began(client, *, version=2, sequence=0):
    """Begin a transaction with one record in partition 0; return producer id and epoch."""
    code, identity = client.init()
    assert OK == code
    if version < 2:
        assert [OK] == client.add(identity, 0)
    produce = PRODUCE_TV2 if version == 2 else PRODUCE_TV1
    assert OK == client.produce(identity, sequence, version=produce)[0][0]
    return identity
